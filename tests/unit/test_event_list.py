"""The reader of foreign event lists: what it infers, what it refuses, and what only a list can get wrong."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from zbopt.analysis.metrics import figures
from zbopt.formats.event_list import EventList, event_list_from_document, read_event_list
from zbopt.problem.instance import Barrier
from zbopt.validator import Verdict, validate

AUDIT = Path(__file__).parents[2] / "instances" / "audit" / "two-stage.events.json"
"""A public example with the rejections expected of a validator; see instances/audit."""
DOCUMENT: dict[str, Any] = json.loads(AUDIT.read_text(encoding="utf-8"))


def _read(document: object) -> tuple[EventList, Verdict]:
    found = event_list_from_document(document, "list.json")
    return found, validate(found.instance, found.schedule)


def _codes(document: object) -> set[str]:
    found, verdict = _read(document)
    return {fault.code for fault in found.faults} | {violation.code.value for violation in verdict.violations}


def _with(change: dict[str, Any]) -> dict[str, Any]:
    """Return the audit list with one ``add``, ``change`` or ``remove``."""
    document = deepcopy(DOCUMENT)
    events = document["events"]
    if "add" in change:
        events.append(change["add"])
    elif "remove" in change:
        document["events"] = [event for event in events if event["id"] != change["remove"]]
    else:
        next(event for event in events if event["id"] == change["change"]["id"]).update(change["change"])
    return document


def _event(stage: int, micro: int, kind: str, start: float, end: float, *depends_on: str) -> dict[str, Any]:
    record = {"stage": stage, "micro": micro, "kind": kind, "start": start, "end": end, "dependsOn": list(depends_on)}
    return {"id": f"s{stage}{kind.lower()}{micro}", **record}


def test_audit_list() -> None:
    """Hand count: last W ends at 8; 12 unit ops; 1 - 12 / (2 * 8) = 0.25 idle; each F has its W."""
    found = read_event_list(AUDIT)
    verdict = validate(found.instance, found.schedule)
    expected = DOCUMENT["expected"]
    assert (verdict.valid, found.faults, found.ticks_per_unit) == (expected["valid"], (), 1)
    assert verdict.makespan == expected["makespan"] == 8
    assert sum(verdict.busy_ticks) == expected["busy"] == 12
    assert figures(found.schedule).bubble_over_makespan == expected["bubble_over_makespan"] == 0.25
    assert verdict.unfinished_activations == expected["unfinished_activations"] == 0


@pytest.mark.parametrize("rejected", DOCUMENT["rejected"], ids=lambda r: r["code"])
def test_audit_rejections(rejected: dict[str, Any]) -> None:
    """Each damage listed in the public example brings the code that it expects."""
    assert rejected["code"] in _codes(_with(rejected))


def test_order_of_events_does_not_matter() -> None:
    """Shuffled events give an equal instance, and an equal schedule as a set."""
    shuffled = deepcopy(DOCUMENT)
    Random(1).shuffle(shuffled["events"])
    first, _ = _read(DOCUMENT)
    second, verdict = _read(shuffled)
    assert verdict.valid
    assert first.instance == second.instance
    assert set(first.schedule.events) == set(second.schedule.events)


def test_claims_of_the_list() -> None:
    """A circle of dependsOn between events that lie apart in time is named once, and in its order."""
    document = _with({"change": {"id": "s0f0", "dependsOn": ["s0b0"]}})
    faults = event_list_from_document(document, "x").faults
    assert [fault.code for fault in faults] == ["dependency_violation", "cycle"]
    assert faults[0].message == "events[0] (id 's0f0') starts at 0, 's0b0' that it depends on ends at 4"
    assert faults[1].message.startswith("4 events depend on each other in a circle: ")


def test_floats_become_exact_ticks() -> None:
    """Times of 0.1 and 0.25 need hundredths; sums such as 0.1 + 0.2 = 0.30000000000000004 are the decimals meant."""
    events = [_event(0, 0, "F", 0.0, 0.1), _event(0, 0, "B", 0.1, 0.1 + 0.2), _event(0, 0, "W", 0.3, 0.55)]
    found, verdict = _read(events)
    assert verdict.valid
    assert found.ticks_per_unit == 100
    assert (found.instance.forward_ticks, found.instance.backward_ticks) == ((10,), (20,))
    assert found.instance.weight_ticks == (25,)
    assert found.instance.name == "event list; a tick is 1/100 of its unit of time"


def test_whole_floats_stay_whole() -> None:
    found, verdict = _read([_event(0, 0, "F", 0.0, 1.0), _event(0, 0, "BW", 1.0, 3.0)])
    assert (found.ticks_per_unit, verdict.makespan, verdict.valid) == (1, 3, True)
    assert type(found.schedule.events[0].end) is int


def test_thirds_are_valid() -> None:
    """No decimal says 1/3; rounding start and end apart must not make one F longer than the next."""
    ops = [(0, "F"), (1, "F"), (0, "B"), (0, "W"), (1, "B"), (1, "W")]
    found, verdict = _read([_event(0, micro, kind, i / 3, (i + 1) / 3) for i, (micro, kind) in enumerate(ops)])
    assert verdict.violations == ()
    assert found.ticks_per_unit == 10**9


def test_backward_without_weight_is_fused() -> None:
    """A list without any W means the whole backward by B."""
    found, verdict = _read([_event(0, 0, "F", 0, 1), _event(0, 0, "B", 1, 3)])
    assert verdict.valid
    assert (found.instance.fused_backward_ticks, found.instance.may_split) == ((2,), False)


def test_first_stage_without_backward() -> None:
    """Stage 0 has W alone: its W takes the gradient of stage 1 itself."""
    events = [_event(0, 0, "F", 0, 1), _event(1, 0, "F", 1, 2), _event(1, 0, "B", 2, 3), _event(1, 0, "W", 3, 4)]
    found, verdict = _read([*events, _event(0, 0, "W", 3, 4)])
    assert verdict.valid
    assert found.instance.backward_ticks == (None, 1)
    assert _codes([*events, _event(0, 0, "W", 2, 3)]) == {"dependency_violation"}


def test_optimizer_step() -> None:
    """O carries no microbatch; it must come after the gradients of its own stage."""
    step = {"id": "o", "stage": 0, "kind": "O", "start": 3, "end": 4}
    found, verdict = _read([_event(0, 0, "F", 0, 1), _event(0, 0, "B", 1, 3), step])
    assert verdict.valid
    assert (found.instance.barrier, found.instance.optimizer_ticks) == (Barrier.POST_VALIDATION, (1,))
    early = step | {"start": 2, "end": 3}
    assert "optimizer_before_gradient" in _codes([_event(0, 0, "F", 0, 1), _event(0, 0, "B", 1, 3), early])


def test_commonest_time_is_the_instances() -> None:
    """Two F of 1 tick and one of 2: the one is wrong."""
    starts = [(0, 1), (1, 2), (2, 4)]
    forwards = [_event(0, micro, "F", start, end) for micro, (start, end) in enumerate(starts)]
    found, verdict = _read([*forwards, *(_event(0, micro, "B", 4 + micro, 5 + micro) for micro in range(3))])
    assert found.instance.forward_ticks == (1,)
    assert [str(violation) for violation in verdict.violations] == [
        "wrong_duration: it0/s0/v0/mb2/F takes 2 ticks, the instance says 1"
    ]


def test_stages_are_counted_where_not_given() -> None:
    found, _ = _read({"events": [_event(0, 0, "F", 0, 1), _event(1, 0, "F", 1, 2)]})
    assert found.instance.stages == 2


GOOD = _event(0, 0, "F", 0, 1)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"events": []}, "the list of events is empty; give at least one event"),
        ({"events": 3}, "holds no list of events; give an object with 'events', or the list alone"),
        ("text", "holds no list of events; give an object with 'events', or the list alone"),
        ({"stages": "2", "events": [GOOD]}, "stages = '2' is not a whole number"),
        ({"stages": 0, "events": [GOOD]}, "stages = 0: must be at least 1"),
        ({"stages": 10**9, "events": [GOOD]}, "stages = 1000000000: must be at most 4096"),
        ([3], "events[0] = 3 is not an object; give one with id, stage, micro, kind, start, end"),
        ([GOOD, {"id": "x"}], "events[1]: kind is missing; give it"),
        ([{k: v for k, v in GOOD.items() if k != "end"}], "events[0]: end is missing; give it"),
        (
            [GOOD | {"colour": 1}],
            "events[0]: 'colour' is no key of an event; give id, stage, micro, kind, start, end, dependsOn, or",
        ),
        ([GOOD | {"kind": "X"}], "events[0]: kind = 'X' is unknown; give one of F, B, W, BW"),
        ([GOOD | {"kind": ["F"]}], "events[0]: kind = ['F'] is unknown; give one of F, B, W, BW"),
        ([GOOD | {"id": 5}], "events[0]: id = 5 is not a text; give each event an id such as 's0f0'"),
        ([GOOD | {"stage": 0.5}], "events[0]: stage = 0.5 is not a whole number; number from 0"),
        ([GOOD | {"micro": True}], "events[0]: micro = True is not a whole number; number from 0"),
        ([GOOD | {"micro": None}], "events[0]: micro = None is not a whole number; number from 0"),
        ([GOOD | {"micro": -1}], "events[0]: micro = -1 is out of range; number microbatches from 0"),
        ([GOOD | {"micro": 10**9}], "events[0]: micro = 1000000000 is out of range; number microbatches from 0"),
        ([GOOD | {"stage": 10**6}], "stage 1000000 is out of range of 1 events; number stages from 0"),
        ([GOOD | {"start": "0"}], "events[0]: start = '0' is not a number; give a time of at least 0"),
        ([GOOD | {"start": -1}], "events[0]: start = -1 is out of range; give a time of at least 0"),
        ([GOOD | {"end": float("nan")}], "events[0]: end = nan is out of range; give a time of at least 0"),
        ([GOOD | {"end": float("inf")}], "events[0]: end = inf is out of range; the limit is 1e+15"),
        ([GOOD | {"end": 10**5000}], "events[0]: end = a number of 16610 bits is out of range; the limit is 1e+15"),
        ([GOOD | {"end": 10**10}], "forward_ticks[0] = 10000000000: must be at most 1000000000"),
        (
            [GOOD | {"end": 1e-300}],
            "no time is above 1e-300, too small to count in ticks; give times in a smaller unit",
        ),
        ([GOOD | {"dependsOn": "s0f0"}], "events[0]: dependsOn = 's0f0' is not a list of ids; give one such as"),
    ],
)
def test_refused(document: object, message: str) -> None:
    """The error is one line that names the event, the key, the value and the way out."""
    with pytest.raises(ValueError, match=r"^list\.json: ") as caught:
        event_list_from_document(document, "list.json")
    assert str(caught.value).startswith(f"list.json: {message}")
    assert "\n" not in str(caught.value)


def test_no_b_on_the_first_stage_is_told() -> None:
    """A list whose stage 0 runs W alone is read as one that needs no B there, and says so; with one B it is not."""
    events = [_event(0, 0, "F", 0, 1), _event(1, 0, "F", 1, 2), _event(1, 0, "B", 2, 3), _event(1, 0, "W", 3, 4)]
    without = event_list_from_document([*events, _event(0, 0, "W", 3, 4)], "x")
    assert without.instance.backward_ticks == (None, 1)
    assert [note[:50] for note in without.notes] == ["stage 0 has W but no B in the whole list, so its m"]
    whole = event_list_from_document([*events, _event(0, 0, "B", 3, 4), _event(0, 0, "W", 4, 5)], "x")
    assert whole.notes == ()
