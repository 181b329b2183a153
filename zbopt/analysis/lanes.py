"""The rows of every chart: each stage's compute, and below it what runs beside that, on links and ports.

A row holds what one event at a time may have: a directed link, a port, the link to the host, the reductions. A plain
schedule has compute alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from zbopt.problem.instance import COMPUTE, Instance, Kind, ReductionOccupies
from zbopt.problem.schedule import Event, Schedule, second_halves

_PORT, _SEND, _TO, _HOST, _REDUCTIONS = _ORDER = ("port", "send", "to", "host", "reduce")


@dataclass(frozen=True, slots=True)
class Lane:
    """Events of one resource in order of start. ``beside`` is what it is called; ``None``: the stage's compute."""

    stage: int
    beside: str | None
    events: tuple[Event, ...]

    @property
    def label(self) -> str:
        """Its name in front of the chart."""
        return f"stage {self.stage}" if self.beside is None else f"  {self.beside}"


def lanes_of(schedule: Schedule) -> tuple[Lane, ...]:
    """The rows of ``schedule``, by stage. A transfer on ports is in the row of either stage's port."""
    found: defaultdict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in schedule.events:
        for stage, name in _places(schedule.instance, event):
            found[stage, name].append(event)
    for event in collectives(schedule):
        found[event.stage, _PORT].append(event)
    rows = []
    for stage, compute in enumerate(schedule.by_stage()):
        rows.append(Lane(stage, None, compute))
        for name in sorted((name for s, name in found if s == stage), key=_rank):
            rows.append(Lane(stage, name, tuple(sorted(found[stage, name], key=attrgetter("start", "end")))))
    return tuple(rows)


def _rank(name: str) -> tuple[int, int, str]:
    return _ORDER.index(name.split()[0]), len(name), name


def _places(instance: Instance, event: Event) -> Iterator[tuple[int, str]]:
    """Stage and name of each row beside compute in which an event is."""
    stage, kind = event.stage, event.kind
    if kind in COMPUTE or not 0 <= stage < instance.stages:
        return
    if kind in (Kind.OUT, Kind.IN):
        yield stage, _HOST if instance.host_link is None else f"{_HOST} {instance.host_link[stage]}"
    elif kind is Kind.G:
        yield stage, _reductions_of(instance, stage)
    else:
        to = receiver_of(instance, event)
        if instance.occupies_ports:
            yield from ((s, _PORT) for s in (stage, to) if s is not None)
        else:
            yield stage, _SEND if to is None else f"{_TO} {to}"


def _reductions_of(instance: Instance, stage: int) -> str:
    if instance.reduction_occupies is ReductionOccupies.PORT:
        return _PORT
    if instance.reduction_occupies is ReductionOccupies.NODE:
        return f"{_REDUCTIONS} {stage // (instance.stages_per_node or 1)}"
    return _REDUCTIONS


def receiver_of(instance: Instance, event: Event) -> int | None:
    """Stage to which a transfer goes; ``None``: its virtual stage does not exist, or is at the end of its route."""
    v = event.virtual_stage
    if v is None or not 0 <= v < instance.virtual_stages:
        return None
    to = instance.goes_to(event.kind, v)
    return None if to is None else instance.stage_of[to]


def collectives(schedule: Schedule) -> Iterator[Event]:
    """The windows in which ops hold their stage's port, each as its op cut to the window."""
    for inside in schedule.instance.collectives or ():
        for event in schedule.events:
            if event.kind is inside.kind and 0 <= event.stage < schedule.instance.stages:
                start = event.start + inside.start
                yield replace(event, start=start, end=start + inside.ticks)


def extent(schedule: Schedule) -> tuple[int, int]:
    """First start, or 0 where inputs have times, and last end of all stages' events, in ticks; 0 and 0 without any."""
    events = [event for event in schedule.events if 0 <= event.stage < schedule.instance.stages]
    first = min((e.start for e in events), default=0)
    begin = first if schedule.instance.input_ready_ticks is None else min(0, first)
    return begin, max((e.end for e in events), default=0)


def seconds_of(instance: Instance, row: Lane) -> dict[int, Event]:
    """By ``id`` of each F that is one op with a BW, that BW. A chart draws the F above it, each half as high."""
    seconds = second_halves(instance, row.events) if row.beside is None else []
    by_interval = {(e.start, e.end): e for e in seconds}
    return {
        id(e): by_interval[e.start, e.end] for e in row.events if e.kind is Kind.F and (e.start, e.end) in by_interval
    }


def kinds_of(rows: Sequence[Lane]) -> list[Kind]:
    """Kinds of all events that take time, in the order of the legend."""
    used = {event.kind for row in rows for event in row.events if event.end > event.start}
    return [kind for kind in Kind if kind in used]


def nth_of(instance: Instance) -> tuple[int, ...]:
    """For each virtual stage, how many virtual stages its stage holds before it."""
    seen: defaultdict[int, int] = defaultdict(int)
    numbers = []
    for stage in instance.stage_of:
        numbers.append(seen[stage])
        seen[stage] += 1
    return tuple(numbers)
