"""The parts of a task graph. Tasks are named by their index in ``TaskGraph.tasks``."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from zbopt.problem.instance import Instance, Kind

SPLIT, FUSED = 0, 1
"""The options of a choice of backward [M1]: B and W as two ops, or BW as one."""

Option = tuple[int, int]
"""A choice, and one of its options."""


class Key(NamedTuple):
    """Name a task; ``where`` is its virtual stage, or its stage for an op of a whole stage."""

    kind: Kind
    where: int | None
    microbatch: int | None
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """Represent one op or transfer of a schedule. It runs always, or only when ``choice`` takes ``option``.

    ``stage`` is the one that it belongs to; for a transfer, the one that sends. It starts at ``release_ticks`` at the
    earliest.
    """

    kind: Kind
    stage: int
    virtual_stage: int | None
    microbatch: int | None
    duration_ticks: int
    choice: int | None = None
    option: int = 0
    iteration: int = 0
    release_ticks: int = 0

    @property
    def key(self) -> Key:
        """Return the task's name."""
        where = self.stage if self.virtual_stage is None else self.virtual_stage
        return Key(self.kind, where, self.microbatch, self.iteration)

    @property
    def turn(self) -> tuple[int, int]:
        """Return where the task's microbatch comes among those of all iterations."""
        return self.iteration, self.microbatch or 0


@dataclass(frozen=True, slots=True)
class Precedence:
    """Let ``after`` start at the earliest ``lag_ticks`` after the end of ``before``, where both run."""

    before: int
    after: int
    lag_ticks: int


@dataclass(frozen=True, slots=True)
class Join:
    """Let every task of ``after`` start at the earliest ``lag_ticks`` after all that run of ``before`` have ended."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    lag_ticks: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """Let ``task`` occupy a link from ``offset_ticks`` after its start, for ``ticks``."""

    task: int
    offset_ticks: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Link:
    """Represent an exclusive resource beside the stages' compute: a link, a port, or compute that transfers hold.

    ``stages`` are those that it belongs to.
    """

    name: str
    stages: tuple[int, ...]
    uses: tuple[Use, ...]


class Sent(NamedTuple):
    """Hold a transfer and the ops that may have produced what it carries, one of which runs."""

    send: int
    producers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Channel:
    """Hold the transfers from one stage to another: they go in the order in which their contents are produced."""

    stages: tuple[int, int]
    sent: tuple[Sent, ...]


@dataclass(frozen=True, slots=True)
class Residence:
    """Hold ``amount`` memory units on ``stage`` from the start of task ``first`` to the end of ``last``.

    It is there where both tasks run and, with ``when``, that choice takes that option.
    """

    stage: int
    amount: int
    first: int
    last: int
    when: Option | None = None


@dataclass(frozen=True)
class TaskGraph:
    """Hold everything a solver needs.

    ``resources[stage]`` are the ops that exclude each other on a stage's compute; a task in none of them runs beside
    them. ``links`` are all further exclusive resources. ``caps`` are what static memory leaves, in memory units,
    of which ``memory_scale`` make one unit of the instance; ``None`` means no limit. ``choices`` says for each free
    choice how many options it has; exactly one of them is taken. ``policy_of`` names choices of policies, by virtual
    stage, microbatch and iteration.
    """

    instance: Instance
    tasks: tuple[Task, ...]
    resources: tuple[tuple[int, ...], ...]
    links: tuple[Link, ...]
    channels: tuple[Channel, ...]
    precedences: tuple[Precedence, ...]
    joins: tuple[Join, ...]
    residences: tuple[Residence, ...]
    caps: tuple[int, ...] | None
    memory_scale: int
    choices: tuple[int, ...]
    index: dict[Key, int] = field(repr=False)
    policy_of: dict[tuple[int, int, int], int] = field(repr=False)

    @cached_property
    def options(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return for each choice the tasks that run under each of its options."""
        tasks: list[list[list[int]]] = [[[] for _ in range(size)] for size in self.choices]
        for i, task in enumerate(self.tasks):
            if task.choice is not None:
                tasks[task.choice][task.option].append(i)
        return tuple(tuple(map(tuple, of_options)) for of_options in tasks)

    @cached_property
    def successors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return for each task its (task after it, lag in ticks), by precedences alone: joins are not among them."""
        after: list[list[tuple[int, int]]] = [[] for _ in self.tasks]
        for edge in self.precedences:
            after[edge.before].append((edge.after, edge.lag_ticks))
        return tuple(map(tuple, after))

    @cached_property
    def predecessors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return for each task its (task before it, lag in ticks), by precedences alone: joins are not among them."""
        before: list[list[tuple[int, int]]] = [[] for _ in self.tasks]
        for edge in self.precedences:
            before[edge.after].append((edge.before, edge.lag_ticks))
        return tuple(map(tuple, before))

    def taken(self, runs: Container[int]) -> tuple[int, ...]:
        """Return for each choice the option under which exactly the tasks of ``runs`` run."""
        return tuple(
            next(k for k, own in enumerate(options) if all((i in runs) == (i in own) for o in options for i in o))
            for options in self.options
        )
