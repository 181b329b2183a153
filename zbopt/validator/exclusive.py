"""Resources that one event at a time may occupy: stages, links and ports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

from zbopt.problem.schedule import Event


class Occupation(NamedTuple):
    """Say that ``event`` occupies a link or port from ``start`` to ``end``, which may be a part of its time."""

    start: int
    end: int
    event: Event


class _Interval(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


_T = TypeVar("_T", bound=_Interval)


def occupations_of(events: Iterable[Event]) -> list[Occupation]:
    """Return the occupations of events that occupy a resource for all of their time."""
    return [Occupation(e.start, e.end, e) for e in events]


def overlaps(intervals: Iterable[_T]) -> Iterator[tuple[_T, _T]]:
    """Yield (interval that occupies the resource, interval that starts meanwhile), by start.

    An interval without length overlaps only one that it lies strictly inside of.
    """
    longest: _T | None = None
    for interval in sorted(intervals, key=attrgetter("start", "end")):
        if longest is not None and interval.start < longest.end:
            yield longest, interval
        if longest is None or interval.end > longest.end:
            longest = interval
