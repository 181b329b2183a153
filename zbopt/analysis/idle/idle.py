"""What is said of idle time: its causes, its intervals, windows of it, and what could use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zbopt.problem.schedule import Event


class Cause(StrEnum):
    """Why a stage was idle."""

    FILL = "fill"
    """Before the stage's first op."""
    DRAIN = "drain"
    """After the stage's last op."""
    DEPENDENCY = "dependency"
    """The input of the op that came next was not computed yet."""
    INPUT = "input"
    """The op that came next is the first of its microbatch, whose data were not ready yet."""
    TRANSFER = "transfer"
    """That input was computed, and on its way."""
    LINK = "link"
    """That input was computed, and what was to bring it waited for its link, or for its turn there; or the input was
    there, and a collective inside the op waited for the port."""
    HELD = "held"
    """A blocking transfer, to or from the stage, held its compute."""
    MEMORY = "memory"
    """The next F of the stage had its input, the memory cap had no room for it, and the op that came next had none."""
    BARRIER = "barrier"
    """O came next, and waited for the gradients that its barrier names and for their reduction."""
    ORDER = "order"
    """Nothing: the op that came next could have started."""


@dataclass(frozen=True, slots=True)
class Idle:
    """``stage`` ran nothing in [start, end), for one cause.

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
        """Length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Avoidable:
    """An idle interval that a better order could use, from tick ``usable_from``.

    ``op`` ran later on the same stage and could have run here; or, where ``by_split``, it is a BW of another stage
    that would have handed on its gradient earlier as B and W.
    """

    idle: Idle
    op: Event
    usable_from: int
    by_split: bool

    @property
    def ticks(self) -> int:
        """Ticks of the interval that could be used."""
        return self.idle.end - self.usable_from


@dataclass(frozen=True, slots=True)
class Window:
    """Idle ticks of ``stages`` stages from tick ``begin`` to ``end``, by cause; ``total`` is what shares are of."""

    begin: int
    end: int
    stages: int
    by_cause: Mapping[Cause, int]

    @property
    def total(self) -> int:
        """All ticks of all stages."""
        return (self.end - self.begin) * self.stages

    @property
    def idle(self) -> int:
        """Idle ticks of all causes."""
        return sum(self.by_cause.values())

    def share(self, ticks: int) -> float | None:
        """``ticks`` as a share of the total; ``None`` where that is zero."""
        return ticks / self.total if self.total else None
