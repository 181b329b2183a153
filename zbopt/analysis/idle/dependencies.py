"""Dependencies between the events of a schedule, as the events say, and the critical path through them."""

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


class EventDependencies:
    """Hold the events by stage and by name, and answer what each of them waits for.

    Attributes:
        stage_ops: Ops of each stage's compute, by start.
        blocking_transfers: Transfers that keep each stage from computing, by start: those of blocking communication.
        begin: First start, or the first input's time.
        end: Last end of all events.
        position: Position of each op on its stage, by identity.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.instance = schedule.instance
        self.stage_ops = schedule.by_stage()
        self.at = {_name(e): e for e in schedule.events if 0 <= e.stage < schedule.instance.stages}
        self.begin, self.end = extent(schedule)
        self.position = {id(e): i for row in self.stage_ops for i, e in enumerate(row)}
        self.gradients = [e for row in self.stage_ops for e in row if e.kind in (Kind.W, Kind.BW)]
        self.blocking_transfers = self._blocking_by_stage()
        self._just_before: dict[int, list[tuple[int, Event]]] = defaultdict(list)
        links = [lane.events for lane in lanes_of(schedule) if lane.resource is not None]
        together = [
            sorted((*ops, *blocking), key=_start)
            for ops, blocking in zip(self.stage_ops, self.blocking_transfers, strict=True)
            if blocking
        ]
        for one, other in chain.from_iterable(map(pairwise, (*links, *together))):
            self._note_order(one, other)

    def _note_order(self, one: Event, other: Event) -> None:
        """Note that an event had its link or port just after another one; a collective stands for the op around it."""
        producer, consumer = self.at.get(_name(one), one), self.at.get(_name(other), other)
        if one.end <= other.start and producer is not consumer:
            self._just_before[id(consumer)].append((one.end - (other.start - consumer.start), producer))

    def _blocking_by_stage(self) -> list[list[Event]]:
        blocking_transfers: list[list[Event]] = [[] for _ in self.stage_ops]
        if self.instance.communication is Communication.BLOCKING:
            for e in (e for e in self.at.values() if e.kind in (Kind.SEND_F, Kind.SEND_B)):
                for stage in {e.stage, receiver_of(self.instance, e)} - {None}:
                    blocking_transfers[stage or 0].append(e)
        return [sorted(events, key=_start) for events in blocking_transfers]

    def find(self, like: Event, kind: Kind, virtual_stage: int | None, microbatch: int | None) -> Event | None:
        """Return the event of a kind in the iteration of another one; ``None``: it is missing."""
        return self.at.get((like.iteration, kind, virtual_stage, microbatch, None))

    def inputs(self, e: Event) -> list[tuple[int, Event]]:
        """Return (arrival, producer) of every input of an op."""
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
        """Return (end, step) of the stage's optimizer step in the iteration before, where there is one."""
        step = self.at.get((forward.iteration - 1, Kind.O, None, None, forward.stage))
        return [] if step is None else [(step.end, step)]

    def _reloaded(self, e: Event) -> list[tuple[int, Event]]:
        """Return the end of the IN that ``e`` waits for, and the F whose activation it brings back."""
        back = self.find(e, Kind.IN, e.virtual_stage, e.microbatch)
        forward = self.find(e, Kind.F, e.virtual_stage, e.microbatch)
        return [] if back is None or forward is None else [(back.end, forward)]

    def _from(self, e: Event, virtual_stage: int | None, *kinds: Kind) -> list[tuple[int, Event]]:
        found = (self.find(e, kind, virtual_stage, e.microbatch) for kind in kinds)
        return [(self._arrival(p, e), p) for p in found if p is not None]

    def _arrival(self, producer: Event, consumer: Event) -> int:
        """Return when the output of one op arrives at the other, after the transfer or reduction between them."""
        carrier = self.carrier(producer, consumer)
        if carrier is not None:
            return max(producer.end, carrier.end)
        if producer.stage == consumer.stage or producer.virtual_stage is None or consumer.virtual_stage is None:
            return producer.end
        return producer.end + self.instance.lag_ticks(producer.virtual_stage, consumer.virtual_stage)

    def carrier(self, producer: Event, consumer: Event) -> Event | None:
        """Return the event that brings the output of one op to the other; ``None``: there is none between them."""
        v, j = producer.virtual_stage, producer.microbatch
        if consumer.kind is Kind.O:
            return self.find(producer, Kind.G, v, None)
        if (
            producer.kind is Kind.F
            and consumer.kind is not Kind.F
            and (v, j) == (consumer.virtual_stage, consumer.microbatch)
        ):
            return None if consumer.kind is Kind.R else self.find(producer, Kind.IN, v, j)
        if producer.stage == consumer.stage:
            return None
        return self.find(producer, Kind.SEND_F if producer.kind is Kind.F else Kind.SEND_B, v, j)

    def last_input(self, e: Event) -> tuple[int, Event | None]:
        """Return (arrival, producer) of the input that comes last; the producer of a microbatch's data is ``None``."""
        arrival, producer = max(self.inputs(e), key=lambda pair: pair[0], default=(self.begin, None))
        ready = self._ready(e)
        return (ready, None) if ready > arrival else (arrival, producer)

    def _ready(self, e: Event) -> int:
        """Return when the data of a microbatch are ready, for its first F; the beginning for all other ops."""
        times, v, j = self.instance.input_ready_ticks, e.virtual_stage, e.microbatch
        if times is None or e.kind is not Kind.F or v is None or j is None:
            return self.begin
        if not 0 <= v < self.instance.virtual_stages or self.instance.previous_of(v) is not None:
            return self.begin
        number = e.iteration * self.instance.microbatches + j
        return times[number] if 0 <= number < len(times) else self.begin

    def critical_path(self, last: Event | None, begin: int) -> list[Event]:
        """Return the chain of waits that ends with ``last``, from the first event that starts at ``begin`` or before.

        The event before each is the one that it waited for longest: its last input, or the transfer that brought it, or
        the event that had its stage, link or port before it. Where both ended at one time, it is the input.
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
        """Yield (end, event that an op may have waited for), its input first."""
        arrival, producer = self.last_input(e)
        if producer is not None:
            carrier = self.carrier(producer, e)
            yield arrival, producer if carrier is None or carrier.end < producer.end else carrier
        ops = self.stage_ops[e.stage]
        i = self.position[id(e)]
        while i and ops[i - 1].start == e.start:
            i -= 1  # the other half of an overlapped op
        if i:
            yield ops[i - 1].end, ops[i - 1]
        yield from self._just_before[id(e)]

    def port_free(self, e: Event) -> tuple[int, Event | None]:
        """Return from when the collectives inside an op find their port free, and the event before; 0 without any."""
        if not self.instance.collectives:
            return 0, None
        return max(self._just_before[id(e)], key=lambda pair: pair[0], default=(0, None))

    def _before_transfer(self, e: Event) -> Iterator[tuple[int, Event]]:
        """Yield (end, event that a transfer, reduction, offload or reload may have waited for), its content first."""
        yield from ((source.end, source) for source in self._sources(e))
        yield from self._just_before[id(e)]

    def _sources(self, e: Event) -> list[Event]:
        """Return the events whose output a transfer, reduction, offload or reload carries."""
        if e.kind is Kind.G:
            mine = (e.iteration, e.virtual_stage)
            return [g for g in self.gradients if (g.iteration, g.virtual_stage) == mine]
        kinds = {Kind.SEND_F: (Kind.F,), Kind.OUT: (Kind.F,), Kind.IN: (Kind.OUT,)}.get(e.kind, (Kind.B, Kind.BW))
        found = (self.find(e, kind, e.virtual_stage, e.microbatch) for kind in kinds)
        return [source for source in found if source is not None]


def _name(e: Event) -> _Name:
    """Return the key of an event; it has the stage where the event has no virtual stage."""
    return e.iteration, e.kind, e.virtual_stage, e.microbatch, e.stage if e.virtual_stage is None else None
