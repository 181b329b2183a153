"""Comparison of a plan with a trace, event by event: where time was lost, and what each late event waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from zbopt.costs.times import tick_ns
from zbopt.problem.instance import Barrier, Kind
from zbopt.problem.schedule import Event, Schedule
from zbopt.replay.trace import Trace, TraceEvent, TraceStep


@dataclass(frozen=True, slots=True)
class ComparedEvent:
    """Hold one event as planned and as it ran, in nanoseconds; the plan's times are scaled to the trace's clock.

    Attributes:
        id: Id of the event that ran.
        planned_start: Planned start.
        start: Observed start.
        planned_duration: Planned duration.
        duration: Observed duration.
        dependency_wait: How long the idle stage waited for the event's input.
        resource_wait: How long the ready event waited for its stage.
        late: How long after both input and stage were there the event started.
        why: What the start waited for, in words.
    """

    id: str
    planned_start: int
    start: int
    planned_duration: int
    duration: int
    dependency_wait: int
    resource_wait: int
    late: int
    why: str

    @property
    def start_error(self) -> int:
        """Return observed minus planned start."""
        return self.start - self.planned_start

    @property
    def duration_error(self) -> int:
        """Return observed minus planned duration."""
        return self.duration - self.planned_duration


@dataclass(frozen=True, slots=True)
class Diff:
    """Hold all compared events in order of observed start, and the figures of the whole step.

    Attributes:
        tick_ns: Nanoseconds that one tick of the plan took.
        planned_makespan: Planned makespan in nanoseconds.
        makespan: Observed makespan in nanoseconds.
        makespan_with_cores: What the makespan would have been if every process had got a core whenever it was ready.
            What is left above the plan is due to the plan's times, the network and PyTorch's runtime.
        events: The events that both plan and trace have.
        missing: Ids of planned events that did not run.
        unplanned: Ids of events that ran and were not planned.
    """

    tick_ns: float
    planned_makespan: int
    makespan: int
    makespan_with_cores: int
    events: tuple[ComparedEvent, ...]
    missing: tuple[str, ...]
    unplanned: tuple[str, ...]

    @property
    def makespan_error(self) -> float:
        """Return (observed - planned) / planned makespan."""
        return (self.makespan - self.planned_makespan) / self.planned_makespan

    def first_late(self, tolerance_ns: int) -> ComparedEvent | None:
        """Return the first event that started more than ``tolerance_ns`` after it could; ``None`` where none did."""
        return next((event for event in self.events if event.late > tolerance_ns), None)


def diff_trace(plan: Schedule, trace: Trace, step: TraceStep | None = None) -> Diff:
    """Compare ``plan`` with one step of ``trace``, by default the median one, event by event.

    B and W that ran as one backward are compared with the observed BW: B gets its start, W its end. Optimizer steps
    count only where the plan has them.

    Raises:
        ValueError: Plan or step has no events, or takes no time.
    """
    step = step or trace.median_step()
    has_optimizer = plan.instance.optimizer_ticks is not None
    observed = {e.event(0).id: e for e in step.events if has_optimizer or e.kind is not Kind.O}
    _require_events(plan, observed)
    matcher = _Matcher(plan, observed, _ns_per_tick(plan, trace, step))
    if matcher.planned_makespan() <= 0:  # all events of the trace take no time, and so does a tick
        raise ValueError("the step of the trace takes no time; give another --step, or run zbopt replay --trace again")
    events = [compared for event in plan.events if (compared := matcher.compared(event)) is not None]
    return Diff(
        tick_ns=matcher.ns_per_tick,
        planned_makespan=matcher.planned_makespan(),
        makespan=max(e.end for e in observed.values()) - matcher.origin,
        makespan_with_cores=matcher.waits.makespan_with_cores(),
        events=tuple(sorted(events, key=lambda event: event.start)),
        missing=tuple(event.id for event in plan.events if matcher.observed_of(event)[0] is None),
        unplanned=tuple(sorted(observed.keys() - matcher.matched)),
    )


def _require_events(plan: Schedule, observed: Mapping[str, TraceEvent]) -> None:
    """Refuse what has no times to compare: every figure here is a ratio or a difference of times."""
    compute_ticks = sum(e.end - e.start for e in plan.events if e.kind is not Kind.O)
    makespan = max((e.end for e in plan.events), default=0) - min((e.start for e in plan.events), default=0)
    if compute_ticks <= 0 or makespan <= 0:
        raise ValueError(_NO_TIME)
    if not observed:
        raise ValueError("the step of the trace has no events; give another --step, or run zbopt replay --trace again")


_NO_TIME = "the plan's events take no time; give a plan that zbopt validate accepts"


def _ns_per_tick(plan: Schedule, trace: Trace, step: TraceStep) -> float:
    """Return the nanoseconds of a tick: what the plan says, what the simulation used, or the ratio of all work."""
    text = plan.instance.tick
    if trace.simulated:
        return trace.network.tick_s * 1e9
    if text != "unit":
        return float(tick_ns(text))
    planned = sum(e.end - e.start for e in plan.events if e.kind is not Kind.O)
    return sum(e.end - e.start for e in step.events if e.kind is not Kind.O) / planned


class _Matcher:
    """Match the planned events with the observed ones; ``matched`` holds the ids of observed events with a match."""

    def __init__(self, plan: Schedule, observed: Mapping[str, TraceEvent], ns_per_tick: float) -> None:
        self.observed, self.ns_per_tick = observed, ns_per_tick
        self.planned = {e.id: e for e in plan.events}
        self.origin = min(e.start for e in observed.values())
        self.plan_origin = min(e.start for e in plan.events)
        self.waits = _WaitAnalysis(plan, observed.values(), ns_per_tick)
        self.matched: set[str] = set()

    def planned_makespan(self) -> int:
        """Return the planned makespan in nanoseconds."""
        return round((max(e.end for e in self.planned.values()) - self.plan_origin) * self.ns_per_tick)

    def compared(self, event: Event) -> ComparedEvent | None:
        """Compare a planned event with what ran; ``None`` where it did not run, or is the W of a whole backward."""
        found, joined = self.observed_of(event)
        if found is None:
            return None
        name = found.event(0).id
        self.matched.add(name)
        if joined and event.kind is Kind.W:
            return None
        dependency, resource, late, why = self.waits.of(found)
        return ComparedEvent(
            id=name,
            planned_start=round((event.start - self.plan_origin) * self.ns_per_tick),
            start=found.start - self.origin,
            planned_duration=round(self._planned_ticks(event, joined) * self.ns_per_tick),
            duration=found.end - found.start,
            dependency_wait=dependency,
            resource_wait=resource,
            late=late,
            why=why,
        )

    def observed_of(self, event: Event) -> tuple[TraceEvent | None, bool]:
        """Return the observed event, and whether it is the BW as which a planned B or W ran."""
        found = self.observed.get(event.id)
        if found is None and event.kind in (Kind.B, Kind.W):
            joined = self.observed.get(event.id.rpartition("/")[0] + "/BW")
            return joined, joined is not None
        return found, False

    def _planned_ticks(self, event: Event, joined: bool) -> int:
        """Return the planned duration of an event, and of its W where both ran as one."""
        weight = self.planned.get(event.id.rpartition("/")[0] + "/W") if joined else None
        return event.end - event.start + (weight.end - weight.start if weight else 0)


class _WaitAnalysis:
    """Find out what each observed event waited for: its input, its stage, or a core of the machine."""

    def __init__(self, plan: Schedule, events: Iterable[TraceEvent], ns_per_tick: float) -> None:
        self.instance = plan.instance
        self.ns_per_tick, self.comm_ns = ns_per_tick, plan.instance.comm_ticks * ns_per_tick
        self.ticks = {(e.kind, e.stage, e.virtual_stage, e.microbatch): e.end - e.start for e in plan.events}
        self.events = sorted(events, key=lambda e: e.start)
        self.origin = self.events[0].start
        self.by_op = {(e.kind, e.virtual_stage, e.microbatch): e for e in self.events}
        self.before: dict[int, TraceEvent] = {}
        self.after: dict[int, TraceEvent] = {}
        by_stage: dict[int, list[TraceEvent]] = defaultdict(list)
        for event in self.events:
            by_stage[event.stage].append(event)
        for order in by_stage.values():
            for before, after in pairwise(order):
                self.before[id(after)], self.after[id(before)] = before, after

    def of(self, event: TraceEvent) -> tuple[int, int, int, str]:
        """Return dependency wait, resource wait and lateness of ``event``, and what its start waited for in words."""
        source, ready = self._input(event)
        before = self.before.get(id(event))
        free = before.end if before else self.origin
        late = max(0, event.start - max(ready, free))
        if source is not None and ready > free:
            why = f"input from {source.event(0).id}"
        else:
            why = f"stage busy with {before.event(0).id}" if before else "nothing"
        if late and event.start - event.asked >= late / 2:
            why = f"its message came late, after {why}"
        elif late:
            why = f"PyTorch's runtime turned to it late, after {why}"
        return max(0, ready - free), max(0, free - ready), late, why

    def makespan_with_cores(self) -> int:
        """Repeat the events in order without the time in which one, or the sender of its input, had no core.

        No event gets shorter than planned: lack of a core explains only the time beyond the plan.
        """
        ends: dict[int, int] = {}
        for event in sorted(self.events, key=lambda e: e.end):
            source, ready = self._input(event)
            before = self.before.get(id(event))
            free_before = before.end if before else self.origin
            # An event of a damaged trace may end before its input does; its recorded end is then all there is.
            free = ends.get(id(before), free_before) if before else self.origin
            arrival = ends.get(id(source), source.end) + ready - source.end if source else self.origin
            ends[id(event)] = max(free, arrival) + self._duration_with_cores(event, source, max(ready, free_before))
        return max(ends.values()) - self.origin

    def _duration_with_cores(self, event: TraceEvent, source: TraceEvent | None, could_start: int) -> int:
        """Return how long an event takes from when it could start, less the time without a core.

        Where the input came from another stage, the time that its sender had no core after it counts too: the message
        leaves only when the sender runs on.
        """
        took = event.end - could_start
        sent_from_elsewhere = source is not None and source.stage != event.stage
        sender = self.after.get(id(source)) if sent_from_elsewhere else None
        without_core = event.core_wait_ns + (sender.core_wait_ns if sender else 0)
        return max(min(took, round(self.planned_ns(event))), took - without_core)

    def planned_ns(self, event: TraceEvent) -> float:
        """Return the planned duration of an event; of a BW that was B and W in the plan that of both."""
        kinds = {Kind.B, Kind.W, Kind.BW} if event.kind is Kind.BW else {event.kind}
        ticks = (self.ticks.get((kind, event.stage, event.virtual_stage, event.microbatch), 0) for kind in kinds)
        return self.ns_per_tick * sum(ticks)

    def _input(self, event: TraceEvent) -> tuple[TraceEvent | None, int]:
        """Return the event whose output comes last, and when it is there; ``None`` and the step's start if none."""
        sources = self._sources(event)
        if not sources:
            return None, self.origin
        last = max(sources, key=lambda source: source.end)
        travels = last.stage != event.stage and event.kind is not Kind.O
        return last, last.end + (round(self.comm_ns) if travels else 0)

    def _sources(self, event: TraceEvent) -> Sequence[TraceEvent]:
        """Return the observed events whose outputs ``event`` needs."""
        v, micro = event.virtual_stage, event.microbatch
        if event.kind is Kind.O or v is None:
            everywhere = self.instance.barrier is Barrier.GLOBAL
            gradients = [e for e in self.events if e.kind in (Kind.W, Kind.BW)]
            return [e for e in gradients if everywhere or e.stage == event.stage]
        if event.kind is Kind.F:
            keys = [(Kind.F, v - 1, micro)]
        elif event.kind is Kind.W:
            keys = [(Kind.B, v, micro)]
        elif v == self.instance.virtual_stages - 1:
            keys = [(Kind.F, v, micro)]
        else:
            keys = [(Kind.B, v + 1, micro), (Kind.BW, v + 1, micro)]
        return [self.by_op[key] for key in keys if key in self.by_op]


def diff_page(found: Diff, first: ComparedEvent | None, count: int) -> Iterator[str]:
    """Yield the figures of the whole step, the ``count`` latest events, and the first one that was late."""
    yield (
        f"makespan {found.makespan / 1e6:.2f} ms, planned {found.planned_makespan / 1e6:.2f} ms "
        f"({100 * found.makespan_error:+.1f} %; a tick is {found.tick_ns / 1e6:.4g} ms); "
        f"{len(found.missing)} events missing, {len(found.unplanned)} not planned"
    )
    if found.makespan_with_cores < found.makespan:
        yield f"with a core for every process whenever it was ready: {found.makespan_with_cores / 1e6:.2f} ms"
    if count and found.events:
        yield "latest events, in ms: start and length beyond the plan's, waits for input and stage, late beyond those"
        head = "".join(f"{name:>10}" for name in ("start", "length", "input", "stage", "late"))
        yield f"  {'op':<22}{head}  why"
    for event in sorted(found.events, key=lambda e: -e.late)[:count]:
        times = (event.start_error, event.duration_error, event.dependency_wait, event.resource_wait, event.late)
        yield f"  {event.id:<22}" + "".join(f"{time / 1e6:>10.2f}" for time in times) + f"  {event.why}"
    if first is not None:
        yield f"first late: {first.id}, {first.late / 1e6:.2f} ms after it could: {first.why}"
