"""What each event of a schedule waits for, as the events say, and the chain of waits that ends it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, pairwise
from operator import attrgetter

from zbopt.analysis.lanes import extent, lanes_of, receiver_of
from zbopt.problem.instance import COMPUTE, Barrier, Communication, Kind
from zbopt.problem.schedule import Event, Schedule

_start = attrgetter("start")
_Name = tuple[int, Kind, int | None, int | None, int | None]


class Waits:
    """The events by stage and by name, and what each of them waits for.

    Attributes:
        rows: Ops of each stage's compute in order of start.
        held: Transfers that hold each stage's compute, in order of start: those of blocking communication.
        begin: First start, or the first input's time.
        end: Last end of all events.
        position: Place of each op in its row, by identity.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.instance = schedule.instance
        self.rows = schedule.by_stage()
        self.at = {_name(e): e for e in schedule.events if 0 <= e.stage < schedule.instance.stages}
        self.begin, self.end = extent(schedule)
        self.position = {id(e): i for row in self.rows for i, e in enumerate(row)}
        self.gradients = [e for row in self.rows for e in row if e.kind in (Kind.W, Kind.BW)]
        self.held = self._held_compute()
        self._just_before: dict[int, list[tuple[int, Event]]] = defaultdict(list)
        beside = [row.events for row in lanes_of(schedule) if row.beside is not None]
        together = [sorted((*row, *held), key=_start) for row, held in zip(self.rows, self.held, strict=True) if held]
        for one, other in chain.from_iterable(map(pairwise, (*beside, *together))):
            self._follow(one, other)

    def _follow(self, one: Event, other: Event) -> None:
        """Note that an event had its link or port just after another one; what is a window is of the op around it."""
        giver, taker = self.at.get(_name(one), one), self.at.get(_name(other), other)
        if one.end <= other.start and giver is not taker:
            self._just_before[id(taker)].append((one.end - (other.start - taker.start), giver))

    def _held_compute(self) -> list[list[Event]]:
        held: list[list[Event]] = [[] for _ in self.rows]
        if self.instance.communication is Communication.BLOCKING:
            for e in (e for e in self.at.values() if e.kind in (Kind.SEND_F, Kind.SEND_B)):
                for stage in {e.stage, receiver_of(self.instance, e)} - {None}:
                    held[stage or 0].append(e)
        return [sorted(events, key=_start) for events in held]

    def find(self, like: Event, kind: Kind, virtual_stage: int | None, microbatch: int | None) -> Event | None:
        """The event of a kind in the iteration of another one; ``None``: it is not there."""
        return self.at.get((like.iteration, kind, virtual_stage, microbatch, None))

    def inputs(self, e: Event) -> list[tuple[int, Event]]:
        """(arrival, producer) of everything that an op needs."""
        instance = self.instance
        if e.kind is Kind.O:
            own = instance.barrier is not Barrier.GLOBAL
            waits = (g for g in self.gradients if g.iteration == e.iteration and not (own and g.stage != e.stage))
            return [(self._arrival(g, e) + instance.barrier_ticks, g) for g in waits]
        v = e.virtual_stage
        if v is None or not 0 <= v < instance.virtual_stages:
            return []
        if e.kind is Kind.F:
            return [*self._updated(e), *self._from(e, instance.previous_of(v), Kind.F)]
        if e.kind is Kind.R:
            return self._from(e, v, Kind.F)
        if e.kind is Kind.W and self.find(e, Kind.B, v, e.microbatch) is not None:
            return self._from(e, v, Kind.B)
        after = instance.next_of(v)
        made = self._from(e, v, Kind.F) if after is None else self._from(e, after, Kind.B, Kind.BW)
        return [*self._reloaded(e), *self._from(e, v, Kind.R), *made]

    def _updated(self, forward: Event) -> list[tuple[int, Event]]:
        """The optimizer step of the iteration before."""
        step = self.at.get((forward.iteration - 1, Kind.O, None, None, forward.stage))
        return [] if step is None else [(step.end, step)]

    def _reloaded(self, e: Event) -> list[tuple[int, Event]]:
        """The end of the IN that ``e`` waits for, and the F whose activation it brings back."""
        back = self.find(e, Kind.IN, e.virtual_stage, e.microbatch)
        forward = self.find(e, Kind.F, e.virtual_stage, e.microbatch)
        return [] if back is None or forward is None else [(back.end, forward)]

    def _from(self, e: Event, virtual_stage: int | None, *kinds: Kind) -> list[tuple[int, Event]]:
        found = (self.find(e, kind, virtual_stage, e.microbatch) for kind in kinds)
        return [(self._arrival(p, e), p) for p in found if p is not None]

    def _arrival(self, producer: Event, taker: Event) -> int:
        """When what one op made is at the other: after the transfer or reduction between, an event or a lag."""
        carrier = self.carrier(producer, taker)
        if carrier is not None:
            return max(producer.end, carrier.end)
        if producer.stage == taker.stage or producer.virtual_stage is None or taker.virtual_stage is None:
            return producer.end
        return producer.end + self.instance.lag_ticks(producer.virtual_stage, taker.virtual_stage)

    def carrier(self, producer: Event, taker: Event) -> Event | None:
        """The event that brings what one op made to the other; ``None``: there is none between them."""
        v, j = producer.virtual_stage, producer.microbatch
        if taker.kind is Kind.O:
            return self.find(producer, Kind.G, v, None)
        if producer.kind is Kind.F and taker.kind is not Kind.F and (v, j) == (taker.virtual_stage, taker.microbatch):
            return None if taker.kind is Kind.R else self.find(producer, Kind.IN, v, j)
        if producer.stage == taker.stage:
            return None
        return self.find(producer, Kind.SEND_F if producer.kind is Kind.F else Kind.SEND_B, v, j)

    def last_input(self, e: Event) -> tuple[int, Event | None]:
        """(arrival, producer) of the input that comes last; without a producer, of the microbatch's data."""
        arrival, producer = max(self.inputs(e), key=lambda pair: pair[0], default=(self.begin, None))
        ready = self._ready(e)
        return (ready, None) if ready > arrival else (arrival, producer)

    def _ready(self, e: Event) -> int:
        """When the data of a microbatch are there, which its first F takes; the beginning for all other ops."""
        times, v, j = self.instance.input_ready_ticks, e.virtual_stage, e.microbatch
        if times is None or e.kind is not Kind.F or v is None or j is None:
            return self.begin
        if not 0 <= v < self.instance.virtual_stages or self.instance.previous_of(v) is not None:
            return self.begin
        number = e.iteration * self.instance.microbatches + j
        return times[number] if 0 <= number < len(times) else self.begin

    def critical_path(self, last: Event | None, begin: int) -> list[Event]:
        """Back from ``last`` until an event starts at ``begin`` or before: the one before each it waited for longest.

        That is its last input, or what brought it, or what had its stage, link or port before it; the input where both
        ended it.
        """
        path: list[Event] = []
        seen: set[int] = set()
        while last is not None and id(last) not in seen:
            path.append(last)
            seen.add(id(last))
            if last.start <= begin:
                break
            before = self._before_op(last) if last.kind in COMPUTE else self._before_transfer(last)
            last = max(before, key=lambda pair: pair[0], default=(0, None))[1]
        return path[::-1]

    def _before_op(self, e: Event) -> Iterator[tuple[int, Event]]:
        """(when it was over, what an op may have waited for), its input first."""
        arrival, producer = self.last_input(e)
        if producer is not None:
            carrier = self.carrier(producer, e)
            yield arrival, producer if carrier is None or carrier.end < producer.end else carrier
        row = self.rows[e.stage]
        i = self.position[id(e)]
        while i and row[i - 1].start == e.start:
            i -= 1  # the other half of an overlapped op
        if i:
            yield row[i - 1].end, row[i - 1]
        yield from self._just_before[id(e)]

    def port_free(self, e: Event) -> tuple[int, Event | None]:
        """From when the collectives inside an op find their port free, and what had it before; 0 without any."""
        if not self.instance.collectives:
            return 0, None
        return max(self._just_before[id(e)], key=lambda pair: pair[0], default=(0, None))

    def _before_transfer(self, e: Event) -> Iterator[tuple[int, Event]]:
        """The same of a transfer, a reduction, an offload or a reload: its content, and what had its link or ports."""
        yield from ((source.end, source) for source in self._sources(e))
        yield from self._just_before[id(e)]

    def _sources(self, e: Event) -> list[Event]:
        """What had to be over before an event beside compute."""
        if e.kind is Kind.G:
            mine = (e.iteration, e.virtual_stage)
            return [g for g in self.gradients if (g.iteration, g.virtual_stage) == mine]
        kinds = {Kind.SEND_F: (Kind.F,), Kind.OUT: (Kind.F,), Kind.IN: (Kind.OUT,)}.get(e.kind, (Kind.B, Kind.BW))
        found = (self.find(e, kind, e.virtual_stage, e.microbatch) for kind in kinds)
        return [source for source in found if source is not None]


def _name(e: Event) -> _Name:
    """What names an event; its stage where nothing else does."""
    return e.iteration, e.kind, e.virtual_stage, e.microbatch, e.stage if e.virtual_stage is None else None
