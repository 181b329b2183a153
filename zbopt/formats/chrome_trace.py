"""The Trace Event Format of chrome://tracing and Perfetto: a schedule as a trace, and traces as schedules.

A stage is a process; its tracks are compute, then one for each stage that it sends to; live memory is a counter; an
arrow leads from each transfer's producer to the op that takes it. Whole ticks and event ids stand in ``args``, so that
our own traces read back exactly. Traces of torch.profiler are read by the names ``PP:0F0`` that PyTorch's pipeline
runtime gives its actions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from zbopt.instance import COMPUTE, Kind
from zbopt.schedule import Event, Schedule, schedule_from_document

SCHEMA = "zbopt.chrome-trace/1"
_COLOUR = {
    Kind.F: "thread_state_running",
    Kind.B: "rail_response",
    Kind.W: "good",
    Kind.BW: "rail_animation",
    Kind.R: "rail_load",
    Kind.O: "grey",
}
_US_OF = {"s": Fraction(10**6), "ms": Fraction(1000), "us": Fraction(1), "ns": Fraction(1, 1000)}
COMPUTE_TRACK = 0


def to_chrome_trace(schedule: Schedule, memory: Sequence[Iterable[tuple[int, Fraction]]]) -> str:
    """The trace of a schedule. A tick that is no duration counts as a microsecond.

    Args:
        schedule: Any schedule; events on stages that do not exist are left out.
        memory: Live memory of each stage after each change, as ``metrics.memory_curve`` gives it.
    """
    writer = _Writer(schedule)
    entries = [*writer.names(), *writer.ops(), *writer.transfers()]
    for stage, curve in enumerate(memory):
        entries += writer.counter(stage, curve)
    head = schedule.model_dump(mode="json", exclude={"events"}, exclude_none=True)
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    about = json.dumps({"schema": SCHEMA, "schedule": head})
    return f'{{\n"displayTimeUnit": "ms",\n"zbopt": {about},\n"traceEvents": [\n{lines}\n]\n}}\n'


class _Writer:
    """One method a kind of entry."""

    def __init__(self, schedule: Schedule) -> None:
        self.instance = schedule.instance
        self.rows = schedule.by_stage()
        self.at = {(e.iteration, e.kind, e.virtual_stage, e.microbatch): e for row in self.rows for e in row}
        self.us = _us_of_tick(self.instance.tick)
        self.links = list(self._links())

    def _time(self, ticks: int | Fraction) -> int | float:
        if isinstance(ticks, int) and self.us.denominator == 1:  # most times, and fractions are slow
            return ticks * self.us.numerator
        us = ticks * self.us
        return us.numerator if us.denominator == 1 else float(us)

    def _links(self) -> Iterator[tuple[Event, Event]]:
        """Producer and taker of each transfer between stages."""
        for row in self.rows:
            for e in row:
                if e.virtual_stage is None:
                    continue
                to = {
                    Kind.F: (1, (Kind.F,)),
                    Kind.B: (-1, (Kind.B, Kind.BW, Kind.W)),
                    Kind.BW: (-1, (Kind.B, Kind.BW, Kind.W)),
                }
                step, kinds = to.get(e.kind, (0, ()))
                takers = (self.at.get((e.iteration, kind, e.virtual_stage + step, e.microbatch)) for kind in kinds)
                taker = next((t for t in takers if t is not None), None)
                if taker is not None and taker.stage != e.stage:
                    yield e, taker

    def names(self) -> Iterator[dict[str, Any]]:
        peers: dict[int, set[int]] = {}
        for giver, taker in self.links:
            peers.setdefault(giver.stage, set()).add(taker.stage)
        for stage in range(self.instance.stages):
            yield _meta("process_name", stage, {"name": f"stage {stage}"})
            yield _meta("process_sort_index", stage, {"sort_index": stage})
            tracks = {COMPUTE_TRACK: "compute"} | {
                1 + peer: f"to stage {peer}" for peer in sorted(peers.get(stage, ()))
            }
            for track, name in tracks.items():
                yield _meta("thread_name", stage, {"name": name}, track)
                yield _meta("thread_sort_index", stage, {"sort_index": track}, track)

    def ops(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            for e in row:
                micro = "" if e.microbatch is None else str(e.microbatch)
                yield {
                    "name": f"{e.kind.value}{micro}",
                    "cat": e.kind.value,
                    "cname": _COLOUR[e.kind],
                    "ph": "X",
                    "pid": e.stage,
                    "tid": COMPUTE_TRACK,
                    "ts": self._time(e.start),
                    "dur": self._time(e.end - e.start),
                    "args": _args(e),
                }

    def transfers(self) -> Iterator[dict[str, Any]]:
        """The arrow of each transfer, and its time on the link where it takes any."""
        for number, (giver, taker) in enumerate(self.links):
            what = "activation" if giver.kind is Kind.F else "gradient"
            name = f"{what} {giver.microbatch}"
            common = {"name": name, "cat": "transfer", "id": number}
            start = {"pid": giver.stage, "tid": COMPUTE_TRACK, "ts": self._time(giver.end)}
            if self.instance.comm_ticks:
                duration = self._time(self.instance.comm_ticks)
                about = {"from": giver.id, "to": taker.id}
                track = start | {"tid": 1 + taker.stage}
                yield {"name": name, "cat": "transfer", "ph": "X", **track, "dur": duration, "args": about}
            inside = giver.end - Fraction(giver.end - giver.start, 1000)  # at its very end a viewer takes the next op
            yield {**common, "ph": "s", **start, "ts": self._time(inside)}
            finish = {"pid": taker.stage, "tid": COMPUTE_TRACK, "ts": self._time(taker.start)}
            yield {**common, "ph": "f", "bp": "e", **finish}

    def counter(self, stage: int, curve: Iterable[tuple[int, Fraction]]) -> Iterator[dict[str, Any]]:
        """Live memory, one entry a moment."""
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
    if tick == "unit":
        return Fraction(1)
    digits = tick.rstrip("smun")
    return int(digits) * _US_OF[tick.removeprefix(digits)]


def is_ours(document: object) -> bool:
    """The trace was written by ``to_chrome_trace``."""
    return isinstance(document, dict) and isinstance(document.get("zbopt"), dict)


def from_chrome_trace(document: dict[str, Any], where: str) -> Schedule:
    """The schedule in one of our own traces.

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
    kinds = [kind.value for kind in COMPUTE]
    events = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or entry.get("ph") != "X" or entry.get("cat") not in kinds:
            continue
        args = entry.get("args")
        if not isinstance(args, dict):
            raise ValueError(f"{where}: traceEvents[{number}].args is no object; export the trace again")
        events.append({key: value for key, value in args.items() if key != "id"})
    return schedule_from_document(about["schedule"] | {"events": events}, where)
