"""What only one thing at a time may have: who has it, and who starts meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

from zbopt.problem.schedule import Event


class Held(NamedTuple):
    """``event`` holds a link or a port from ``start`` to ``end``, which may be a part of its time."""

    start: int
    end: int
    event: Event


class _Spans(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


_T = TypeVar("_T", bound=_Spans)


def whole(events: Iterable[Event]) -> list[Held]:
    """What events hold for all of their time."""
    return [Held(e.start, e.end, e) for e in events]


def overlaps(row: Iterable[_T]) -> Iterator[tuple[_T, _T]]:
    """(what has it, what starts meanwhile), in order of start; what has no length overlaps strictly inside only."""
    longest: _T | None = None
    for held in sorted(row, key=attrgetter("start", "end")):
        if longest is not None and held.start < longest.end:
            yield longest, held
        if longest is None or held.end > longest.end:
            longest = held
