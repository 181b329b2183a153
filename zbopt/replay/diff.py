"""Plan against trace: where time was lost, joined by event id, and what each late event waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from zbopt.costs.times import tick_ns
from zbopt.problem.instance import Barrier, Kind
from zbopt.problem.schedule import Event, Schedule
from zbopt.replay.trace import Trace, TraceEvent, TraceStep


@dataclass(frozen=True, slots=True)
class Row:
    """One event, in plan and trace. Times in nanoseconds; the plan's are scaled to the trace's clock.

    ``dependency_wait`` is how long the idle stage waited for the event's input, ``resource_wait`` how long the ready
    event waited for its stage, ``late`` how long it started after it could: both input and stage were there.
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
        """Observed minus planned start."""
        return self.start - self.planned_start

    @property
    def duration_error(self) -> int:
        """Observed minus planned duration."""
        return self.duration - self.planned_duration


@dataclass(frozen=True, slots=True)
class Diff:
    """All rows in order of observed start, and the whole's figures. ``tick_ns`` is what one tick of the plan took.

    ``makespan_with_cores`` is what the makespan would have been had every process got a core when it was ready: the
    rest is the plan's, the network's and the engine's.
    """

    tick_ns: float
    planned_makespan: int
    makespan: int
    makespan_with_cores: int
    rows: tuple[Row, ...]
    missing: tuple[str, ...]
    unplanned: tuple[str, ...]

    @property
    def makespan_error(self) -> float:
        """(observed - planned) / planned."""
        return (self.makespan - self.planned_makespan) / self.planned_makespan

    def first_late(self, tolerance_ns: int) -> Row | None:
        """The first event that started more than ``tolerance_ns`` after it could; ``None``: there is none."""
        return next((row for row in self.rows if row.late > tolerance_ns), None)


def _tick_ns(plan: Schedule, trace: Trace, step: TraceStep) -> float:
    """Nanoseconds of a tick: what the plan says, what the simulation was told, or the ratio of all work."""
    text = plan.instance.tick
    if trace.simulated:
        return trace.network.tick_s * 1e9
    if text != "unit":
        return float(tick_ns(text))
    planned = sum(e.end - e.start for e in plan.events if e.kind is not Kind.O)
    return sum(e.end - e.start for e in step.events if e.kind is not Kind.O) / planned


def compare(plan: Schedule, trace: Trace, step: TraceStep | None = None) -> Diff:
    """Join ``plan`` and one step of ``trace`` (by default the median one) by event id.

    B and W that ran as one backward are joined with the observed BW: B takes its start, W its end. Optimizer steps
    count only where the plan has them.
    """
    step = step or trace.best_step()
    steps = plan.instance.optimizer_ticks is not None
    observed = {e.event(0).id: e for e in step.events if steps or e.kind is not Kind.O}
    join = _Join(plan, observed, _tick_ns(plan, trace, step))
    rows = [row for event in plan.events if (row := join.row(event)) is not None]
    return Diff(
        tick_ns=join.scale,
        planned_makespan=round((max(e.end for e in plan.events) - join.plan_origin) * join.scale),
        makespan=max(e.end for e in observed.values()) - join.origin,
        makespan_with_cores=join.waits.makespan_with_cores(),
        rows=tuple(sorted(rows, key=lambda row: row.start)),
        missing=tuple(event.id for event in plan.events if _observed(event, observed)[0] is None),
        unplanned=tuple(sorted(observed.keys() - join.seen)),
    )


class _Join:
    """One plan beside one step; notes in ``seen`` which observed events had a planned one."""

    def __init__(self, plan: Schedule, observed: Mapping[str, TraceEvent], scale: float) -> None:
        self.observed, self.scale = observed, scale
        self.planned = {e.id: e for e in plan.events}
        self.origin = min(e.start for e in observed.values())
        self.plan_origin = min(e.start for e in plan.events)
        self.waits = _Waits(plan, observed.values(), scale)
        self.seen: set[str] = set()

    def row(self, event: Event) -> Row | None:
        """The row of a planned event; ``None`` where it did not run, or is the W of a backward that ran whole."""
        found, joined = _observed(event, self.observed)
        if found is None:
            return None
        name = found.event(0).id
        self.seen.add(name)
        if joined and event.kind is Kind.W:
            return None
        dependency, resource, late, why = self.waits.of(found)
        return Row(
            id=name,
            planned_start=round((event.start - self.plan_origin) * self.scale),
            start=found.start - self.origin,
            planned_duration=round(_planned_length(event, self.planned, joined) * self.scale),
            duration=found.end - found.start,
            dependency_wait=dependency,
            resource_wait=resource,
            late=late,
            why=why,
        )


def _observed(event: Event, observed: Mapping[str, TraceEvent]) -> tuple[TraceEvent | None, bool]:
    """The observed event, and whether it is the BW that a planned B or W became."""
    found = observed.get(event.id)
    if found is None and event.kind in (Kind.B, Kind.W):
        joined = observed.get(event.id.rpartition("/")[0] + "/BW")
        return joined, joined is not None
    return found, False


def _planned_length(event: Event, planned: Mapping[str, Event], joined: bool) -> int:
    weight = planned.get(event.id.rpartition("/")[0] + "/W") if joined else None
    return event.end - event.start + (weight.end - weight.start if weight else 0)


class _Waits:
    """What each observed event waited for."""

    def __init__(self, plan: Schedule, events: Iterable[TraceEvent], scale: float) -> None:
        self.instance = plan.instance
        self.scale, self.comm_ns = scale, plan.instance.comm_ticks * scale
        self.ticks = {(e.kind, e.stage, e.virtual_stage, e.microbatch): e.end - e.start for e in plan.events}
        self.events = sorted(events, key=lambda e: e.start)
        self.by_op = {(e.kind, e.virtual_stage, e.microbatch): e for e in self.events}
        self.by_id = {id(e): e for e in self.events}
        self.before: dict[int, TraceEvent] = {}
        rows: dict[int, list[TraceEvent]] = {}
        for event in self.events:
            rows.setdefault(event.stage, []).append(event)
        for row in rows.values():
            self.before |= {id(after): before for before, after in pairwise(row)}

    def of(self, event: TraceEvent) -> tuple[int, int, int, str]:
        """(dependency wait, resource wait, lateness, what the start hung on)."""
        giver, ready = self._input(event)
        before = self.before.get(id(event))
        free = before.end if before else min(e.start for e in self.events)
        could = max(ready, free)
        if giver is not None and ready > free:
            why = f"input from {giver.event(0).id}"
        else:
            why = f"stage busy with {before.event(0).id}" if before else "nothing"
        late = max(0, event.start - could)
        if late and event.start - event.asked >= late / 2:
            why = f"its message came late, after {why}"
        elif late:
            why = f"the engine turned to it late, after {why}"
        return max(0, ready - free), max(0, free - ready), late, why

    def makespan_with_cores(self) -> int:
        """Each event again in order, less the time in which it, or who sent its input, was ready and had no core.

        No event gets shorter than planned: time without a core is the machine's only where the event lasted longer.
        """
        origin = min(e.start for e in self.events)
        ends: dict[int, int] = {}
        after = {id(before): self.by_id[key] for key, before in self.before.items()}
        for event in sorted(self.events, key=lambda e: e.end):
            giver, ready = self._input(event)
            before = self.before.get(id(event))
            free = before.end if before else origin
            took = event.end - max(ready, free)
            sender = after.get(id(giver)) if giver is not None and giver.stage != event.stage else None
            without = event.core_wait_ns + (sender.core_wait_ns if sender else 0)
            least = min(took, round(self.planned_ns(event)))
            freed = ends[id(before)] if before else origin
            given = ends[id(giver)] + ready - giver.end if giver else origin
            ends[id(event)] = max(freed, given) + max(least, took - without)
        return max(ends.values()) - origin

    def planned_ns(self, event: TraceEvent) -> float:
        """How long the event was to last; of a BW that was B and W in the plan both."""
        wanted = {Kind.B, Kind.W, Kind.BW} if event.kind is Kind.BW else {event.kind}
        return self.scale * sum(
            self.ticks.get((kind, event.stage, event.virtual_stage, event.microbatch), 0) for kind in wanted
        )

    def _input(self, event: TraceEvent) -> tuple[TraceEvent | None, int]:
        """The event that gives the input, and when that is there; the step's start where none does."""
        givers = [g for g in self._givers(event) if g is not None]
        if not givers:
            return None, min(e.start for e in self.events)
        last = max(givers, key=lambda g: g.end)
        away = last.stage != event.stage and event.kind is not Kind.O
        return last, last.end + (round(self.comm_ns) if away else 0)

    def _givers(self, event: TraceEvent) -> list[TraceEvent | None]:
        v, micro = event.virtual_stage, event.microbatch
        if event.kind is Kind.O or v is None:
            everywhere = self.instance.barrier is Barrier.GLOBAL
            gradients = [e for e in self.events if e.kind in (Kind.W, Kind.BW)]
            return [e for e in gradients if everywhere or e.stage == event.stage]
        if event.kind is Kind.F:
            return [self.by_op.get((Kind.F, v - 1, micro))]
        if event.kind is Kind.W:
            return [self.by_op.get((Kind.B, v, micro))]
        if v == self.instance.virtual_stages - 1:
            return [self.by_op.get((Kind.F, v, micro))]
        return [self.by_op.get((Kind.B, v + 1, micro)), self.by_op.get((Kind.BW, v + 1, micro))]


def page(found: Diff, first: Row | None, rows: int) -> Iterator[str]:
    """The whole's figures, the ``rows`` latest events, and the first one that was late."""
    yield (
        f"makespan {found.makespan / 1e6:.2f} ms, planned {found.planned_makespan / 1e6:.2f} ms "
        f"({100 * found.makespan_error:+.1f} %; a tick is {found.tick_ns / 1e6:.4g} ms); "
        f"{len(found.missing)} events missing, {len(found.unplanned)} not planned"
    )
    if found.makespan_with_cores < found.makespan:
        yield f"with a core for every process whenever it was ready: {found.makespan_with_cores / 1e6:.2f} ms"
    if rows and found.rows:
        yield "latest events, in ms: start and length beyond the plan's, waits for input and stage, late beyond those"
        yield (
            f"  {'op':<22}" + "".join(f"{name:>10}" for name in ("start", "length", "input", "stage", "late")) + "  why"
        )
    for row in sorted(found.rows, key=lambda r: -r.late)[:rows]:
        figures = (row.start_error, row.duration_error, row.dependency_wait, row.resource_wait, row.late)
        yield f"  {row.id:<22}" + "".join(f"{value / 1e6:>10.2f}" for value in figures) + f"  {row.why}"
    if first is not None:
        yield f"first late: {first.id}, {first.late / 1e6:.2f} ms after it could: {first.why}"
