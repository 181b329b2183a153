"""An F and a BW that a stage runs as one op: two events with one interval, of a length that the instance gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event


def overlapped_pairs(instance: Instance, row: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    """The pairs of a stage's events; each F and each BW is in one at most."""
    times = instance.overlapped_ticks
    if times is None:
        return
    fitting = [e for e in row if e.end - e.start == times[e.stage]]
    forwards = {(e.start, e.end): e for e in fitting if e.kind is Kind.F}
    for event in fitting:
        if event.kind is Kind.BW and (event.start, event.end) in forwards:
            yield forwards.pop((event.start, event.end)), event
