"""An instance as one task graph: tasks, exclusive resources, precedences, barriers and memory residences.

Timing, bounds and CP-SAT read this and nothing of the instance's meaning; whatever DESIGN section 2 adds is a new
expansion here. The validator does not read it: it derives every rule again. Tags refer to models/formulation.md.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from zbopt.instance import Barrier, Instance, Kind
from zbopt.memory import Way, memory_scale, parts, static_memory, ways

SPLIT, FUSED = 0, 1
"""Options of a backward's choice [M1]: B and W as two ops, or BW as one."""

Option = tuple[int, int]
"""A choice, and one of its options."""

_DROPPED_BY = {Kind.R: Way.RECOMPUTE}
"""The way that an op is there for."""


@dataclass(frozen=True, slots=True)
class Task:
    """One op that a schedule may contain. It runs always, or only when ``choice`` takes ``option``."""

    kind: Kind
    stage: int
    virtual_stage: int | None
    microbatch: int | None
    duration_ticks: int
    choice: int | None = None
    option: int = 0


@dataclass(frozen=True, slots=True)
class Precedence:
    """``after`` starts at the earliest ``lag_ticks`` after the end of ``before``, where both run."""

    before: int
    after: int
    lag_ticks: int


@dataclass(frozen=True, slots=True)
class Join:
    """Every task of ``after`` starts at the earliest when all that run of ``before`` have ended."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Residence:
    """``amount`` memory units on ``stage`` from the start of task ``first`` to the end of ``last``.

    It is there where both tasks run and, with ``when``, that choice takes that option.
    """

    stage: int
    amount: int
    first: int
    last: int
    when: Option | None = None


@dataclass(frozen=True)
class TaskGraph:
    """Everything a solver needs. Tasks are named by their index in ``tasks``.

    ``resources[stage]`` are the tasks that exclude each other on a stage. ``caps`` are what static memory leaves, in
    memory units, of which ``memory_scale`` make one unit of the instance; ``None`` means no limit. ``choices`` says
    for each free choice how many options it has; exactly one of them is taken. ``way_of`` names the choices of
    activations' ways, by virtual stage and microbatch.
    """

    instance: Instance
    tasks: tuple[Task, ...]
    resources: tuple[tuple[int, ...], ...]
    precedences: tuple[Precedence, ...]
    joins: tuple[Join, ...]
    residences: tuple[Residence, ...]
    caps: tuple[int, ...] | None
    memory_scale: int
    choices: tuple[int, ...]
    index: dict[tuple[Kind, int | None, int | None], int] = field(repr=False)
    way_of: dict[tuple[int, int], int] = field(repr=False)

    @cached_property
    def options(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each choice, the tasks that run under each of its options."""
        rows: list[list[list[int]]] = [[[] for _ in range(size)] for size in self.choices]
        for i, task in enumerate(self.tasks):
            if task.choice is not None:
                rows[task.choice][task.option].append(i)
        return tuple(tuple(map(tuple, row)) for row in rows)

    def taken(self, runs: Container[int]) -> tuple[int, ...]:
        """For each choice, its option under which exactly the tasks of ``runs`` run."""
        return tuple(
            next(k for k, own in enumerate(row) if all((i in runs) == (i in own) for option in row for i in option))
            for row in self.options
        )


def expand(instance: Instance) -> TaskGraph:
    """The task graph of ``instance``."""
    return _Expansion(instance).graph()


class _Expansion:
    """Builds the graph, one method a family."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.tasks: list[Task] = []
        self.index: dict[tuple[Kind, int | None, int | None], int] = {}
        self.precedences: list[Precedence] = []
        self.joins: list[Join] = []
        self.residences: list[Residence] = []
        self.choices: list[int] = []
        self.way_of: dict[tuple[int, int], int] = {}
        self.scale = memory_scale(instance)
        self.pieces: dict[tuple[int, Way], dict[tuple[Kind, Kind], int]] = {}

    def graph(self) -> TaskGraph:
        for virtual_stage in range(self.instance.virtual_stages):
            for microbatch in range(self.instance.microbatches):
                self._ops(virtual_stage, microbatch)
        for virtual_stage in range(self.instance.virtual_stages):
            for microbatch in range(self.instance.microbatches):
                self._dataflow(virtual_stage, microbatch)
                self._memory(virtual_stage, microbatch)
        self._optimizer()
        resources: list[list[int]] = [[] for _ in range(self.instance.stages)]
        for i, task in enumerate(self.tasks):
            resources[task.stage].append(i)
        cap = self.instance.memory_cap
        return TaskGraph(
            instance=self.instance,
            tasks=tuple(self.tasks),
            resources=tuple(map(tuple, resources)),
            precedences=tuple(self.precedences),
            joins=tuple(self.joins),
            residences=tuple(self.residences),
            caps=None if cap is None else tuple(self._left(stage, c) for stage, c in enumerate(cap)),
            memory_scale=self.scale,
            choices=tuple(self.choices),
            index=self.index,
            way_of=self.way_of,
        )

    def _add(self, task: Task) -> int:
        self.tasks.append(task)
        self.index[task.kind, task.virtual_stage if task.kind is not Kind.O else task.stage, task.microbatch] = (
            len(self.tasks) - 1
        )
        return len(self.tasks) - 1

    def _ops(self, virtual_stage: int, microbatch: int) -> None:
        """[M1] F always; the backward as B and W, as BW, or as either where the instance leaves it open."""
        instance = self.instance
        stage = instance.stage_of[virtual_stage]
        choice = None
        fused = (instance.fused_backward_ticks or [None] * instance.virtual_stages)[virtual_stage]
        if instance.may_split and fused is not None:
            choice = self._choice(2)

        def add(kind: Kind, ticks: int, choice: int | None = None, option: int = SPLIT) -> None:
            self._add(Task(kind, stage, virtual_stage, microbatch, ticks, choice, option))

        add(Kind.F, instance.forward_ticks[virtual_stage])
        if instance.backward_ticks is not None and instance.weight_ticks is not None:
            backward = instance.backward_ticks[virtual_stage]
            if backward is not None:
                add(Kind.B, backward, choice)
            add(Kind.W, instance.weight_ticks[virtual_stage], choice)
        if fused is not None:
            add(Kind.BW, fused, choice, FUSED)
        self._drops(virtual_stage, microbatch)

    def _drops(self, virtual_stage: int, microbatch: int) -> None:
        """[M3] The ops that an activation's way asks for: always, or where the schedule chooses it."""
        instance = self.instance
        allowed = ways(instance, virtual_stage)
        choice = None
        if len(allowed) > 1:
            choice = self.way_of[virtual_stage, microbatch] = self._choice(len(allowed))
        for kind, times in ((Kind.R, instance.recompute_ticks),):
            if times is not None and _DROPPED_BY[kind] in allowed:
                option = allowed.index(_DROPPED_BY[kind])
                stage = instance.stage_of[virtual_stage]
                self._add(Task(kind, stage, virtual_stage, microbatch, times[virtual_stage], choice, option))

    def _choice(self, options: int) -> int:
        self.choices.append(options)
        return len(self.choices) - 1

    def _left(self, stage: int, cap: Fraction) -> int:
        return int((cap - static_memory(self.instance, stage)) * self.scale)

    def _at(self, virtual_stage: int, microbatch: int, *kinds: Kind) -> list[int]:
        found = (self.index.get((kind, virtual_stage, microbatch)) for kind in kinds)
        return [i for i in found if i is not None]

    def _dataflow(self, virtual_stage: int, microbatch: int) -> None:
        """[C2] F down the route, gradients back up it, W after its B; [M2] a first W may take the gradient itself."""
        instance = self.instance
        last = virtual_stage == instance.virtual_stages - 1
        forward = self._at(virtual_stage, microbatch, Kind.F)
        inputs = self._at(virtual_stage, microbatch, Kind.B)
        weight = self._at(virtual_stage, microbatch, Kind.W)
        fused = self._at(virtual_stage, microbatch, Kind.BW)
        takers = [*(inputs or weight), *fused]
        if virtual_stage > 0:
            self._edges(self._at(virtual_stage - 1, microbatch, Kind.F), forward, virtual_stage - 1, virtual_stage)
        if last:
            self._edges(forward, takers, virtual_stage, virtual_stage)
        else:
            givers = self._at(virtual_stage + 1, microbatch, Kind.B, Kind.BW)
            self._edges(givers, takers, virtual_stage + 1, virtual_stage)
        if inputs:
            self._edges(inputs, weight, virtual_stage, virtual_stage)
        again = self._at(virtual_stage, microbatch, Kind.R)
        self._edges(forward, again, virtual_stage, virtual_stage)
        self._edges(again, takers, virtual_stage, virtual_stage)

    def _edges(self, before: list[int], after: list[int], from_virtual: int, to_virtual: int) -> None:
        lag = self.instance.lag_ticks(from_virtual, to_virtual)
        self.precedences.extend(Precedence(b, a, lag) for b in before for a in after)

    def _memory(self, virtual_stage: int, microbatch: int) -> None:
        """[C4] What a microbatch holds: what all ways of its activation have in common, and what each has besides."""
        if self.instance.memory_cap is None:
            return
        allowed = ways(self.instance, virtual_stage)
        held: dict[tuple[int, int], list[int]] = {}
        for option, way in enumerate(allowed):
            for kinds, amount in self._pieces(virtual_stage, way).items():
                first, last = (self.index[kind, virtual_stage, microbatch] for kind in kinds)
                held.setdefault((first, last), [0] * len(allowed))[option] = amount
        stage, choice = self.instance.stage_of[virtual_stage], self.way_of.get((virtual_stage, microbatch))
        for (first, last), amounts in held.items():
            common = min(amounts)
            if common:
                self.residences.append(Residence(stage, common, first, last))
            for option, amount in enumerate(amounts):
                if amount > common and choice is not None:
                    self.residences.append(Residence(stage, amount - common, first, last, (choice, option)))

    def _pieces(self, virtual_stage: int, way: Way) -> dict[tuple[Kind, Kind], int]:
        """Memory units from the start of one op to the end of another, over all backwards that may run."""
        key = (virtual_stage, way)
        if key not in self.pieces:
            instance = self.instance
            found: dict[tuple[Kind, Kind], int] = {}
            fused = instance.fused_backward_ticks is not None and instance.fused_backward_ticks[virtual_stage]
            for backward in (*([False] if instance.may_split else []), *([True] if fused else [])):
                sums: dict[tuple[Kind, Kind], Fraction] = {}
                for part in parts(instance, virtual_stage, way, fused=backward):
                    pair = (part.first, part.last)
                    sums[pair] = sums.get(pair, Fraction(0)) + part.amount
                found |= {pair: int(amount * self.scale) for pair, amount in sums.items()}
            self.pieces[key] = found
        return self.pieces[key]

    def _optimizer(self) -> None:
        """[C5] O after every W of every stage (global), or of its own stage only (post-validation)."""
        instance = self.instance
        if instance.optimizer_ticks is None:
            return
        gradients = [i for i, task in enumerate(self.tasks) if task.kind in (Kind.W, Kind.BW)]
        steps = [self._add(Task(Kind.O, stage, None, None, t)) for stage, t in enumerate(instance.optimizer_ticks)]
        if instance.barrier is Barrier.GLOBAL:
            self.joins.append(Join(tuple(gradients), tuple(steps)))
        else:
            for stage, step in enumerate(steps):
                own = tuple(i for i in gradients if self.tasks[i].stage == stage)
                self.joins.append(Join(own, (step,)))
