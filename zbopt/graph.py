"""An instance as one task graph: tasks, exclusive resources, precedences, barriers and memory residences.

Timing, bounds and CP-SAT read this and nothing of the instance's meaning; whatever DESIGN section 2 adds is a new
expansion here. The validator does not read it: it derives every rule again. Tags refer to models/formulation.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import lcm

from zbopt.instance import Barrier, Instance, Kind

SPLIT, FUSED = 0, 1
"""Options of a backward's choice [M1]: B and W as two ops, or BW as one."""


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
    """``amount`` memory units on ``stage`` from the start of task ``first`` to the end of ``last``, where both run."""

    stage: int
    amount: int
    first: int
    last: int


@dataclass(frozen=True)
class TaskGraph:
    """Everything a solver needs. Tasks are named by their index in ``tasks``.

    ``resources[stage]`` are the tasks that exclude each other on a stage. ``caps`` are in memory units, of which
    ``memory_scale`` make one unit of the instance; ``None`` means no limit. ``choices`` counts the free choices.
    """

    instance: Instance
    tasks: tuple[Task, ...]
    resources: tuple[tuple[int, ...], ...]
    precedences: tuple[Precedence, ...]
    joins: tuple[Join, ...]
    residences: tuple[Residence, ...]
    caps: tuple[int, ...] | None
    memory_scale: int
    choices: int
    index: dict[tuple[Kind, int | None, int | None], int] = field(repr=False)

    @cached_property
    def options(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """For each choice, the tasks that run under each of its two options."""
        rows: list[tuple[list[int], list[int]]] = [([], []) for _ in range(self.choices)]
        for i, task in enumerate(self.tasks):
            if task.choice is not None:
                rows[task.choice][task.option].append(i)
        return tuple((tuple(split), tuple(fused)) for split, fused in rows)


def expand(instance: Instance) -> TaskGraph:
    """The task graph of ``instance``."""
    return _Expansion(instance).graph()


def memory_scale(instance: Instance) -> int:
    """Least number of memory units a unit of the instance that makes every amount an integer."""
    amounts = [*instance.activation, *(instance.memory_cap or ())]
    held = [a * share for a, share in zip(instance.activation, instance.weight_share, strict=True)]
    return lcm(*(Fraction(amount).denominator for amount in (*amounts, *held)))


class _Expansion:
    """Builds the graph, one method a family."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.tasks: list[Task] = []
        self.index: dict[tuple[Kind, int | None, int | None], int] = {}
        self.precedences: list[Precedence] = []
        self.joins: list[Join] = []
        self.residences: list[Residence] = []
        self.choices = 0
        self.scale = memory_scale(instance)

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
            caps=None if cap is None else tuple(int(c * self.scale) for c in cap),
            memory_scale=self.scale,
            choices=self.choices,
            index=self.index,
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
            choice, self.choices = self.choices, self.choices + 1

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

    def _edges(self, before: list[int], after: list[int], from_virtual: int, to_virtual: int) -> None:
        lag = self.instance.lag_ticks(from_virtual, to_virtual)
        self.precedences.extend(Precedence(b, a, lag) for b in before for a in after)

    def _memory(self, virtual_stage: int, microbatch: int) -> None:
        """[C4] The activation lives from the start of F; a share goes at the end of B, the rest at the end of W."""
        instance = self.instance
        if instance.memory_cap is None:
            return
        stage = instance.stage_of[virtual_stage]
        whole = int(instance.activation[virtual_stage] * self.scale)
        held = int(instance.activation[virtual_stage] * instance.weight_share[virtual_stage] * self.scale)
        (forward,) = self._at(virtual_stage, microbatch, Kind.F)
        inputs = self._at(virtual_stage, microbatch, Kind.B)
        parts = [(held if inputs else whole, i) for i in self._at(virtual_stage, microbatch, Kind.W)]
        parts += [(whole - held, i) for i in inputs]
        parts += [(whole, i) for i in self._at(virtual_stage, microbatch, Kind.BW)]
        self.residences.extend(Residence(stage, amount, forward, i) for amount, i in parts if amount)

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
