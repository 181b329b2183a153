"""Trace Event Format of chrome://tracing and Perfetto: writes a schedule as a trace, and reads it back.

A stage is a process; its tracks are compute, one for each stage that it sends to, and what else runs beside compute;
live memory is a counter; an arrow leads from each transfer's producer to the op that takes it. Whole ticks and event
ids stand in ``args``, so that our own traces read back exactly. Traces of torch.profiler are read by the names
``PP:0F0`` that PyTorch's pipeline runtime gives its actions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from zbopt.analysis.lanes import Lane, lanes_of
from zbopt.costs.times import tick_ns
from zbopt.problem.instance import Kind
from zbopt.problem.schedule import Event, Schedule, schedule_from_document

SCHEMA = "zbopt.chrome-trace/1"
_COLOUR = {
    Kind.F: "thread_state_running",
    Kind.B: "rail_response",
    Kind.W: "good",
    Kind.BW: "rail_animation",
    Kind.R: "rail_load",
    Kind.O: "grey",
    Kind.SEND_F: "thread_state_runnable",
    Kind.SEND_B: "rail_idle",
    Kind.OUT: "thread_state_iowait",
    Kind.IN: "vsync_highlight_color",
    Kind.G: "terrible",
}
_HELD = "held"
"""Category of an entry whose event stands on another track: a port at the other end, a collective inside an op."""
COMPUTE_TRACK = 0
_BACKWARD = (Kind.B, Kind.BW, Kind.W)
_TAKERS = {Kind.F: (Kind.F,), Kind.B: _BACKWARD, Kind.BW: _BACKWARD}
"""Kinds of op that use the output of an op, on the next virtual stage of its route."""


def to_chrome_trace(schedule: Schedule, memory: Sequence[Iterable[tuple[int, Fraction]]]) -> str:
    """Return the trace of a schedule. A tick without length counts as a microsecond.

    Args:
        schedule: Any schedule; events on stages that do not exist are left out.
        memory: Live memory of each stage after each change, as ``metrics.memory_curve`` gives it.
    """
    writer = _Writer(schedule)
    entries = [*writer.names(), *writer.ops(), *writer.beside(), *writer.transfers()]
    for stage, curve in enumerate(memory):
        entries += writer.counter(stage, curve)
    head = schedule.model_dump(mode="json", exclude={"events"}, exclude_none=True)
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    about = json.dumps({"schema": SCHEMA, "schedule": head})
    return f'{{\n"displayTimeUnit": "ms",\n"zbopt": {about},\n"traceEvents": [\n{lines}\n]\n}}\n'


class _Writer:
    """Write the entries of a trace, one method for each kind of entry."""

    def __init__(self, schedule: Schedule) -> None:
        self.instance = schedule.instance
        lanes = lanes_of(schedule)
        self.compute_lanes = [lane.events for lane in lanes if lane.resource is None]
        self.lanes_beside = [lane for lane in lanes if lane.resource is not None]
        self.given = {id(e) for e in schedule.events}
        self.at = {(e.iteration, e.kind, e.virtual_stage, e.microbatch): e for lane in self.compute_lanes for e in lane}
        self.us = _us_of_tick(self.instance.tick)
        self.links = list(self._links())

    def _time(self, ticks: int | Fraction) -> int | float:
        if isinstance(ticks, int) and self.us.denominator == 1:  # most times, and fractions are slow
            return ticks * self.us.numerator
        us = ticks * self.us
        return us.numerator if us.denominator == 1 else float(us)

    def _links(self) -> Iterator[tuple[Event, Event]]:
        """Yield the producer and the consumer of each transfer between stages."""
        for lane in self.compute_lanes:
            for e in lane:
                v = e.virtual_stage
                if v is None or not 0 <= v < self.instance.virtual_stages or e.kind not in _TAKERS:
                    continue
                to = self.instance.goes_to(e.kind, v)
                takers = (self.at.get((e.iteration, kind, to, e.microbatch)) for kind in _TAKERS[e.kind])
                taker = next((t for t in takers if t is not None), None)
                if taker is not None and taker.stage != e.stage:
                    yield e, taker

    def names(self) -> Iterator[dict[str, Any]]:
        beside: dict[int, dict[int, str]] = {}
        for lane in self.lanes_beside:
            beside.setdefault(lane.stage, {})[self._track(lane)] = (lane.resource or "").replace("to ", "to stage ")
        for giver, taker in () if self.instance.sends else self.links:
            beside.setdefault(giver.stage, {})[1 + taker.stage] = f"to stage {taker.stage}"
        for stage in range(self.instance.stages):
            yield _meta("process_name", stage, {"name": f"stage {stage}"})
            yield _meta("process_sort_index", stage, {"sort_index": stage})
            for track, name in [(COMPUTE_TRACK, "compute"), *sorted(beside.get(stage, {}).items())]:
                yield _meta("thread_name", stage, {"name": name}, track)
                yield _meta("thread_sort_index", stage, {"sort_index": track}, track)

    def ops(self) -> Iterator[dict[str, Any]]:
        for lane in self.compute_lanes:
            for e in lane:
                yield self._slice(e, e.stage, COMPUTE_TRACK)

    def beside(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of tracks other than compute; an event on several tracks stands for itself on one only."""
        for lane in self.lanes_beside:
            for e in lane.events:
                entry = self._slice(e, lane.stage, self._track(lane))
                if id(e) not in self.given or e.stage != lane.stage:
                    entry |= {"cat": _HELD, "args": {"by": e.id}}
                yield entry

    def _slice(self, e: Event, stage: int, track: int) -> dict[str, Any]:
        micro = "" if e.microbatch is None else str(e.microbatch)
        return {
            "name": f"{e.kind.value}{micro}",
            "cat": e.kind.value,
            "cname": _COLOUR[e.kind],
            "ph": "X",
            "pid": stage,
            "tid": track,
            "ts": self._time(e.start),
            "dur": self._time(e.end - e.start),
            "args": _args(e),
        }

    def _track(self, lane: Lane) -> int:
        """Return the number of a lane's track: links to stages come after compute, then the others."""
        word, _, number = (lane.resource or "").partition(" ")
        if word == "to":
            return 1 + int(number)
        return 1 + self.instance.stages + ("send", "port", "host", "reduce").index(word)

    def transfers(self) -> Iterator[dict[str, Any]]:
        """Yield the arrow of each transfer, and its lag where it takes time and is no event of its own."""
        for number, (giver, taker) in enumerate(self.links):
            what = "activation" if giver.kind is Kind.F else "gradient"
            name = f"{what} {giver.microbatch}"
            common = {"name": name, "cat": "transfer", "id": number}
            start = {"pid": giver.stage, "tid": COMPUTE_TRACK, "ts": self._time(giver.end)}
            lag = self._lag(giver, taker)
            if lag:
                about = {"from": giver.id, "to": taker.id}
                track = start | {"tid": 1 + taker.stage}
                yield {"name": name, "cat": "transfer", "ph": "X", **track, "dur": self._time(lag), "args": about}
            inside = giver.end - Fraction(giver.end - giver.start, 1000)  # at its very end a viewer takes the next op
            yield {**common, "ph": "s", **start, "ts": self._time(inside)}
            finish = {"pid": taker.stage, "tid": COMPUTE_TRACK, "ts": self._time(taker.start)}
            yield {**common, "ph": "f", "bp": "e", **finish}

    def _lag(self, giver: Event, taker: Event) -> int:
        if self.instance.sends or giver.virtual_stage is None or taker.virtual_stage is None:
            return 0
        return self.instance.lag_ticks(giver.virtual_stage, taker.virtual_stage)

    def counter(self, stage: int, curve: Iterable[tuple[int, Fraction]]) -> Iterator[dict[str, Any]]:
        """Yield the live memory of a stage, one entry for each time at which it changes."""
        last = dict(curve)  # of several changes at one time the last is what holds
        before = None
        for time, amount in last.items():
            if amount == before:
                continue
            before = amount
            value = amount.numerator if amount.denominator == 1 else float(amount)
            yield {"name": "memory", "ph": "C", "pid": stage, "ts": self._time(time), "args": {"live": value}}


def _meta(name: str, stage: int, args: dict[str, Any], track: int = 0) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": stage, "tid": track, "args": args}


def _args(e: Event) -> dict[str, Any]:
    fields = {
        "id": e.id,
        "kind": e.kind.value,
        "stage": e.stage,
        "virtual_stage": e.virtual_stage,
        "microbatch": e.microbatch,
        "start": e.start,
        "end": e.end,
    }
    return fields | {"iteration": e.iteration} if e.iteration else fields


def _us_of_tick(tick: str) -> Fraction:
    return Fraction(1) if tick == "unit" else tick_ns(tick) / 1000


def is_ours(document: object) -> bool:
    """Return whether ``to_chrome_trace`` wrote the trace."""
    return isinstance(document, dict) and isinstance(document.get("zbopt"), dict)


def from_chrome_trace(document: dict[str, Any], where: str) -> Schedule:
    """Return the schedule in a trace that zbopt wrote.

    Args:
        document: The parsed file.
        where: The file's name, for the error.

    Raises:
        ValueError: One line that names the field.
    """
    about, entries = document["zbopt"], document.get("traceEvents")
    if about.get("schema") != SCHEMA or not isinstance(about.get("schedule"), dict):
        raise ValueError(f"{where}: zbopt.schema is not {SCHEMA!r}; export the trace again")
    if not isinstance(entries, list):
        raise ValueError(f"{where}: traceEvents is no list; give a trace in the JSON Object Format")
    kinds = [kind.value for kind in Kind]
    events = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or entry.get("ph") != "X" or entry.get("cat") not in kinds:
            continue
        args = entry.get("args")
        if not isinstance(args, dict):
            raise ValueError(f"{where}: traceEvents[{number}].args is no object; export the trace again")
        events.append({key: value for key, value in args.items() if key != "id"})
    return schedule_from_document(about["schedule"] | {"events": events}, where)
