"""The result of one instance in a run, and the records that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from zbopt.problem.instance import Objective
from zbopt.problem.schedule import Engine, Status

Key = tuple[str, Objective]
"""An instance's file name without its suffix, and what is minimised."""


@dataclass(frozen=True, slots=True)
class BestKnown:
    """Hold the best bound, what proved it, and the best value on record, in ticks.

    ``value`` is ``None`` where no schedule is known.
    """

    lower_bound: int
    value: int | None
    proved_by: str
    version: str
    date: str


@dataclass(frozen=True, slots=True)
class Peer:
    """Hold what a published scheduler reaches, in ticks; a fraction where it cuts a stage in two."""

    scheduler: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEngineResult:
    """Hold what another engine made of the same instance in the same run, in ticks.

    ``error`` says why there is no result.
    """

    engine: Engine
    status: Status = Status.UNKNOWN
    value: int | None = None
    bound: int | None = None
    wall_time_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """Hold the result of one instance, as a row of the table. Values are in ticks, ``None`` where there is none.

    Attributes:
        instance: The instance's file name without its suffix.
        objective: What is minimised.
        status: What is proved of the value.
        value: Value of the best schedule found.
        bound: Best lower bound proved.
        proved_by: The argument behind the bound.
        found_by: What found the schedule.
        wall_time_s: Seconds that the solve took.
        known: What was on record before the run; ``None`` where nothing was.
        peer: The best published scheduler under the same objective; ``None`` where none is on record.
        reference: What the engine of ``--against`` made of the instance; ``None`` where none was asked for.
        interrupted: Whether Ctrl-C ended the solve.
        error: Why the solve failed, or how the result contradicts another; ``None`` where all is well.
        asked: Digest of the instance, which tells it from another one of the same name.
    """

    instance: str
    objective: Objective
    status: Status
    value: int | None = None
    bound: int | None = None
    proved_by: str | None = None
    found_by: str | None = None
    wall_time_s: float = 0.0
    known: BestKnown | None = None
    peer: Peer | None = None
    reference: OtherEngineResult | None = None
    interrupted: bool = False
    error: str | None = None
    asked: str = ""

    @property
    def key(self) -> Key:
        """Return the key under which the row is filed."""
        return self.instance, self.objective

    @property
    def gap(self) -> float | None:
        """Return (value - bound) / value; ``None`` without a value or a bound."""
        return None if self.value is None or self.bound is None else (self.value - self.bound) / self.value

    @property
    def ratio(self) -> float | None:
        """Return the value over the peer's value; ``None`` where one of the two is missing."""
        return None if self.value is None or self.peer is None else self.value / self.peer.value

    @property
    def times_faster(self) -> float | None:
        """Return the seconds of the other engine's proof over those of this solve; ``None`` if it proved nothing."""
        if self.reference is None or self.reference.status is not Status.OPTIMAL:
            return None
        return self.reference.wall_time_s / max(self.wall_time_s, 0.001)  # a proof can take less than a clock shows

    @property
    def better_value(self) -> bool:
        """Tell whether the value is below the one on record, or the first one."""
        known = self.known.value if self.known is not None else None
        return self.value is not None and (known is None or self.value < known)

    @property
    def better_bound(self) -> bool:
        """Tell whether the bound is above the one on record, or the first one."""
        return self.bound is not None and (self.known is None or self.bound > self.known.lower_bound)
