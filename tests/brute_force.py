"""Exact optimum of tiny instances by exhausting all orders, for tests only; derived from the instance alone.

On one stage ops run one after another, so that its order alone says how much it holds at any time. An optimum is
therefore an order of each stage that fits the cap, timed as early as possible. The search appends one op after
another to the order of its stage, and of two ways to the same set of ops drops the one that is nowhere earlier.
Microbatches of one class (same route, same times) are alike, so that their numbers do not tell sets apart.

A time is a vector: the longest path to it from each origin. For the makespan there is one origin, the start of all.
For the largest stage span, which an op that waits may lower, each stage's first start is an origin; that start may
then move freely, and the least span is the largest mean of a cycle of first starts and last ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise, permutations

from zbopt.problem.instance import Barrier, Instance, MicrobatchTimes, Objective

_NEVER = -(10**12)
Vector = tuple[int, ...]


def optimum(instance: Instance) -> int | None:
    """Return the least value of the instance's objective, in ticks; ``None``: no order fits the memory cap."""
    search = _Search(instance)
    return search.run(None, search.run(30, None))


@dataclass(frozen=True, slots=True)
class _Op:
    """Represent one way to do one step of a microbatch on its path through the model, forwards and back."""

    stage: int
    virtual_stage: int
    ticks: int
    forward: bool
    leaves_weight: bool
    drops: bool = False


@dataclass(frozen=True, slots=True, order=True)
class _Micro:
    """Hold the progress of a microbatch: class, steps done, virtual stages with an open W, arrival of its next input.

    ``arrival`` is empty where the next step is on the same stage, which is busy until then anyway. ``dropped`` are the
    virtual stages whose activation has to be recomputed.
    """

    group: int
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
        self.groups = [group[0] for group in _classes(instance)]
        self.sizes = [len(group) for group in _classes(instance)]
        self.ways = [list(_way(instance, microbatch)) for microbatch in self.groups]
        routes = [_route(instance, microbatch) for microbatch in self.groups]
        self.before = {v: u for route in routes for u, v in pairwise(route)}
        self.known: dict[object, tuple[list[Fraction], list[int]]] = {}
        self.modes = instance.recompute or ("never",) * instance.virtual_stages

    def run(self, width: int | None, best: int | None) -> int | None:
        """Return the best value below ``best``, else ``best``. Of a layer, at most ``width`` states go on."""
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
        """Count the ops of all microbatches. A BW counts as two, and so does an F that keeps what it may drop."""
        return sum(size * self._steps(way) for size, way in zip(self.sizes, self.ways, strict=True))

    def _steps(self, way: list[list[_Op]]) -> int:
        backwards = sum(any(op.leaves_weight or self._fuses(op) for op in step) for step in way)
        return len(way) + backwards + sum(self.modes[op.virtual_stage] != "never" for op, *_ in way if op.forward)

    def _units(self, op: _Op) -> int:
        keeps = op.forward and not op.drops and self.modes[op.virtual_stage] != "never"
        return 2 if self._fuses(op) or keeps else 1

    def _fuses(self, op: _Op) -> bool:
        return not op.forward and not op.leaves_weight and not self._is_first_weight(op)

    def _is_first_weight(self, op: _Op) -> bool:
        backward = self.instance.backward_ticks
        return backward is not None and backward[op.virtual_stage] is None

    def _first(self) -> _State:
        instance = self.instance
        origins = instance.stages if self.span else 1
        free = tuple(
            tuple(0 if not self.span or origin == stage else _NEVER for origin in range(origins))
            for stage in range(instance.stages)
        )
        return tuple(_Micro(group, 0, (), ()) for group, size in enumerate(self.sizes) for _ in range(size)), free

    def _extend(self, state: _State) -> Iterator[tuple[int, _State]]:
        """Yield every way to append one op: (1, or 2 for BW; the state after it)."""
        micros, free = state
        for i, micro in enumerate(micros):
            if i and micro == micros[i - 1]:
                continue
            for v in micro.weights:
                stage = self.instance.stage_of[v]
                end = _plus(free[stage], self._weight(micro, v))
                rest = tuple(other for other in micro.weights if other != v)
                yield (
                    1,
                    _with(state, i, _Micro(micro.group, micro.step, rest, micro.arrival, micro.dropped), stage, end),
                )
            for v in micro.dropped:
                stage = self.instance.stage_of[v]
                if self._fits(micros, stage, self.instance.activation[v] - self._left(v)):
                    end = _plus(free[stage], self._again(micro, v))
                    rest = tuple(other for other in micro.dropped if other != v)
                    after = _Micro(micro.group, micro.step, micro.weights, micro.arrival, rest)
                    yield 1, _with(state, i, after, stage, end)
            way = self.ways[micro.group]
            for op in way[micro.step] if micro.step < len(way) else ():
                if not self._fits(micros, op.stage, self._takes(op)):
                    continue
                if not op.forward and op.virtual_stage in micro.dropped:
                    continue
                start = free[op.stage] if not micro.arrival else tuple(map(max, free[op.stage], micro.arrival))
                end = _plus(start, op.ticks)
                weights = tuple(sorted((*micro.weights, op.virtual_stage))) if op.leaves_weight else micro.weights
                dropped = tuple(sorted((*micro.dropped, op.virtual_stage))) if op.drops else micro.dropped
                arrival = self._arrival(way, micro.step, op.stage, end)
                after = _Micro(micro.group, micro.step + 1, weights, arrival, dropped)
                yield self._units(op), _with(state, i, after, op.stage, end)

    def _weight(self, micro: _Micro, virtual_stage: int) -> int:
        weight = _times(self.instance, self.groups[micro.group]).weight_ticks
        assert weight is not None
        return weight[virtual_stage]

    def _again(self, micro: _Micro, virtual_stage: int) -> int:
        again = _times(self.instance, self.groups[micro.group]).recompute_ticks
        assert again is not None
        return again[virtual_stage]

    def _arrival(self, way: list[list[_Op]], step: int, stage: int, end: Vector) -> Vector:
        if step + 1 == len(way) or way[step + 1][0].stage == stage:
            return ()
        return _plus(end, self.instance.comm_ticks)

    def _takes(self, op: _Op) -> Fraction:
        """Return the memory that an op takes at its start."""
        v, instance = op.virtual_stage, self.instance
        if op.forward:
            return instance.activation[v] + self._boundaries(v)
        added = instance.gradient_state
        return added[v] if op.leaves_weight and added is not None else Fraction(0)

    def _boundaries(self, v: int) -> Fraction:
        """Return the size of output and, from another stage, input: held until the op that takes the gradient ends."""
        sizes, stage_of = self.instance.boundary, self.instance.stage_of
        if sizes is None:
            return Fraction(0)
        u = self.before.get(v)
        return sizes[v] + (sizes[u] if u is not None and stage_of[v] != stage_of[u] else 0)

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
        buffers = instance.receive_buffers or 0
        for v, u in self.before.items():
            ends = (instance.stage_of[u], instance.stage_of[v])
            if instance.boundary is not None and ends[0] != ends[1] and stage in ends:
                routes = (_route(instance, j) for j in range(instance.microbatches))
                m = sum(v in route for route in routes)
                static += instance.boundary[u] * (m if buffers == "all" else min(buffers, m))
        return static

    def _of(self, micro: _Micro) -> tuple[list[Fraction], list[int]]:
        """Return the memory that a microbatch holds on each stage, and the least work that it still has there."""
        key = (micro.group, micro.step, micro.weights, micro.dropped)
        if key not in self.known:
            self.known[key] = self._holds(micro), self._brings(micro)
        return self.known[key]

    def _holds(self, micro: _Micro) -> list[Fraction]:
        instance = self.instance
        holds = [Fraction(0)] * instance.stages
        way = self.ways[micro.group]
        for place in range(len(way) // 2):
            v, stage = way[place][0].virtual_stage, way[place][0].stage
            if place < micro.step <= len(way) - 1 - place:
                holds[stage] += self._boundaries(v)
                holds[stage] += self._left(v) if v in micro.dropped else instance.activation[v]
            elif v in micro.weights:
                holds[stage] += instance.activation[v] * instance.weight_share[v]
                holds[stage] += Fraction(0) if instance.gradient_state is None else instance.gradient_state[v]
        return holds

    def _brings(self, micro: _Micro) -> list[int]:
        brings = [0] * self.instance.stages
        for v in micro.weights:
            brings[self.instance.stage_of[v]] += self._weight(micro, v)
        for v in micro.dropped:
            brings[self.instance.stage_of[v]] += self._again(micro, v)
        for step in self.ways[micro.group][micro.step :]:
            brings[step[0].stage] += min(
                op.ticks
                + (self._weight(micro, op.virtual_stage) if op.leaves_weight else 0)
                + (self._again(micro, op.virtual_stage) if op.drops else 0)
                for op in step
            )
        return brings

    def _promise(self, state: _State) -> int:
        """Return a lower bound on every completion of ``state``: each stage has its work before it."""
        micros, free = state
        brings = [self._of(micro)[1] for micro in micros]
        steps = self.instance.optimizer_ticks or (0,) * self.instance.stages
        return max(
            free[stage][stage if self.span else 0] + sum(row[stage] for row in brings) + steps[stage]
            for stage in range(self.instance.stages)
        )

    def _value(self, state: _State) -> int:
        """Return the value of a finished state. O is last on its stage: every op there has its gradient after it."""
        ends = list(state[1])
        if self.instance.barrier is Barrier.GLOBAL:
            ends = [tuple(map(max, zip(*ends, strict=True)))] * len(ends)
        if self.instance.optimizer_ticks is not None:
            ends = [_plus(end, ticks) for end, ticks in zip(ends, self.instance.optimizer_ticks, strict=True)]
        return _largest_cycle_mean(ends) if self.span else max(end[0] for end in ends)


def _classes(instance: Instance) -> list[list[int]]:
    """Group the microbatches that are alike."""
    found: dict[object, list[int]] = {}
    for j in range(instance.microbatches):
        own = _times(instance, j)
        times = (own.forward_ticks, own.backward_ticks, own.weight_ticks, own.fused_backward_ticks, own.recompute_ticks)
        found.setdefault((_route(instance, j), times), []).append(j)
    return list(found.values())


def _route(instance: Instance, microbatch: int) -> tuple[int, ...]:
    first = 0
    for route in instance.routes or ():
        if first <= microbatch < first + route.microbatches:
            return route.virtual_stages
        first += route.microbatches
    return tuple(range(instance.virtual_stages))


def _times(instance: Instance, microbatch: int) -> Instance | MicrobatchTimes:
    groups = instance.microbatch_times or ()
    return next((group for group in groups if microbatch in group.microbatches), instance)


def _way(instance: Instance, microbatch: int) -> Iterator[list[_Op]]:
    """Return the steps of a microbatch, one after another, each with the ways that the instance allows."""
    times, route = _times(instance, microbatch), _route(instance, microbatch)
    for v in route:
        mode = instance.recompute[v] if instance.recompute else "never"
        ways = {"never": (False,), "always": (True,), "choose": (False, True)}[mode]
        yield [_Op(instance.stage_of[v], v, times.forward_ticks[v], True, False, drops) for drops in ways]
    for v in reversed(route):
        stage = instance.stage_of[v]
        split = times.backward_ticks[v] if times.backward_ticks else None
        fused = times.fused_backward_ticks[v] if times.fused_backward_ticks else None
        options = [_Op(stage, v, split, False, True)] if split is not None else []
        options += [_Op(stage, v, fused, False, False)] if fused is not None else []
        if not options and times.weight_ticks:
            options = [_Op(stage, v, times.weight_ticks[v], False, False)]
        yield options


def _plus(time: Vector, ticks: int) -> Vector:
    return tuple(part + ticks for part in time)


def _with(state: _State, i: int, micro: _Micro, stage: int, end: Vector) -> _State:
    micros, free = state
    return tuple(sorted((*micros[:i], micro, *micros[i + 1 :]))), (*free[:stage], end, *free[stage + 1 :])


def _keep(group_of: dict[object, list[_State]], state: _State) -> None:
    """Add ``state`` unless one with the same ops done is nowhere later; drop those that it makes needless."""
    micros, _ = state
    key = tuple((micro.group, micro.step, micro.weights, micro.dropped) for micro in micros)
    group = group_of.setdefault(key, [])
    mine = _parts(state)
    if any(all(map(int.__le__, _parts(other), mine)) for other in group):
        return
    group[:] = [other for other in group if not all(map(int.__le__, mine, _parts(other)))]
    group.append(state)


def _parts(state: _State) -> list[int]:
    micros, free = state
    return [part for micro in micros for part in micro.arrival] + [part for time in free for part in time]


def _largest_cycle_mean(ends: list[Vector]) -> int:
    """Return the least whole span: in each circle of stages, paths from first start to next last end fit its spans."""
    means = []
    for size in range(1, len(ends) + 1):
        for stages in combinations(range(len(ends)), size):
            for first, *rest in permutations(stages):
                circle = [first, *rest]
                length = sum(ends[b][a] for a, b in zip(circle, [*rest, first], strict=True))
                means.append(-(-length // size))
    return max(means)
