"""Differences between two schedules, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from zbopt.problem.schedule import Event, Schedule


class Parting(StrEnum):
    """Name the two ways in which the ops of a stage may differ."""

    ORDER = "order"
    """Another op comes at this position, or none."""
    TIME = "time"
    """The stage runs the same ops in the same order, but this op at another time."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Represent the first position, counted from 0, at which two schedules differ on ``stage``.

    ``first`` and ``second`` are their ops there; ``None``: that schedule has no more ops on the stage.
    """

    stage: int
    position: int
    parting: Parting
    first: Event | None
    second: Event | None

    @property
    def tick(self) -> int:
        """Return the tick at which the earlier of the two ops starts."""
        return min(e.start for e in (self.first, self.second) if e is not None)


def divergences(first: Schedule, second: Schedule) -> tuple[Divergence | None, ...]:
    """Return the first divergence of each stage; ``None`` where it runs the same ops at the same times.

    Args:
        first: A schedule.
        second: Another, of the same or another instance; a stage that only one has is empty in the other.
    """
    stages = zip_longest(first.by_stage(), second.by_stage(), fillvalue=())
    return tuple(next(_partings(stage, a, b), None) for stage, (a, b) in enumerate(stages))


def first_divergence(first: Schedule, second: Schedule) -> Divergence | None:
    """Return the earliest divergence, one of order before any of times alone; ``None``: the schedules are equal."""
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
