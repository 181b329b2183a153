"""Idle time of a schedule: a cause for every idle tick, the critical path, and the first avoidable bubble.

All is read off the events' times; the instance says which event waits for which. An op of one stage may wait for
an input from another, for memory, for the optimizer's barrier, or for nothing at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter

from zbopt.analysis.idle.dependencies import EventDependencies
from zbopt.analysis.idle.intervals import Avoidable, Cause, Idle, IdleWindow
from zbopt.analysis.idle.measured import Measured, measured
from zbopt.analysis.idle.memory_room import MemoryRoom
from zbopt.problem.instance import Kind, Objective
from zbopt.problem.schedule import Event, Schedule

__all__ = ["Avoidable", "Cause", "Explanation", "Idle", "IdleWindow", "Measured", "explain"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Hold the critical path, and every idle interval by start and stage.

    A gap with several causes is several intervals that touch.
    The path explains the time that the objective measures, ``measured``: it runs from the begin of it to its end.
    """

    schedule: Schedule
    measured: Measured
    critical_path: tuple[Event, ...]
    idle: tuple[Idle, ...]
    _gaps: _IdleGaps = field(repr=False, compare=False)

    def by_cause(self) -> Mapping[Cause, int]:
        """Return the idle ticks of all stages together, by cause; every cause is a key."""
        return _sums(self.idle)

    def by_stage(self) -> tuple[Mapping[Cause, int], ...]:
        """Return the idle ticks of each stage, by cause; every cause is a key."""
        stage_ops: list[list[Idle]] = [[] for _ in range(self.schedule.instance.stages)]
        for idle in self.idle:
            stage_ops[idle.stage].append(idle)
        return tuple(map(_sums, stage_ops))

    def whole(self) -> IdleWindow:
        """Return the idle time of the whole schedule: from the first start, or input, to the last end of all events."""
        return self.window(self._gaps.begin, self._gaps.end)

    def steady(self) -> IdleWindow | None:
        """Return the idle time from when every stage has begun until one has ended; ``None``: there is no such time."""
        stage_ops = [row for row in self._gaps.stage_ops if row]
        begin = max((row[0].start for row in stage_ops), default=0)
        end = min((max(e.end for e in row) for row in stage_ops), default=0)
        return self.window(begin, end) if begin < end else None

    def window(self, begin: int, end: int) -> IdleWindow:
        """Return the idle time between tick ``begin`` and tick ``end``."""
        sums = dict.fromkeys(Cause, 0)
        for idle in self.idle:
            sums[idle.cause] += max(0, min(idle.end, end) - max(idle.start, begin))
        return IdleWindow(begin, end, self.schedule.instance.stages, sums)

    def avoidable(self) -> Avoidable | None:
        """Return the first idle interval, by start and stage, that a better order could use; ``None``: there is none.

        An interval can be used where

        - the op that came next, or the next op of any kind and virtual stage that the stage ran later, has all its
          inputs before the interval ends, by the other events' present times; and, if it is an F, the memory of the
          stage stays within its cap with the activation there from then until it is there anyway;
        - or the op that came next waits for the gradient of a BW that the instance allows to be split.

        Ops are not asked to fit: one that is longer than the interval pushes what follows. That using the interval
        lowers the objective is not promised. ``fill`` counts under ``makespan`` alone, ``drain`` never.
        """
        return next(self.all_avoidable(), None)

    def all_avoidable(self) -> Iterator[Avoidable]:
        """Yield every idle interval that a better order could use, by start and stage; see ``avoidable``."""
        skipped = {Cause.DRAIN, Cause.BARRIER, Cause.HELD}
        if self.schedule.instance.objective is not Objective.MAKESPAN:
            skipped.add(Cause.FILL)
        for idle in self.idle:
            found = None if idle.cause in skipped else self._gaps.use_of(idle)
            if found is not None:
                yield found


def explain(schedule: Schedule) -> Explanation:
    """Explain why ``schedule`` takes as long as it does.

    The schedule should be valid. In one that is not, a missing input counts as ready.
    """
    gaps = _IdleGaps(schedule)
    idle = sorted(gaps.gaps(), key=lambda gap: (gap.start, gap.stage))
    counts = measured(gaps.dependencies)
    path = gaps.dependencies.critical_path(counts.last, counts.begin)
    return Explanation(schedule, counts, tuple(path), tuple(idle), gaps)


def _sums(intervals: Sequence[Idle]) -> Mapping[Cause, int]:
    sums = dict.fromkeys(Cause, 0)
    for idle in intervals:
        sums[idle.cause] += idle.ticks
    return sums


class _IdleGaps:
    """Find the idle intervals of a schedule, their causes, and the ops that could use them."""

    def __init__(self, schedule: Schedule) -> None:
        self.instance = schedule.instance
        self.dependencies = dependencies = EventDependencies(schedule)
        self.begin, self.end, self.stage_ops, self.position = (
            dependencies.begin,
            dependencies.end,
            dependencies.stage_ops,
            dependencies.position,
        )
        self.room = [MemoryRoom(self.instance, stage, row) for stage, row in enumerate(schedule.holders_by_stage())]
        self.positions: list[dict[tuple[Kind, int | None], list[int]]] = [{} for _ in self.stage_ops]
        for row, positions in zip(self.stage_ops, self.positions, strict=True):
            for i, e in enumerate(row):
                positions.setdefault((e.kind, e.virtual_stage), []).append(i)

    def gaps(self) -> Iterator[Idle]:
        """Yield the idle intervals of all stages, each with its cause."""
        for stage, row in enumerate(self.stage_ops):
            free = self.begin
            for i, e in enumerate(row):
                if e.start > free:
                    yield from self._fill(free, e) if i == 0 else self._split_by_transfers(self._between(free, e, i))
                free = max(free, e.end)
            if free < self.end:
                yield Idle(stage, free, self.end, Cause.DRAIN if row else Cause.FILL, None, None)

    def _fill(self, start: int, e: Event) -> Iterator[Idle]:
        yield Idle(e.stage, start, e.start, Cause.FILL, e, self.dependencies.last_input(e)[1])

    def _split_by_transfers(self, idle: Iterator[Idle]) -> Iterator[Idle]:
        """Yield the intervals, cut where a blocking transfer keeps the stage from computing."""
        for found in idle:
            start, held = found.start, self.dependencies.blocking_transfers[found.stage]
            first = max(0, bisect_right(held, start, key=attrgetter("start")) - 1)
            for transfer in islice(held, first, None):
                if transfer.start >= found.end:
                    break
                begin, end = max(transfer.start, start), min(transfer.end, found.end)
                if begin < end:
                    if start < begin:
                        yield replace(found, start=start, end=begin)
                    yield Idle(found.stage, begin, end, Cause.HELD, found.before, transfer)
                    start = end
            if start < found.end:
                yield replace(found, start=start)

    def _between(self, start: int, e: Event, i: int) -> Iterator[Idle]:
        """Yield the gap before the op at position ``i``, cut where its cause changes."""
        arrival, producer = self.dependencies.last_input(e)
        computed = arrival if producer is None else min(arrival, producer.end)
        before = Cause.INPUT if producer is None else Cause.BARRIER if e.kind is Kind.O else Cause.DEPENDENCY
        carrier = None if producer is None else self.dependencies.carrier(producer, e)
        carried = computed if carrier is None else min(arrival, max(computed, carrier.start))
        port_free, holder = self.dependencies.port_free(e)
        blocked, gives_back = self._blocked(e.stage, start, i)
        cuts = (
            (computed, before, producer),
            (carried, Cause.LINK, producer),
            (arrival, Cause.BARRIER if e.kind is Kind.O else Cause.TRANSFER, producer),
            (port_free, Cause.LINK, holder),
            (e.start, Cause.ORDER, None),
        )
        for until, cause, waits_for in cuts:
            stop = min(until, e.start)
            if stop > start and cause not in (Cause.BARRIER, Cause.ORDER) and blocked is not None:
                free = min(max(start, blocked), stop)
                if free > start:
                    yield Idle(e.stage, start, free, cause, e, waits_for)
                if stop > free:
                    yield Idle(e.stage, free, stop, Cause.MEMORY, e, gives_back)
            elif stop > start:
                yield Idle(e.stage, start, stop, cause, e, waits_for)
            start = max(start, stop)

    def _blocked(self, stage: int, time: int, i: int) -> tuple[int | None, Event | None]:
        """Return from when the next F has its input but no room, and the next op that frees memory.

        ``None`` for the first: the next F has room, or there is none.
        """
        row = self.stage_ops[stage]
        following = (self._next(stage, key, i) for key in self.positions[stage] if key[0] is Kind.F)
        forwards = [j for j in following if j is not None]
        if not forwards or self.room[stage].fits(row[min(forwards)], time, time):
            return None, None
        gives_back = next((e for e in row[i:] if e.kind in (Kind.B, Kind.W, Kind.BW)), None)
        return self.dependencies.last_input(row[min(forwards)])[0], gives_back

    def _next(self, stage: int, key: tuple[Kind, int | None], i: int) -> int | None:
        places = self.positions[stage][key]
        j = bisect_right(places, i - 1)
        return places[j] if j < len(places) else None

    def use_of(self, idle: Idle) -> Avoidable | None:
        """Return how a better order could use ``idle``; ``None``: it could not."""
        if idle.before is None:
            return None
        i = self.position[id(idle.before)]
        later = sorted(j for key in self.positions[idle.stage] if (j := self._next(idle.stage, key, i)) is not None)
        for j in later:
            op = self.stage_ops[idle.stage][j]
            port_free = self.dependencies.port_free(op)[0] if op is idle.before else 0
            usable = max(idle.start, port_free, self.dependencies.last_input(op)[0])
            room = op.kind is not Kind.F or self.room[idle.stage].fits(op, usable, op.start)
            if usable < idle.end and room and op.kind is not Kind.O:
                return Avoidable(idle, op, usable, by_split=False)
        producer = None if idle.cause is Cause.MEMORY else idle.waits_for
        saved = 0 if producer is None else self._saved_by_split(producer)
        return (
            Avoidable(idle, producer, max(idle.start, idle.end - saved), by_split=True)
            if producer and saved > 0
            else None
        )

    def _saved_by_split(self, e: Event) -> int:
        """Return by how many ticks the gradient of ``e`` would come earlier if it ran as B and W; 0 where it cannot."""
        if e.kind is not Kind.BW or e.virtual_stage is None or e.microbatch is None:
            return 0
        alone = self.instance.ticks_of(e.virtual_stage, e.microbatch).backward
        return 0 if alone is None else e.end - e.start - alone
