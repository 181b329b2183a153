"""One instance of a run, and what is known of it beside."""

from __future__ import annotations

from dataclasses import dataclass

from zbopt.problem.instance import Objective
from zbopt.problem.schedule import Engine, Status

Key = tuple[str, Objective]
"""An instance's file name without its suffix, and what is minimised."""


@dataclass(frozen=True, slots=True)
class Known:
    """Best bound (and what proved it) and value on record, in ticks; ``value`` is ``None`` where no schedule is."""

    lower_bound: int
    value: int | None
    proved_by: str
    version: str
    date: str


@dataclass(frozen=True, slots=True)
class Peer:
    """What a published scheduler reaches, in ticks (a fraction where it halves a stage)."""

    scheduler: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What another engine made of the same instance in the same run, in ticks; ``error`` says why it made nothing."""

    engine: Engine
    status: Status = Status.UNKNOWN
    value: int | None = None
    bound: int | None = None
    wall_time_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One instance of a run. Values in ticks, ``None`` where there is none; ``error`` says why it failed.

    ``known`` is what was on record before the run, ``peer`` the best published scheduler under the same objective;
    ``asked`` tells the instance from another one of its name.
    """

    instance: str
    objective: Objective
    status: Status
    value: int | None = None
    bound: int | None = None
    proved_by: str | None = None
    found_by: str | None = None
    wall_time_s: float = 0.0
    known: Known | None = None
    peer: Peer | None = None
    reference: Reference | None = None
    interrupted: bool = False
    error: str | None = None
    asked: str = ""

    @property
    def key(self) -> Key:
        """What the row is filed under."""
        return self.instance, self.objective

    @property
    def gap(self) -> float | None:
        """(value - bound) / value; ``None`` without a value."""
        return None if self.value is None or self.bound is None else (self.value - self.bound) / self.value

    @property
    def ratio(self) -> float | None:
        """Value over the peer's; ``None`` without either."""
        return None if self.value is None or self.peer is None else self.value / self.peer.value

    @property
    def times_faster(self) -> float | None:
        """Seconds of the other engine's proof over this one's; ``None`` where that proved nothing."""
        if self.reference is None or self.reference.status is not Status.OPTIMAL:
            return None
        return self.reference.wall_time_s / max(self.wall_time_s, 0.001)

    @property
    def better_value(self) -> bool:
        """The value is below the one on record, or there was none."""
        known = self.known.value if self.known is not None else None
        return self.value is not None and (known is None or self.value < known)

    @property
    def better_bound(self) -> bool:
        """The bound is above the one on record, or there was none."""
        return self.bound is not None and (self.known is None or self.bound > self.known.lower_bound)
