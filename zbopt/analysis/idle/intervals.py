"""Idle time as data: causes, intervals, sums over a window of time, and ops that could use an interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zbopt.problem.schedule import Event


class Cause(StrEnum):
    """Name why a stage was idle."""

    FILL = "fill"
    """The stage had not run its first op yet."""
    DRAIN = "drain"
    """The stage had run its last op."""
    DEPENDENCY = "dependency"
    """The input of the op that came next was not computed yet."""
    INPUT = "input"
    """The op that came next is the first of its microbatch, whose data were not ready yet."""
    TRANSFER = "transfer"
    """The input of the op that came next was computed, and on its way."""
    LINK = "link"
    """The transfer that was to bring the input waited for its link or its turn there; or the input had arrived, and a
    collective inside the op that came next waited for the port."""
    HELD = "held"
    """A blocking transfer, to or from the stage, kept it from computing."""
    MEMORY = "memory"
    """The next F of the stage had its input, but the memory cap had no room; the op that came next had no input yet."""
    BARRIER = "barrier"
    """O came next, and waited for the gradients that its barrier names, and for their reduction."""
    ORDER = "order"
    """The op that came next could have started; only the order or the times of the schedule kept it."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Say that ``stage`` ran nothing in [start, end), for one cause.

    ``before`` is the op that ran next, ``None`` for ``drain``. ``waits_for`` is the op whose end had to come first: the
    input's producer; for ``memory`` the next op of the stage that gives memory back; ``None`` where there is none.
    """

    stage: int
    start: int
    end: int
    cause: Cause
    before: Event | None
    waits_for: Event | None

    @property
    def ticks(self) -> int:
        """Return the length of the interval."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Avoidable:
    """Represent an idle interval that a better order could use, from tick ``usable_from``.

    ``op`` ran later on the same stage and could have run in the interval; or, where ``by_split``, it is a BW of another
    stage that would have handed on its gradient earlier as B and W.
    """

    idle: Idle
    op: Event
    usable_from: int
    by_split: bool

    @property
    def ticks(self) -> int:
        """Return the ticks of the interval that could be used."""
        return self.idle.end - self.usable_from


@dataclass(frozen=True, slots=True)
class IdleWindow:
    """Hold the idle ticks of ``stages`` stages from tick ``begin`` to ``end``, by cause."""

    begin: int
    end: int
    stages: int
    by_cause: Mapping[Cause, int]

    @property
    def total(self) -> int:
        """Return the ticks of all stages together, the denominator of shares."""
        return (self.end - self.begin) * self.stages

    @property
    def idle(self) -> int:
        """Return the idle ticks of all causes."""
        return sum(self.by_cause.values())

    def share(self, ticks: int) -> float | None:
        """Return ``ticks`` as a share of the total; ``None`` where the total is zero."""
        return ticks / self.total if self.total else None
