"""Lanes of a chart: one for each stage's compute, and below it one for each other resource that events occupy.

Other resources are a directed link, a port, the link to the host, and the reductions. A schedule without transfers,
offloads and reductions has compute lanes alone.
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
    """Hold the events of one resource by start. ``resource`` is its name; ``None``: the stage's compute."""

    stage: int
    resource: str | None
    events: tuple[Event, ...]

    @property
    def label(self) -> str:
        """Return the name of the lane as it stands in front of the chart."""
        return f"stage {self.stage}" if self.resource is None else f"  {self.resource}"


def lanes_of(schedule: Schedule) -> tuple[Lane, ...]:
    """Return the lanes of ``schedule``, by stage. A transfer on ports is in the lanes of both stages' ports."""
    found: defaultdict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in schedule.events:
        for stage, name in _resources(schedule.instance, event):
            found[stage, name].append(event)
    for event in collectives(schedule):
        found[event.stage, _PORT].append(event)
    names: defaultdict[int, list[str]] = defaultdict(list)
    for stage, name in found:
        names[stage].append(name)
    lanes = []
    for stage, compute in enumerate(schedule.by_stage()):
        lanes.append(Lane(stage, None, compute))
        for name in sorted(names[stage], key=_rank):
            lanes.append(Lane(stage, name, tuple(sorted(found[stage, name], key=attrgetter("start", "end")))))
    return tuple(lanes)


def _rank(name: str) -> tuple[int, int, str]:
    return _ORDER.index(name.split()[0]), len(name), name


def _resources(instance: Instance, event: Event) -> Iterator[tuple[int, str]]:
    """Yield stage and name of each lane, compute lanes left out, that shows an event."""
    stage, kind = event.stage, event.kind
    if kind in COMPUTE or not 0 <= stage < instance.stages:
        return
    if kind in (Kind.OUT, Kind.IN):
        yield stage, _HOST if instance.host_link is None else f"{_HOST} {instance.host_link[stage]}"
    elif kind is Kind.G:
        yield stage, _reductions_of(instance, stage)
    else:
        receiver = receiver_of(instance, event)
        if instance.occupies_ports:
            yield from ((s, _PORT) for s in (stage, receiver) if s is not None)
        else:
            yield stage, _SEND if receiver is None else f"{_TO} {receiver}"


def _reductions_of(instance: Instance, stage: int) -> str:
    if instance.reduction_occupies is ReductionOccupies.PORT:
        return _PORT
    if instance.reduction_occupies is ReductionOccupies.NODE:
        return f"{_REDUCTIONS} {stage // (instance.stages_per_node or 1)}"
    return _REDUCTIONS


def receiver_of(instance: Instance, event: Event) -> int | None:
    """Return the stage that receives a transfer; ``None``: its virtual stage is unknown, or ends its route."""
    v = event.virtual_stage
    if v is None or not 0 <= v < instance.virtual_stages:
        return None
    receiver = instance.goes_to(event.kind, v)
    return None if receiver is None else instance.stage_of[receiver]


def collectives(schedule: Schedule) -> Iterator[Event]:
    """Yield the op of each collective on its stage's port, cut to the time in which the collective has the port."""
    for inside in schedule.instance.collectives or ():
        for event in schedule.events:
            if event.kind is inside.kind and 0 <= event.stage < schedule.instance.stages:
                start = event.start + inside.start
                yield replace(event, start=start, end=start + inside.ticks)


def extent(schedule: Schedule) -> tuple[int, int]:
    """Return the first start and the last end of all stages' events, in ticks; (0, 0) without events.

    Where inputs have times, the first of the two is 0 or the first start, whichever is less.
    """
    events = [event for event in schedule.events if 0 <= event.stage < schedule.instance.stages]
    first = min((e.start for e in events), default=0)
    begin = first if schedule.instance.input_ready_ticks is None else min(0, first)
    return begin, max((e.end for e in events), default=0)


def overlapped_backwards(instance: Instance, lane: Lane) -> dict[int, Event]:
    """Return the BW of each F that runs as one op with a BW, by ``id`` of the F.

    A chart draws the F above the BW, each half as high as a lane.
    """
    seconds = second_halves(instance, lane.events) if lane.resource is None else []
    by_interval = {(e.start, e.end): e for e in seconds}
    return {
        id(e): by_interval[e.start, e.end] for e in lane.events if e.kind is Kind.F and (e.start, e.end) in by_interval
    }


def kinds_of(lanes: Sequence[Lane]) -> list[Kind]:
    """Return the kinds of all events that take time, in the order of the legend."""
    used = {event.kind for lane in lanes for event in lane.events if event.end > event.start}
    return [kind for kind in Kind if kind in used]


def local_stage_numbers(instance: Instance) -> tuple[int, ...]:
    """Return, for each virtual stage, how many virtual stages with lower numbers its stage holds."""
    seen: defaultdict[int, int] = defaultdict(int)
    numbers = []
    for stage in instance.stage_of:
        numbers.append(seen[stage])
        seen[stage] += 1
    return tuple(numbers)
