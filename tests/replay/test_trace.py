"""Traces: read back, valid as observed, and taken apart by ``diff``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from zbopt.problem.instance import Kind
from zbopt.problem.schedule import Schedule
from zbopt.replay.diff import diff_trace
from zbopt.replay.spec import Network, Training
from zbopt.replay.trace import Trace, TraceEvent, TraceStep, read_trace, write_trace
from zbopt.validator import Code, validate

TICK_NS = 1000


def _as_planned(plan: Schedule, shift: dict[str, int] | None = None) -> Trace:
    """Return a trace in which every event runs when planned, or ``shift`` ns later where named."""
    shift = shift or {}
    events = tuple(
        TraceEvent(
            kind=e.kind,
            stage=e.stage,
            virtual_stage=e.virtual_stage,
            microbatch=e.microbatch,
            asked=e.start * TICK_NS,
            start=e.start * TICK_NS + shift.get(e.id, 0),
            end=e.end * TICK_NS + shift.get(e.id, 0),
        )
        for e in plan.events
    )
    return Trace(
        plan=plan,
        network=Network(kind="wait", tick_s=TICK_NS / 1e9),
        training=Training(),
        device="cpu",
        processes=plan.instance.stages,
        simulated=True,
        steps=(TraceStep(step=0, events=events),),
    )


def test_read_back(plans: SimpleNamespace, tmp_path: Path) -> None:
    trace = _as_planned(plans.zb_h1(2, 2))
    write_trace(trace, tmp_path / "trace.json")
    assert read_trace(tmp_path / "trace.json") == trace


def test_a_schedule_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": "zbopt.schedule/1"}')
    with pytest.raises(ValueError, match="not a trace; give a file that zbopt replay --trace wrote"):
        read_trace(tmp_path / "x.json")


def test_observed_as_planned_is_valid(plans: SimpleNamespace) -> None:
    observed = _as_planned(plans.zb_h1(3, 4)).observed()
    assert validate(observed.instance, observed).valid


def test_an_observed_event_before_its_input_is_found(plans: SimpleNamespace) -> None:
    """Stage 1's first B half a tick early starts before its own F has ended."""
    observed = _as_planned(plans.zb_h1(2, 2), {"it0/s1/v1/mb0/B": -500}).observed()
    codes = {violation.code for violation in validate(observed.instance, observed).violations}
    assert Code.DEPENDENCY_VIOLATION in codes


def test_nothing_is_late_in_a_perfect_run(plans: SimpleNamespace) -> None:
    found = diff_trace(plan := plans.zb_h1(3, 4), _as_planned(plan))
    assert found.makespan_error == 0
    assert found.first_late(0) is None
    assert {event.start_error for event in found.events} == {0}
    assert not found.missing
    assert not found.unplanned


def test_lateness_and_waits_by_hand(plans: SimpleNamespace) -> None:
    """One microbatch on two stages: F at 0 and 1, B at 2 and 3. Stage 1's B is 300 ns late, though its F has ended.

    Stage 0's B, from 3300 on, waited for that input from the end of its F at 1000 on: 2300 ns. Its W could start at
    once; stage 1's W, in the plan right after B, too.
    """
    plan = plans.zb_h1(2, 1)
    late = {"it0/s1/v1/mb0/B": 300, "it0/s1/v1/mb0/W": 300, "it0/s0/v0/mb0/B": 300, "it0/s0/v0/mb0/W": 300}
    found = diff_trace(plan, _as_planned(plan, late))
    events = {event.id: event for event in found.events}
    first = found.first_late(0)
    assert first is not None
    assert (first.id, first.late) == ("it0/s1/v1/mb0/B", 300)
    assert first.why == "its message came late, after stage busy with it0/s1/v1/mb0/F"
    held = events["it0/s0/v0/mb0/B"]
    assert (held.dependency_wait, held.resource_wait, held.late) == (2300, 0, 0)
    assert held.why == "input from it0/s1/v1/mb0/B"
    assert found.makespan_error == pytest.approx(300 / 5000)


def test_a_ready_event_waits_for_its_stage(plans: SimpleNamespace) -> None:
    """GPipe's order, two microbatches, one stage: W0 is ready when B0 ends at 3, and waits for B1 until 4."""
    plan = plans.all_forward((0,), 2)
    events = {event.id: event for event in diff_trace(plan, _as_planned(plan)).events}
    waiting = events["it0/s0/v0/mb0/W"]
    assert (waiting.dependency_wait, waiting.resource_wait, waiting.late) == (0, 1000, 0)


def test_time_without_a_core_by_hand(plans: SimpleNamespace) -> None:
    """One microbatch, 5 ticks. Stage 1's B and all after it come 300 ns late, of which it had no core for 200: 5100.

    What stage 0 waited for its own core then changes nothing before its own B, which runs as long as planned.
    """
    plan = plans.zb_h1(2, 1)
    late = {"it0/s1/v1/mb0/B": 300, "it0/s1/v1/mb0/W": 300, "it0/s0/v0/mb0/B": 300, "it0/s0/v0/mb0/W": 300}
    trace = _as_planned(plan, late)
    without = {(1, Kind.B): 200, (0, Kind.B): 900}
    events = [e.model_copy(update={"core_wait_ns": without.get((e.stage, e.kind), 0)}) for e in trace.steps[0].events]
    step = TraceStep(step=0, events=tuple(events))
    assert diff_trace(plan, trace).makespan_with_cores == 5300
    assert diff_trace(plan, trace, step).makespan == 5300
    assert diff_trace(plan, trace, step).makespan_with_cores == 5100


def test_what_the_sender_lacked_is_not_the_engine_s(plans: SimpleNamespace) -> None:
    """Stage 1's F starts 400 ns after the end of stage 0's: stage 0 had no core for 400 ns before its next op."""
    plan = plans.zb_h1(2, 1)
    late = {e.id: 400 for e in plan.events if e.id != "it0/s0/v0/mb0/F"}
    trace = _as_planned(plan, late)
    events = [
        e.model_copy(update={"core_wait_ns": 400 if (e.stage, e.kind) == (0, Kind.B) else 0})
        for e in trace.steps[0].events
    ]
    found = diff_trace(plan, trace, TraceStep(step=0, events=tuple(events)))
    assert (found.makespan, found.makespan_with_cores) == (5400, 5000)


def test_b_and_w_that_ran_as_one_are_joined(plans: SimpleNamespace) -> None:
    """A planned B at 3 and W at 4 ran as a BW from 3 to 5: as planned."""
    plan = plans.zb_h1(2, 1)
    trace = _as_planned(plan)
    (step,) = trace.steps
    kept = [e for e in step.events if (e.stage, e.kind) not in ((0, Kind.B), (0, Kind.W))]
    joined = TraceEvent(kind=Kind.BW, stage=0, virtual_stage=0, microbatch=0, asked=3000, start=3000, end=5000)
    found = diff_trace(plan, trace.model_copy(update={"steps": (TraceStep(step=0, events=(*kept, joined)),)}))
    event = next(event for event in found.events if event.id == "it0/s0/v0/mb0/BW")
    assert (event.start_error, event.duration_error) == (0, 0)
    assert not found.missing
    assert not found.unplanned


def test_what_did_not_run_is_missing(plans: SimpleNamespace) -> None:
    plan = plans.zb_h1(2, 2)
    trace = _as_planned(plan)
    (step,) = trace.steps
    cut = TraceStep(step=0, events=tuple(e for e in step.events if e.event(0).id != "it0/s1/v1/mb1/W"))
    assert diff_trace(plan, trace.model_copy(update={"steps": (cut,)})).missing == ("it0/s1/v1/mb1/W",)


def test_bug_diff_of_what_takes_no_time(plans: SimpleNamespace) -> None:
    """A plan or a step without time, or without events, ended in ZeroDivisionError or in Python's own words."""
    plan = plans.zb_h1(2, 2)
    trace = _as_planned(plan)
    (step,) = trace.steps
    instant = tuple(event.model_copy(update={"start": 0, "end": 0, "asked": 0}) for event in step.events)
    real = trace.model_copy(update={"simulated": False})
    with pytest.raises(ValueError, match="the step of the trace takes no time; give another --step"):
        diff_trace(plan, real, TraceStep(step=0, events=instant))
    with pytest.raises(ValueError, match="the step of the trace has no events; give another --step"):
        diff_trace(plan, trace, TraceStep(step=0, events=()))
    still = plan.model_copy(update={"events": tuple(replace(event, end=event.start) for event in plan.events)})
    with pytest.raises(ValueError, match="the plan's events take no time; give a plan that zbopt validate accepts"):
        diff_trace(still, real)
    with pytest.raises(ValueError, match="the plan's events take no time"):
        diff_trace(plan.model_copy(update={"events": ()}), trace)


def test_bug_diff_of_events_that_overlap(plans: SimpleNamespace) -> None:
    """An event that ended before the one that started before it on its stage ended in a KeyError."""
    plan = plans.zb_h1(2, 2)
    trace = _as_planned(plan)
    (step,) = trace.steps
    first, *others = step.events
    longer = first.model_copy(update={"end": first.end + 1_000_000})
    found = diff_trace(plan, trace, TraceStep(step=0, events=(longer, *others)))
    assert len(found.events) == len(plan.events)
