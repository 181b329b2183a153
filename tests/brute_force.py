"""Exact optimum of tiny instances by exhausting all orders, for tests only; derived from the instance alone.

On one stage ops run one after another, so that its order alone says how much it holds at any time. An optimum is
therefore an order of each stage that fits the cap, timed as early as possible. The search appends one op after
another to the order of its stage, and of two ways to the same set of ops drops the one that is nowhere earlier.
Microbatches are alike, so that their numbers do not tell sets apart.

A time is a vector: the longest path to it from each origin. For the makespan there is one origin, the start of all.
For the largest stage span, which an op that waits may lower, each stage's first start is an origin; that start may
then move freely, and the least span is the largest mean of a cycle of first starts and last ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, permutations

from zbopt.instance import Barrier, Instance, Objective

_NEVER = -(10**12)
Vector = tuple[int, ...]


def optimum(instance: Instance) -> int | None:
    """Least value of the instance's objective, in ticks; ``None``: no order fits the memory cap."""
    search = _Search(instance)
    return search.run(None, search.run(30, None))


@dataclass(frozen=True, slots=True)
class _Op:
    """One way to do a step of a microbatch's way through the model, forwards and back."""

    stage: int
    virtual_stage: int
    ticks: int
    forward: bool
    leaves_weight: bool
    drops: bool = False


@dataclass(frozen=True, slots=True, order=True)
class _Micro:
    """How far a microbatch is: steps done, virtual stages whose W is open, when the next step's input is there.

    ``arrival`` is empty where the next step is on the same stage, which is busy until then anyway. ``dropped`` are the
    virtual stages whose activation has to be recomputed.
    """

    step: int
    weights: tuple[int, ...]
    arrival: Vector
    dropped: tuple[int, ...] = ()


_State = tuple[tuple[_Micro, ...], tuple[Vector, ...]]
"""Microbatches in sorted order, and when each stage is free."""


class _Search:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.span = instance.objective is Objective.MAX_STAGE_SPAN
        self.way = list(_way(instance))
        self.known: dict[object, tuple[list[Fraction], list[int]]] = {}
        self.modes = instance.recompute or ("never",) * instance.virtual_stages

    def run(self, width: int | None, best: int | None) -> int | None:
        """Best value below ``best``, else ``best``. With a ``width``, of each layer only so many states go on."""
        layers: list[dict[object, list[_State]]] = [{} for _ in range(self._length() + 1)]
        _keep(layers[0], self._first())
        for layer, further in enumerate(layers[:-1]):
            states = [state for group in further.values() for state in group]
            for state in sorted(states, key=self._promise)[:width]:
                for units, after in self._extend(state):
                    if best is None or self._promise(after) < best:
                        _keep(layers[layer + units], after)
        found = [self._value(state) for group in layers[-1].values() for state in group]
        return min([*found, *([] if best is None else [best])], default=None)

    def _length(self) -> int:
        """Ops of all microbatches, BW counting as two, and so an F that keeps what it may drop."""
        instance = self.instance
        backwards = sum(any(op.leaves_weight or self._fuses(op) for op in step) for step in self.way)
        return instance.microbatches * (len(self.way) + backwards + sum(mode != "never" for mode in self.modes))

    def _units(self, op: _Op) -> int:
        keeps = op.forward and not op.drops and self.modes[op.virtual_stage] != "never"
        return 2 if self._fuses(op) or keeps else 1

    def _fuses(self, op: _Op) -> bool:
        return not op.forward and not op.leaves_weight and not self._is_first_weight(op)

    def _is_first_weight(self, op: _Op) -> bool:
        backward = self.instance.backward_ticks
        return op.virtual_stage == 0 and backward is not None and backward[0] is None

    def _first(self) -> _State:
        instance = self.instance
        origins = instance.stages if self.span else 1
        free = tuple(
            tuple(0 if not self.span or origin == stage else _NEVER for origin in range(origins))
            for stage in range(instance.stages)
        )
        return (_Micro(0, (), ()),) * instance.microbatches, free

    def _extend(self, state: _State) -> Iterator[tuple[int, _State]]:
        """Every way to append one op: (1, or 2 for BW; the state after it)."""
        micros, free = state
        for i, micro in enumerate(micros):
            if i and micro == micros[i - 1]:
                continue
            for v in micro.weights:
                stage = self.instance.stage_of[v]
                assert self.instance.weight_ticks is not None
                end = _plus(free[stage], self.instance.weight_ticks[v])
                rest = tuple(other for other in micro.weights if other != v)
                yield 1, _with(state, i, _Micro(micro.step, rest, micro.arrival, micro.dropped), stage, end)
            for v in micro.dropped:
                stage = self.instance.stage_of[v]
                assert self.instance.recompute_ticks is not None
                if self._fits(micros, stage, self.instance.activation[v] - self._left(v)):
                    end = _plus(free[stage], self.instance.recompute_ticks[v])
                    rest = tuple(other for other in micro.dropped if other != v)
                    yield 1, _with(state, i, _Micro(micro.step, micro.weights, micro.arrival, rest), stage, end)
            for op in self.way[micro.step] if micro.step < len(self.way) else ():
                if not self._fits(micros, op.stage, self._takes(op)):
                    continue
                if not op.forward and op.virtual_stage in micro.dropped:
                    continue
                start = free[op.stage] if not micro.arrival else tuple(map(max, free[op.stage], micro.arrival))
                end = _plus(start, op.ticks)
                weights = tuple(sorted((*micro.weights, op.virtual_stage))) if op.leaves_weight else micro.weights
                dropped = tuple(sorted((*micro.dropped, op.virtual_stage))) if op.drops else micro.dropped
                after = _Micro(micro.step + 1, weights, self._arrival(micro.step, op.stage, end), dropped)
                yield self._units(op), _with(state, i, after, op.stage, end)

    def _arrival(self, step: int, stage: int, end: Vector) -> Vector:
        if step + 1 == len(self.way) or self.way[step + 1][0].stage == stage:
            return ()
        return _plus(end, self.instance.comm_ticks)

    def _takes(self, op: _Op) -> Fraction:
        """Memory that an op takes at its start."""
        v, instance = op.virtual_stage, self.instance
        if op.forward:
            return instance.activation[v] + self._boundaries(v)
        added = instance.gradient_state
        return added[v] if op.leaves_weight and added is not None else Fraction(0)

    def _boundaries(self, v: int) -> Fraction:
        """Output and, from another stage, input: both are held until what takes the gradient ends."""
        sizes, stage_of = self.instance.boundary, self.instance.stage_of
        if sizes is None:
            return Fraction(0)
        return sizes[v] + (sizes[v - 1] if v > 0 and stage_of[v] != stage_of[v - 1] else 0)

    def _left(self, v: int) -> Fraction:
        return self.instance.checkpoint[v] if self.instance.checkpoint is not None else Fraction(0)

    def _fits(self, micros: tuple[_Micro, ...], stage: int, takes: Fraction) -> bool:
        if self.instance.memory_cap is None:
            return True
        live = sum((self._of(micro)[0][stage] for micro in micros), self._static(stage))
        return live + takes <= self.instance.memory_cap[stage] or not takes

    def _static(self, stage: int) -> Fraction:
        instance = self.instance
        fields = (instance.parameters, instance.gradients, instance.optimizer_state, instance.workspace)
        static = sum((row[stage] for row in (*fields, instance.reserve) if row is not None), Fraction(0))
        buffers, m = instance.receive_buffers or 0, instance.microbatches
        for v, size in enumerate((instance.boundary or ())[:-1]):
            ends = (instance.stage_of[v], instance.stage_of[v + 1])
            if ends[0] != ends[1] and stage in ends:
                static += size * (m if buffers == "all" else min(buffers, m))
        return static

    def _of(self, micro: _Micro) -> tuple[list[Fraction], list[int]]:
        """What a microbatch holds on each stage, and the least work it still brings there."""
        key = (micro.step, micro.weights, micro.dropped)
        if key not in self.known:
            self.known[key] = self._holds(micro), self._brings(micro)
        return self.known[key]

    def _holds(self, micro: _Micro) -> list[Fraction]:
        instance = self.instance
        holds = [Fraction(0)] * instance.stages
        for v, stage in enumerate(instance.stage_of):
            if v < micro.step <= len(self.way) - 1 - v:
                holds[stage] += self._boundaries(v)
                holds[stage] += self._left(v) if v in micro.dropped else instance.activation[v]
            elif v in micro.weights:
                holds[stage] += instance.activation[v] * instance.weight_share[v]
                holds[stage] += Fraction(0) if instance.gradient_state is None else instance.gradient_state[v]
        return holds

    def _brings(self, micro: _Micro) -> list[int]:
        weight = self.instance.weight_ticks or ()
        brings = [0] * self.instance.stages
        for v in micro.weights:
            brings[self.instance.stage_of[v]] += weight[v]
        again = self.instance.recompute_ticks or ()
        for v in micro.dropped:
            brings[self.instance.stage_of[v]] += again[v]
        for step in self.way[micro.step :]:
            brings[step[0].stage] += min(
                op.ticks
                + (weight[op.virtual_stage] if op.leaves_weight else 0)
                + (again[op.virtual_stage] if op.drops else 0)
                for op in step
            )
        return brings

    def _promise(self, state: _State) -> int:
        """A lower bound on every completion of ``state``: each stage has its work before it."""
        micros, free = state
        brings = [self._of(micro)[1] for micro in micros]
        steps = self.instance.optimizer_ticks or (0,) * self.instance.stages
        return max(
            free[stage][stage if self.span else 0] + sum(row[stage] for row in brings) + steps[stage]
            for stage in range(self.instance.stages)
        )

    def _value(self, state: _State) -> int:
        """Value of a finished state; O comes last on its stage, since every op there has its gradient after it."""
        ends = list(state[1])
        if self.instance.barrier is Barrier.GLOBAL:
            ends = [tuple(map(max, zip(*ends, strict=True)))] * len(ends)
        if self.instance.optimizer_ticks is not None:
            ends = [_plus(end, ticks) for end, ticks in zip(ends, self.instance.optimizer_ticks, strict=True)]
        return _largest_cycle_mean(ends) if self.span else max(end[0] for end in ends)


def _way(instance: Instance) -> Iterator[list[_Op]]:
    """The steps of a microbatch one after another, each in the ways that the instance allows."""
    for v, stage in enumerate(instance.stage_of):
        mode = instance.recompute[v] if instance.recompute else "never"
        ways = {"never": (False,), "always": (True,), "choose": (False, True)}[mode]
        yield [_Op(stage, v, instance.forward_ticks[v], True, False, drops) for drops in ways]
    for v, stage in reversed(list(enumerate(instance.stage_of))):
        split = instance.backward_ticks[v] if instance.backward_ticks else None
        fused = instance.fused_backward_ticks[v] if instance.fused_backward_ticks else None
        options = [_Op(stage, v, split, False, True)] if split is not None else []
        options += [_Op(stage, v, fused, False, False)] if fused is not None else []
        if not options and instance.weight_ticks:
            options = [_Op(stage, v, instance.weight_ticks[v], False, False)]
        yield options


def _plus(time: Vector, ticks: int) -> Vector:
    return tuple(part + ticks for part in time)


def _with(state: _State, i: int, micro: _Micro, stage: int, end: Vector) -> _State:
    micros, free = state
    return tuple(sorted((*micros[:i], micro, *micros[i + 1 :]))), (*free[:stage], end, *free[stage + 1 :])


def _keep(group_of: dict[object, list[_State]], state: _State) -> None:
    """Add ``state`` unless one with the same ops done is nowhere later; drop those that it makes needless."""
    micros, _ = state
    group = group_of.setdefault(tuple((micro.step, micro.weights, micro.dropped) for micro in micros), [])
    mine = _times(state)
    if any(all(map(int.__le__, _times(other), mine)) for other in group):
        return
    group[:] = [other for other in group if not all(map(int.__le__, mine, _times(other)))]
    group.append(state)


def _times(state: _State) -> list[int]:
    micros, free = state
    return [part for micro in micros for part in micro.arrival] + [part for time in free for part in time]


def _largest_cycle_mean(ends: list[Vector]) -> int:
    """Least whole span: for every circle of stages, the paths from first start to next last end fit into its spans."""
    means = []
    for size in range(1, len(ends) + 1):
        for stages in combinations(range(len(ends)), size):
            for first, *rest in permutations(stages):
                circle = [first, *rest]
                length = sum(ends[b][a] for a, b in zip(circle, [*rest, first], strict=True))
                means.append(-(-length // size))
    return max(means)
