"""Plain event lists as other tools write them: ``{"stages": 2, "events": [{"id": "s0f0", "stage": 0, ...}]}``.

A list holds no instance, so one is inferred, and what the list says of itself (ids, dependsOn) is checked here. All
other rules are the validator's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np

from zbopt.problem.instance import COMPUTE, MAX_STAGES, Barrier, Instance, Kind, read_document
from zbopt.problem.schedule import Event, Provenance, Schedule

_REQUIRED = ("id", "stage", "micro", "kind", "start", "end")
_KEYS = dict.fromkeys((*_REQUIRED, "dependsOn"))
_MAX_TIME = 10**15
"""Largest time of an event. Not measured; chosen below 2**53, so that a float holds each whole time exactly."""
_TOLERANCE = 1e-9
"""Most that rounding to ticks may move a time, as a share of the largest time.

Not measured; chosen above the error of sums of floats, and far below any difference between two ops.
"""
_VISIBLE = 0.1
"""Ticks of rounding above which times are no decimals, so that equal durations may differ by a tick.

Not measured; chosen between the rounding of decimals, which is close to 0, and that of other fractions, up to 0.5.
"""
_LEAST_LARGEST = 1e-9
"""Least value of the largest time. Not measured; chosen so that the search for ticks per unit ends soon."""
_KINDS = {kind.value: kind for kind in Kind if kind in COMPUTE}


@dataclass(frozen=True, slots=True)
class Fault:
    """Represent a statement of the list about itself that is wrong; ``code`` is one of the validator's."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventList:
    """Hold a list as instance and schedule, faults that only a list can have, and the ticks in its unit of time.

    ``notes`` say what was inferred that the writer of the list may not have meant.
    """

    instance: Instance
    schedule: Schedule
    faults: tuple[Fault, ...]
    ticks_per_unit: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _ListedEvent:
    """Hold one event as written; ``micro`` is ``None`` for O."""

    id: str
    stage: int
    micro: int | None
    kind: Kind
    start: int | float
    end: int | float
    depends_on: Sequence[str]


def read_event_list(path: Path | str) -> EventList:
    """Read an event list. Raises ``ValueError`` as ``read_document`` and ``event_list_from_document`` do."""
    path = Path(path)
    return event_list_from_document(read_document(path), str(path))


def event_list_from_document(document: object, where: str) -> EventList:
    """Return the event list in parsed JSON.

    The instance is inferred: the stages as given, else as many as the events name; microbatches up to the highest; a
    time for each stage and kind, the commonest; B as BW where the list has no W; O, where there is one, after the
    gradients of its own stage. There is no cap, no communication, and an activation counts 1 a microbatch.

    Args:
        document: The parsed file: an object with ``events`` and perhaps ``stages``, or the events alone. Whatever else
            the object has is not looked at.
        where: The file's name, for the error.

    Raises:
        ValueError: One line that names the event by its index, the key, the value and the way out.
    """
    try:
        given, records = _parts(document)
        entries = [_entry(i, record) for i, record in enumerate(records)]
        _check_micros(entries)
        ticks, ticks_per_unit, rounded = _ticks([time for e in entries for time in (e.start, e.end)])
        events = _events(entries, ticks)
        events = _even_out(events) if rounded else events
        instance = _infer(_distinct(entries, events), given, ticks_per_unit)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    provenance = Provenance(source="event-list")
    return EventList(
        instance=instance,
        schedule=Schedule(instance=instance, provenance=provenance, events=tuple(events)),
        faults=tuple(_faults(entries)),
        ticks_per_unit=ticks_per_unit,
        notes=tuple(_notes(instance)),
    )


def _notes(instance: Instance) -> Iterator[str]:
    if instance.has_lone_w(0):
        yield (
            "stage 0 has W but no B in the whole list, so its microbatches are taken to need none; "
            "if the list ought to have them, it is incomplete"
        )


def _parts(document: object) -> tuple[int | None, list[object]]:
    """Return the number of stages, ``None`` where the list does not say, and the events."""
    stages = document.get("stages") if isinstance(document, dict) else None
    records = document.get("events") if isinstance(document, dict) else document
    if not isinstance(records, list):
        raise ValueError("holds no list of events; give an object with 'events', or the list alone")
    if not records:
        raise ValueError("the list of events is empty; give at least one event")
    if stages is not None and (not isinstance(stages, int) or isinstance(stages, bool)):
        raise ValueError(f"stages = {_shown(stages)} is not a whole number; give the number of stages, or leave it out")
    return stages, records


def _entry(i: int, record: Any) -> _ListedEvent:
    where = f"events[{i}]"
    if not isinstance(record, dict):
        raise ValueError(f"{where} = {_shown(record)} is not an object; give one with {', '.join(_REQUIRED)}")
    kind = _kind(where, record)
    for key in _REQUIRED:
        if key not in record and not (key == "micro" and kind is Kind.O):
            raise ValueError(f"{where}: {key} is missing; give it")
    for key in record.keys() - _KEYS.keys():
        raise ValueError(f"{where}: {key!r} is no key of an event; give {', '.join(_KEYS)}, or leave it out")
    if not isinstance(record["id"], str):
        raise ValueError(f"{where}: id = {_shown(record['id'])} is not a text; give each event an id such as 's0f0'")
    depends_on = record.get("dependsOn", ())
    if not isinstance(depends_on, (list, tuple)) or not all(isinstance(other, str) for other in depends_on):
        raise ValueError(f"{where}: dependsOn = {_shown(depends_on)} is not a list of ids; give one such as ['s0f0']")
    micro = record.get("micro")
    return _ListedEvent(
        record["id"],
        _whole(where, "stage", record["stage"]),
        None if kind is Kind.O and micro is None else _whole(where, "micro", micro),
        kind,
        _time(where, "start", record["start"]),
        _time(where, "end", record["end"]),
        depends_on,
    )


def _kind(where: str, record: dict[str, Any]) -> Kind:
    value = record.get("kind")
    if isinstance(value, str) and value in _KINDS:
        return _KINDS[value]
    if "kind" not in record:
        raise ValueError(f"{where}: kind is missing; give it")
    raise ValueError(f"{where}: kind = {_shown(value)} is unknown; give one of {', '.join(_KINDS)}")


def _whole(where: str, key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{where}: {key} = {_shown(value)} is not a whole number; number from 0")
    return value


def _time(where: str, key: str, value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}: {key} = {_shown(value)} is not a number; give a time of at least 0")
    if not 0 <= value <= _MAX_TIME:
        remedy = f"the limit is {_MAX_TIME:.0e}" if value > _MAX_TIME else "give a time of at least 0"
        raise ValueError(f"{where}: {key} = {_shown(value)} is out of range; {remedy}")
    return value


def _shown(value: object) -> str:
    """Return the text of a refused value, on one line and not too long."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_micros(entries: Sequence[_ListedEvent]) -> None:
    """Refuse numbers that would call for more microbatches than there are events."""
    for i, entry in enumerate(entries):
        if entry.micro is not None and not 0 <= entry.micro < len(entries):
            remedy = f"number microbatches from 0; {len(entries)} events hold at most {len(entries)}"
            raise ValueError(f"events[{i}]: micro = {_shown(entry.micro)} is out of range; {remedy}")


def _ticks(times: Sequence[int | float]) -> tuple[list[int], int, bool]:
    """Return times in ticks, ticks a unit (the least power of ten within the tolerance), and whether rounding shows."""
    if all(isinstance(time, int) for time in times):
        return [int(time) for time in times], 1, False
    given = np.array(times, dtype=np.float64)
    largest = float(given.max())
    if 0 < largest < _LEAST_LARGEST:
        raise ValueError(f"no time is above {largest}, too small to count in ticks; give times in a smaller unit")
    ticks_per_unit = 1
    while True:
        scaled = given * ticks_per_unit
        ticks = np.rint(scaled)
        off = float(np.abs(scaled - ticks).max())
        if off <= _TOLERANCE * largest * ticks_per_unit:
            return ticks.astype(np.int64).tolist(), ticks_per_unit, off > _VISIBLE
        ticks_per_unit *= 10


def _events(entries: Sequence[_ListedEvent], ticks: Sequence[int]) -> list[Event]:
    """Return the events; in a list without W, B is the whole backward and becomes BW."""
    split = any(entry.kind is Kind.W for entry in entries)
    return [
        Event(
            kind=Kind.BW if entry.kind is Kind.B and not split else entry.kind,
            stage=entry.stage,
            virtual_stage=None if entry.micro is None else entry.stage,
            microbatch=entry.micro,
            start=ticks[2 * i],
            end=ticks[2 * i + 1],
        )
        for i, entry in enumerate(entries)
    ]


def _even_out(events: list[Event]) -> list[Event]:
    """Take off the tick by which rounding start and end apart makes one op of a kind longer than the next."""
    seen = {(e.stage, e.kind, e.end - e.start) for e in events}
    return [
        Event(e.kind, e.stage, e.virtual_stage, e.microbatch, e.start, e.end - 1)
        if e.end - e.start > 1 and (e.stage, e.kind, e.end - e.start - 1) in seen
        else e
        for e in events
    ]


def _distinct(entries: Sequence[_ListedEvent], events: Sequence[Event]) -> list[Event]:
    """Return the events, leaving out each one whose id an earlier one has."""
    first = {entry.id: i for i, entry in reversed(list(enumerate(entries)))}
    return [event for i, event in enumerate(events) if first[entries[i].id] == i]


def _infer(events: Sequence[Event], given_stages: int | None, ticks_per_unit: int) -> Instance:
    """Return the instance that the list must have been made for."""
    stages = _stage_count(events, given_stages)
    fields: dict[str, object] = {
        "name": f"event list; a tick is 1/{ticks_per_unit} of its unit of time" if ticks_per_unit > 1 else "event list",
        "stages": stages,
        "microbatches": max((e.microbatch for e in events if e.microbatch is not None), default=0) + 1,
    }
    if not 1 <= stages <= MAX_STAGES:
        return Instance.model_validate(fields)  # which refuses it, in the words that an instance's file gets
    durations = _Durations(events, stages)
    fields["forward_ticks"] = durations.of(Kind.F)
    fields |= _backward_fields(events, durations)
    if Kind.O in {e.kind for e in events}:
        fields |= {"barrier": Barrier.POST_VALIDATION, "optimizer_ticks": durations.of(Kind.O, least=0)}
    return Instance.model_validate(fields)


def _stage_count(events: Sequence[Event], given_stages: int | None) -> int:
    """Return the number of stages that the list gives, or else one more than the highest stage of an event.

    Raises:
        ValueError: The list gives no number, and its events name more stages than there are events.
    """
    if given_stages is not None:
        return given_stages
    stages = max(e.stage for e in events) + 1
    if stages > len(events):
        raise ValueError(f"stage {stages - 1} is out of range of {len(events)} events; number stages from 0")
    return stages


def _backward_fields(events: Sequence[Event], durations: _Durations) -> dict[str, object]:
    """Return the instance's fields with the times of B, W and BW; a stage 0 with W alone has no B and no BW."""
    kinds = {e.kind for e in events}
    if not kinds & {Kind.B, Kind.W}:
        return {"fused_backward_ticks": durations.of(Kind.BW)}
    kinds_of_first = {e.kind for e in events if e.stage == 0}
    no_first_b = Kind.W in kinds_of_first and not kinds_of_first & {Kind.B, Kind.BW}
    fields: dict[str, object] = {
        "backward_ticks": [None] * no_first_b + durations.of(Kind.B)[no_first_b:],
        "weight_ticks": durations.of(Kind.W),
    }
    if Kind.BW in kinds:
        fields["fused_backward_ticks"] = [None] * no_first_b + durations.of(Kind.BW)[no_first_b:]
    return fields


class _Durations:
    """Infer how long ops take: the commonest time by stage and kind.

    In a tie it is the time that is commoner on all stages, then the least.
    """

    def __init__(self, events: Sequence[Event], stages: int) -> None:
        self.stages = stages
        self.counts = Counter((e.stage, e.kind, e.end - e.start) for e in events)
        self.everywhere: Counter[tuple[Kind, int]] = Counter()
        for (_, kind, ticks), count in self.counts.items():
            self.everywhere[kind, ticks] += count

    def of(self, kind: Kind, least: int = 1) -> list[int]:
        """Return ticks by stage; a stage without such an op gets the time of the others, or ``least``."""
        seen: list[list[tuple[int, int, int]]] = [[] for _ in range(self.stages)]
        for (stage, its_kind, ticks), count in self.counts.items():
            if its_kind is kind and ticks >= least and 0 <= stage < self.stages:
                seen[stage].append((count, self.everywhere[kind, ticks], -ticks))
        others = max(
            ((n, -t) for (k, t), n in self.everywhere.items() if k is kind and t >= least), default=(0, -least)
        )
        return [-max(candidates)[-1] if candidates else -others[-1] for candidates in seen]


def _faults(entries: Sequence[_ListedEvent]) -> Iterator[Fault]:
    """Yield what only a list can get wrong: its ids, and the dependencies that it claims itself."""
    by_id: dict[str, _ListedEvent] = {}
    for i, entry in enumerate(entries):
        if by_id.setdefault(entry.id, entry) is not entry:
            yield Fault("duplicate_task", f"events[{i}]: id {_shown(entry.id)} is used by an event before it")
    backwards = any(entry.end <= entry.start for entry in entries)
    for i, entry in enumerate(entries):
        for other in entry.depends_on:
            awaited = by_id.get(other)
            if awaited is None:
                text = f"depends on {_shown(other)}, which no event has as its id"
                yield Fault("missing_dependency", f"events[{i}] (id {_shown(entry.id)}) {text}")
            elif entry.start < awaited.end:
                backwards = True
                text = f"starts at {entry.start}, {_shown(other)} that it depends on ends at {awaited.end}"
                yield Fault("dependency_violation", f"events[{i}] (id {_shown(entry.id)}) {text}")
    if backwards:  # otherwise every claim points back in time, and none can close a circle
        yield from _circle(entries)


def _circle(entries: Sequence[_ListedEvent]) -> Iterator[Fault]:
    """Yield a circle of dependsOn, if there is one."""
    waits: dict[str, list[str]] = {entry.id: [] for entry in entries}
    for entry in entries:
        waits[entry.id].extend(other for other in entry.depends_on if other in waits)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = [_shown(other) for other in reversed(error.args[1][1:])]
        chain = ", which depends on ".join([*circle[:6], *(["..."] if len(circle) > 6 else []), circle[0]])
        yield Fault("cycle", f"{len(circle)} events depend on each other in a circle: {chain}")
