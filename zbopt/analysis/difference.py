"""Where two schedules part, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from zbopt.problem.schedule import Event, Schedule


class Parting(StrEnum):
    """How two rows part."""

    ORDER = "order"
    """Another op comes at this place, or none."""
    TIME = "time"
    """The same ops in the same order to the end; from this place on at other times."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place, counted from 0, at which ``stage`` goes otherwise; ``None``: one row has ended there."""

    stage: int
    position: int
    parting: Parting
    first: Event | None
    second: Event | None

    @property
    def tick(self) -> int:
        """When the earlier of the two ops starts."""
        return min(e.start for e in (self.first, self.second) if e is not None)


def divergences(first: Schedule, second: Schedule) -> tuple[Divergence | None, ...]:
    """The first divergence of each stage, ``None`` where it does the same at the same times.

    Args:
        first: A schedule.
        second: Another, of the same or another instance; a stage that only one has is empty in the other.
    """
    rows = zip_longest(first.by_stage(), second.by_stage(), fillvalue=())
    return tuple(next(_partings(stage, a, b), None) for stage, (a, b) in enumerate(rows))


def first_divergence(first: Schedule, second: Schedule) -> Divergence | None:
    """The one that comes first in time, another order before other times alone; ``None``: there is none."""
    found = [d for d in divergences(first, second) if d is not None]
    return min(found, key=lambda d: (d.parting is Parting.TIME, d.tick, d.stage), default=None)


def _partings(stage: int, first: tuple[Event, ...], second: tuple[Event, ...]) -> Iterator[Divergence]:
    pairs = list(enumerate(zip_longest(first, second)))
    for position, (a, b) in pairs:
        if _op(a) != _op(b):
            yield Divergence(stage, position, Parting.ORDER, a, b)
    for position, (a, b) in pairs:
        if a is not None and b is not None and (a.start, a.end) != (b.start, b.end):
            yield Divergence(stage, position, Parting.TIME, a, b)


def _op(e: Event | None) -> tuple[object, ...] | None:
    return None if e is None else (e.iteration, e.kind, e.virtual_stage, e.microbatch)
