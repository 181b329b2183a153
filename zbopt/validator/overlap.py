"""Overlapped ops: an F and a BW that run as one op, two events with one interval, as long as the instance says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event


def overlapped_pairs(instance: Instance, ops: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    """Yield the pairs (F, BW) among the ops of a stage; each F and each BW is in one pair at most."""
    times = instance.overlapped_ticks
    if times is None:
        return
    fitting = [e for e in ops if e.end - e.start == times[e.stage]]
    forwards = {(e.start, e.end): e for e in fitting if e.kind is Kind.F}
    for event in fitting:
        if event.kind is Kind.BW and (event.start, event.end) in forwards:
            yield forwards.pop((event.start, event.end)), event
