"""Why stages wait: the critical path of a schedule, and a cause for every idle tick.

Everything is read off the events' own times, with the instance for what waits for what. An op of one stage may wait for
an input from another, for memory, for the optimizer's barrier, or for nothing at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from zbopt.instance import COMPUTE, Barrier, Instance, Kind, Objective
from zbopt.metrics import memory_curve
from zbopt.schedule import Event, Schedule


class Cause(StrEnum):
    """Why a stage was idle."""

    FILL = "fill"
    """Before the stage's first op."""
    DRAIN = "drain"
    """After the stage's last op."""
    DEPENDENCY = "dependency"
    """The input of the op that came next was not computed yet."""
    TRANSFER = "transfer"
    """That input was computed, and on its way."""
    LINK = "link"
    """That input was computed, and what was to bring it waited for its link, or for its turn there."""
    MEMORY = "memory"
    """The next F of the stage had its input, the memory cap had no room for it, and the op that came next had none."""
    BARRIER = "barrier"
    """O came next, and waited for the gradients that its barrier names."""
    ORDER = "order"
    """Nothing: the op that came next could have started."""


@dataclass(frozen=True, slots=True)
class Idle:
    """``stage`` ran nothing in [start, end), for one cause.

    ``before`` is the op that ran next, ``None`` for ``drain``. ``waits_for`` is the op whose end had to come first: the
    input's producer; for ``memory`` the next op of the stage that gives memory back; ``None`` where there is none.
    """

    stage: int
    start: int
    end: int
    cause: Cause
    before: Event | None
    waits_for: Event | None

    @property
    def ticks(self) -> int:
        """Length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Avoidable:
    """An idle interval that a better order could use, from tick ``usable_from``.

    ``op`` ran later on the same stage and could have run here; or, where ``by_split``, it is a BW of another stage
    that would have handed on its gradient earlier as B and W.
    """

    idle: Idle
    op: Event
    usable_from: int
    by_split: bool

    @property
    def ticks(self) -> int:
        """Ticks of the interval that could be used."""
        return self.idle.end - self.usable_from


@dataclass(frozen=True, slots=True)
class Window:
    """Idle ticks of ``stages`` stages from tick ``begin`` to ``end``, by cause; ``total`` is what shares are of."""

    begin: int
    end: int
    stages: int
    by_cause: Mapping[Cause, int]

    @property
    def total(self) -> int:
        """All ticks of all stages."""
        return (self.end - self.begin) * self.stages

    @property
    def idle(self) -> int:
        """Idle ticks of all causes."""
        return sum(self.by_cause.values())

    def share(self, ticks: int) -> float | None:
        """``ticks`` as a share of the total; ``None`` where that is zero."""
        return ticks / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The critical path, and every idle interval by start and stage. Intervals of a gap with several causes touch."""

    schedule: Schedule
    critical_path: tuple[Event, ...]
    idle: tuple[Idle, ...]
    _ledger: _Ledger = field(repr=False, compare=False)

    def by_cause(self) -> Mapping[Cause, int]:
        """Idle ticks of all stages together, by cause; every cause is there."""
        return _sums(self.idle)

    def by_stage(self) -> tuple[Mapping[Cause, int], ...]:
        """The same for each stage."""
        rows: list[list[Idle]] = [[] for _ in range(self.schedule.instance.stages)]
        for idle in self.idle:
            rows[idle.stage].append(idle)
        return tuple(map(_sums, rows))

    def whole(self) -> Window:
        """The whole schedule: from the first start to the last end of the stages' ops."""
        return self.window(self._ledger.begin, self._ledger.end)

    def steady(self) -> Window | None:
        """From when every stage has begun until the first one has ended; ``None`` where there is no such time."""
        rows = [row for row in self._ledger.rows if row]
        begin = max((row[0].start for row in rows), default=0)
        end = min((max(e.end for e in row) for row in rows), default=0)
        return self.window(begin, end) if begin < end else None

    def window(self, begin: int, end: int) -> Window:
        """What of the idle time lies from tick ``begin`` to tick ``end``."""
        sums = dict.fromkeys(Cause, 0)
        for idle in self.idle:
            sums[idle.cause] += max(0, min(idle.end, end) - max(idle.start, begin))
        return Window(begin, end, self.schedule.instance.stages, sums)

    def avoidable(self) -> Avoidable | None:
        """The first idle interval, by start and stage, that a better order could use; ``None``: there is none.

        An interval can be used where

        - the op that came next, or the next op of any kind and virtual stage that the stage ran later, has all its
          inputs before the interval ends, by the other events' present times; and, if it is an F, the memory of the
          stage stays within its cap with the activation there from then until it is there anyway;
        - or the op that came next waits for the gradient of a BW that the instance allows to be split.

        Ops are not asked to fit: one that is longer than the interval pushes what follows. That using the interval
        lowers the objective is not promised. ``fill`` does not count under ``max_stage_span``, ``drain`` never.
        """
        return next(self.all_avoidable(), None)

    def all_avoidable(self) -> Iterator[Avoidable]:
        """Every such interval, in the same order."""
        skipped = {Cause.DRAIN, Cause.BARRIER}
        if self.schedule.instance.objective is Objective.MAX_STAGE_SPAN:
            skipped.add(Cause.FILL)
        for idle in self.idle:
            found = None if idle.cause in skipped else self._ledger.use_of(idle)
            if found is not None:
                yield found


def explain(schedule: Schedule) -> Explanation:
    """Why ``schedule`` takes as long as it does.

    The schedule should be valid. In one that is not, an input that is missing counts as there.
    """
    ledger = _Ledger(schedule)
    idle = sorted(ledger.gaps(), key=lambda gap: (gap.start, gap.stage))
    return Explanation(schedule, tuple(ledger.critical_path()), tuple(idle), ledger)


def _sums(intervals: Sequence[Idle]) -> Mapping[Cause, int]:
    sums = dict.fromkeys(Cause, 0)
    for idle in intervals:
        sums[idle.cause] += idle.ticks
    return sums


class _Ledger:
    """The events by stage and by name, and what each of them waits for."""

    def __init__(self, schedule: Schedule) -> None:
        self.instance = schedule.instance
        self.rows = schedule.by_stage()
        self.at = {(e.iteration, e.kind, e.virtual_stage, e.microbatch): e for row in self.rows for e in row}
        beside = [e for e in schedule.events if e.kind not in COMPUTE]
        self.beside = {(e.iteration, e.kind, e.virtual_stage, e.microbatch): e for e in beside}
        self.begin = min((e.start for row in self.rows for e in row), default=0)
        self.end = max((e.end for row in self.rows for e in row), default=0)
        self.position = {id(e): i for row in self.rows for i, e in enumerate(row)}
        self.memory = [_Memory(self.instance, stage, row) for stage, row in enumerate(schedule.holders_by_stage())]
        self.classes: list[dict[tuple[Kind, int | None], list[int]]] = [{} for _ in self.rows]
        for row, classes in zip(self.rows, self.classes, strict=True):
            for i, e in enumerate(row):
                classes.setdefault((e.kind, e.virtual_stage), []).append(i)
        self.gradients = [e for row in self.rows for e in row if e.kind in (Kind.W, Kind.BW)]

    def inputs(self, e: Event) -> list[tuple[int, Event]]:
        """(arrival, producer) of everything that ``e`` needs."""
        instance = self.instance
        if e.kind is Kind.O:
            own = instance.barrier is not Barrier.GLOBAL
            waits = (g for g in self.gradients if g.iteration == e.iteration and not (own and g.stage != e.stage))
            return [(self._reduced(g) + instance.barrier_ticks, g) for g in waits]
        v = e.virtual_stage
        if v is None or not 0 <= v < instance.virtual_stages:
            return []
        if e.kind is Kind.F:
            return self._from(e, instance.previous_of(v), Kind.F)
        has_b = (e.iteration, Kind.B, v, e.microbatch) in self.at
        if e.kind is Kind.W and has_b:
            return self._from(e, v, Kind.B)
        after = instance.next_of(v)
        made = self._from(e, v, Kind.F) if after is None else self._from(e, after, Kind.B, Kind.BW)
        return [*self._reloaded(e), *made]

    def _reloaded(self, e: Event) -> list[tuple[int, Event]]:
        """The end of the IN that ``e`` waits for, and the F whose activation it brings back."""
        back = self.beside.get((e.iteration, Kind.IN, e.virtual_stage, e.microbatch))
        forward = self.at.get((e.iteration, Kind.F, e.virtual_stage, e.microbatch))
        return [] if back is None or forward is None else [(back.end, forward)]

    def _from(self, e: Event, virtual_stage: int | None, *kinds: Kind) -> list[tuple[int, Event]]:
        found = (self.at.get((e.iteration, kind, virtual_stage, e.microbatch)) for kind in kinds)
        return [(self._arrival(p, e), p) for p in found if p is not None]

    def _reduced(self, gradient: Event) -> int:
        """When a W's gradients are there: at its end, or that of the reduction after it."""
        reduction = self.beside.get((gradient.iteration, Kind.G, gradient.virtual_stage, None))
        return gradient.end if reduction is None else max(gradient.end, reduction.end)

    def _arrival(self, producer: Event, taker: Event) -> int:
        """When what one op made is at the other: after the transfer between, an event or a lag."""
        if producer.stage == taker.stage or producer.virtual_stage is None or taker.virtual_stage is None:
            return producer.end
        kind = Kind.SEND_F if producer.kind is Kind.F else Kind.SEND_B
        sent = self.beside.get((producer.iteration, kind, producer.virtual_stage, producer.microbatch))
        if sent is not None:
            return max(producer.end, sent.end)
        return producer.end + self.instance.lag_ticks(producer.virtual_stage, taker.virtual_stage)

    def last_input(self, e: Event) -> tuple[int, Event | None]:
        """(arrival, producer) of the input that comes last; (the beginning, ``None``) without any."""
        return max(self.inputs(e), key=lambda pair: pair[0], default=(self.begin, None))

    def critical_path(self) -> list[Event]:
        """From the first start to the last end: before each op the one that it waited for longest.

        That is its last input or the op before it on its stage, the input where both ended it.
        """
        last = max((e for row in self.rows for e in row), key=lambda e: (e.end, e.start), default=None)
        path: list[Event] = []
        seen: set[int] = set()
        while last is not None and id(last) not in seen:
            path.append(last)
            seen.add(id(last))
            if last.start <= self.begin:
                break
            arrival, producer = self.last_input(last)
            i = self.position[id(last)]
            while i and self.rows[last.stage][i - 1].start == last.start:
                i -= 1  # the other half of an overlapped op
            neighbour = self.rows[last.stage][i - 1] if i else None
            last = producer if neighbour is None or (producer is not None and arrival >= neighbour.end) else neighbour
        return path[::-1]

    def gaps(self) -> Iterator[Idle]:
        """Idle intervals of all stages, each with its cause."""
        for stage, row in enumerate(self.rows):
            free = self.begin
            for i, e in enumerate(row):
                if e.start > free:
                    yield from self._fill(free, e) if i == 0 else self._between(free, e, i)
                free = max(free, e.end)
            if free < self.end:
                yield Idle(stage, free, self.end, Cause.DRAIN if row else Cause.FILL, None, None)

    def _fill(self, start: int, e: Event) -> Iterator[Idle]:
        yield Idle(e.stage, start, e.start, Cause.FILL, e, self.last_input(e)[1])

    def _between(self, start: int, e: Event, i: int) -> Iterator[Idle]:
        """The gap before the op at ``i``, cut where its cause changes."""
        arrival, producer = self.last_input(e)
        computed = arrival if producer is None else min(arrival, producer.end)
        carried = min(arrival, max(computed, self._carrier_start(producer, e, computed)))
        blocked, gives_back = self._blocked(e.stage, start, i)
        cuts = (
            (computed, Cause.BARRIER if e.kind is Kind.O else Cause.DEPENDENCY, producer),
            (carried, Cause.LINK, producer),
            (arrival, Cause.TRANSFER, producer),
            (e.start, Cause.ORDER, None),
        )
        for until, cause, waits_for in cuts:
            stop = min(until, e.start)
            if stop > start and cause in (Cause.DEPENDENCY, Cause.LINK, Cause.TRANSFER) and blocked is not None:
                free = min(max(start, blocked), stop)
                if free > start:
                    yield Idle(e.stage, start, free, cause, e, waits_for)
                if stop > free:
                    yield Idle(e.stage, free, stop, Cause.MEMORY, e, gives_back)
            elif stop > start:
                yield Idle(e.stage, start, stop, cause, e, waits_for)
            start = max(start, stop)

    def _carrier_start(self, producer: Event | None, taker: Event, otherwise: int) -> int:
        """When the transfer or reload that brings an input began; ``otherwise`` where it is no event."""
        if producer is None:
            return otherwise
        if producer.kind is Kind.F and (producer.virtual_stage, producer.microbatch) == (
            taker.virtual_stage,
            taker.microbatch,
        ):
            kind = Kind.IN
        else:
            kind = Kind.SEND_F if producer.kind is Kind.F else Kind.SEND_B
        carrier = self.beside.get((producer.iteration, kind, producer.virtual_stage, producer.microbatch))
        return otherwise if carrier is None else carrier.start

    def _blocked(self, stage: int, time: int, i: int) -> tuple[int | None, Event | None]:
        """From when the stage's next F has its input but no room, ``None``: it has room; and what gives memory back."""
        row = self.rows[stage]
        following = (self._next(stage, key, i) for key in self.classes[stage] if key[0] is Kind.F)
        forwards = [j for j in following if j is not None]
        if not forwards or self.memory[stage].fits(row[min(forwards)], time, time):
            return None, None
        gives_back = next((e for e in row[i:] if e.kind in (Kind.B, Kind.W, Kind.BW)), None)
        return self.last_input(row[min(forwards)])[0], gives_back

    def _next(self, stage: int, key: tuple[Kind, int | None], i: int) -> int | None:
        places = self.classes[stage][key]
        j = bisect_right(places, i - 1)
        return places[j] if j < len(places) else None

    def use_of(self, idle: Idle) -> Avoidable | None:
        """What a better order could do with ``idle``."""
        if idle.before is None:
            return None
        i = self.position[id(idle.before)]
        later = sorted(j for key in self.classes[idle.stage] if (j := self._next(idle.stage, key, i)) is not None)
        for j in later:
            op = self.rows[idle.stage][j]
            usable = max(idle.start, self.last_input(op)[0])
            room = op.kind is not Kind.F or self.memory[idle.stage].fits(op, usable, op.start)
            if usable < idle.end and room and op.kind is not Kind.O:
                return Avoidable(idle, op, usable, by_split=False)
        giver = None if idle.cause is Cause.MEMORY else idle.waits_for
        saved = 0 if giver is None else self._saved_by_split(giver)
        return Avoidable(idle, giver, max(idle.start, idle.end - saved), by_split=True) if giver and saved > 0 else None

    def _saved_by_split(self, e: Event) -> int:
        """Ticks by which the gradient of ``e`` would be there earlier if it ran as B and W; 0 where it cannot."""
        if e.kind is not Kind.BW or e.virtual_stage is None or e.microbatch is None:
            return 0
        alone = self.instance.ticks_of(e.virtual_stage, e.microbatch).backward
        return 0 if alone is None else e.end - e.start - alone


class _Memory:
    """Live memory of one stage over time, beside its cap."""

    def __init__(self, instance: Instance, stage: int, row: Sequence[Event]) -> None:
        self.cap = None if instance.memory_cap is None else instance.memory_cap[stage]
        self.activation = instance.activation
        curve = [] if self.cap is None else list(memory_curve(instance, row))
        self.times = [time for time, _ in curve]
        self.amounts = [amount for _, amount in curve]

    def fits(self, forward: Event, start: int, end: int) -> bool:
        """Whether the cap has room for the activation of ``forward`` from ``start`` until just before ``end``."""
        v = forward.virtual_stage
        if self.cap is None or v is None or not 0 <= v < len(self.activation):
            return True
        i = bisect_right(self.times, start) - 1
        j = max(i + 1, bisect_right(self.times, end - 1))
        highest = max(self.amounts[max(i, 0) : j], default=Fraction(0)) if j > 0 else Fraction(0)
        return highest + self.activation[v] <= self.cap
