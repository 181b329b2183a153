"""The validator by hand: each rule on the least schedule that shows it, with the message that it prints."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from zbopt.analysis.metrics import figures
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event, Provenance, Schedule, read_schedule
from zbopt.validator import Code, Verdict, validate


def _schedule(instance: Instance, events: list[Event]) -> Schedule:
    return Schedule(instance=instance, provenance=Provenance(source="test"), events=tuple(events))


def _check(instance: Instance, *ops: tuple[str, int, int | None, int, int]) -> Verdict:
    """The verdict on ops given as (kind, stage, microbatch, start, end), one virtual stage a stage."""
    events = [Event(Kind(kind), s, None if mb is None else s, mb, start, end) for kind, s, mb, start, end in ops]
    return validate(instance, _schedule(instance, events))


def _lines(verdict: Verdict) -> list[str]:
    return [str(violation) for violation in verdict.violations]


def _codes(verdict: Verdict) -> set[Code]:
    return {violation.code for violation in verdict.violations}


ONE = Instance.uniform(stages=1, microbatches=1)
TWO = Instance.uniform(stages=2, microbatches=1, comm_ticks=1)
FUSED = Instance.uniform(
    stages=2, microbatches=2, backward_ticks=None, weight_ticks=None, fused_backward_ticks=1, memory_cap=1
)
STEP = (("F", 0, 0, 0, 1), ("B", 0, 0, 1, 2), ("W", 0, 0, 2, 3))
PAIR = (
    ("F", 0, 0, 0, 1),
    ("F", 1, 0, 2, 3),
    ("B", 1, 0, 3, 4),
    ("W", 1, 0, 4, 5),
    ("B", 0, 0, 5, 6),
    ("W", 0, 0, 6, 7),
)


def _tutor(starts: dict[str, int]) -> Verdict:
    """A plan of pipeline-parallelism-tutor: start by op, stage and microbatch; its B is our BW; unit times, cap 1."""
    ops = []
    for name, start in starts.items():
        stage, microbatch = map(int, name[1:].split("_"))
        ops.append(("F" if name[0] == "F" else "BW", stage, microbatch, start, start + 1))
    return _check(FUSED, *ops)


def test_tutor_overlap_and_late() -> None:
    """pipeline-parallelism-tutor @4cf0b72, test 'planViolations': overlap on stage 0, F1_0 before its input."""
    verdict = _tutor({"F0_0": 0, "F0_1": 0, "F1_0": 0, "B1_0": 2, "B0_0": 5})
    assert {Code.STAGE_OVERLAP, Code.DEPENDENCY_VIOLATION} <= _codes(verdict)
    assert "stage_overlap: stage 0: it0/s0/v0/mb1/F starts at 0, it0/s0/v0/mb0/F runs from 0 to 1" in _lines(verdict)
    assert "dependency_violation: it0/s1/v1/mb0/F starts at 0, its input arrives at 1 from it0/s0/v0/mb0/F" in _lines(
        verdict
    )


def test_tutor_memory() -> None:
    """Case of that source: two activations on stage 0 at cap 1, from the second F on. Microbatch 1 never ends there."""
    verdict = _tutor({"F0_0": 0, "F0_1": 1, "F1_0": 1, "B1_0": 2, "B0_0": 3})
    assert "memory_exceeded: stage 0 holds up to 2 from 1 to 4; its cap is 1" in _lines(verdict)
    assert verdict.peak_memory == (Fraction(2), Fraction(1))


def test_tutor_missing() -> None:
    """Case of that source: B of stage 0 without that of stage 1."""
    verdict = _tutor({"F0_0": 0, "F1_0": 1, "B0_0": 3})
    missing = "missing_dependency: it0/s0/v0/mb0/BW needs it0/s1/v1/mb0/BW, which is not in the schedule"
    assert missing in _lines(verdict)
    assert verdict.unfinished_activations == 1


def test_valid() -> None:
    """PAIR by hand: 7 ticks, three unit ops a stage; each activation lives from its F to its W."""
    assert _check(TWO, *PAIR) == Verdict(
        violations=(), makespan=7, busy_ticks=(3, 3), unfinished_activations=0, peak_memory=(Fraction(1), Fraction(1))
    )


def test_communication_counts_between_stages() -> None:
    """The input of stage 1 leaves at 1 and arrives at 2; the gradient leaves at 4 and arrives at 5."""
    early = [op if op[:2] != ("F", 1) else ("F", 1, 0, 1, 2) for op in PAIR]
    assert _lines(_check(TWO, *early)) == [
        "dependency_violation: it0/s1/v1/mb0/F starts at 1, its input arrives at 2 from it0/s0/v0/mb0/F"
    ]


def test_no_communication_on_one_stage() -> None:
    """V placement on one stage: both virtual stages follow each other at once whatever the latency."""
    instance = Instance.uniform(stages=1, microbatches=1, placement="v", virtual=2, comm_ticks=5)
    order = [(Kind.F, 0), (Kind.F, 1), (Kind.B, 1), (Kind.B, 0), (Kind.W, 1), (Kind.W, 0)]
    events = [Event(kind, 0, v, 0, i, i + 1) for i, (kind, v) in enumerate(order)]
    assert validate(instance, _schedule(instance, events)).valid


@pytest.mark.parametrize(
    ("op", "line"),
    [
        (("F", 0, 0, 3, 4), "duplicate_task: it0/s0/v0/mb0/F at 3 is a second event of its task, the first is at 0"),
        (("F", 0, 1, 3, 4), "unknown_task: it0/s0/v0/mb1/F names no microbatch from 0 to 0"),
        (("F", 0, None, 3, 4), "unknown_task: it0/s0/F names no virtual stage"),
        (("BW", 0, 0, 3, 4), "unknown_task: it0/s0/v0/mb0/BW is not called for: its backward must not be fused"),
        (("O", 0, None, 3, 4), "unknown_task: it0/s0/O is not called for: there is no barrier"),
        (("O", 0, 0, 3, 4), "unknown_task: it0/s0/v0/mb0/O is not called for: an O is of its whole stage"),
        (("W", 1, 0, 3, 4), "invalid_stage: it0/s1/v1/mb0/W is on stage 1; stages are 0 to 0"),
    ],
)
def test_one_op_too_many(op: tuple[str, int, int | None, int, int], line: str) -> None:
    """A whole step, and an op that it does not call for."""
    assert _lines(_check(ONE, *STEP, op)) == [line]


def test_wrong_virtual_stage() -> None:
    """Virtual stage 1 is placed on stage 1; an op of it on stage 0 still counts as that op."""
    events = [Event(Kind(k), s, s, mb, start, end) for k, s, mb, start, end in PAIR]
    moved = [replace(event, stage=0) if event.id == "it0/s1/v1/mb0/W" else event for event in events]
    assert _lines(validate(TWO, _schedule(TWO, moved))) == [
        "invalid_stage: it0/s0/v1/mb0/W: virtual stage 1 is on stage 1"
    ]


def test_other_iteration() -> None:
    events = [Event(Kind(k), s, s, mb, start, end) for k, s, mb, start, end in STEP]
    verdict = validate(ONE, _schedule(ONE, [*events, Event(Kind.F, 0, 0, 0, 3, 4, iteration=1)]))
    assert _lines(verdict) == ["unknown_task: it1/s0/v0/mb0/F is not called for: the instance has iteration 0 alone"]


def test_split_where_only_fused() -> None:
    instance = Instance.uniform(
        stages=1, microbatches=1, backward_ticks=None, weight_ticks=None, fused_backward_ticks=2
    )
    assert _lines(_check(instance, *STEP)) == [
        "unknown_task: it0/s0/v0/mb0/B is not called for: its backward must not be split",
        "unknown_task: it0/s0/v0/mb0/W is not called for: its backward must not be split",
        "missing_task: it0/s0/v0/mb0/BW is not in the schedule",
        "unfinished_activation: the activation of it0/s0/v0/mb0/F is not released: BW is missing",
    ]


def test_mixed_backward() -> None:
    """Where both are allowed: a whole pair makes BW the one too many; a lone B is that beside BW."""
    free = Instance.uniform(stages=1, microbatches=1, fused_backward_ticks=1)
    fused = ("BW", 0, 0, 3, 4)
    assert _lines(_check(free, *STEP, fused)) == [
        "unknown_task: it0/s0/v0/mb0/BW is one too many: this backward is both split and fused"
    ]
    assert _lines(_check(free, STEP[0], STEP[1], fused)) == [
        "unknown_task: it0/s0/v0/mb0/B is one too many: this backward is both split and fused"
    ]
    assert _lines(_check(free, STEP[0])) == [
        "missing_task: it0/s0/v0/mb0/BW (or B and W) is not in the schedule",
        "unfinished_activation: the activation of it0/s0/v0/mb0/F is not released: BW is missing",
    ]


def test_first_stage_without_b() -> None:
    """W of the first stage takes the gradient itself, which leaves stage 1 at 4 and arrives at 5."""
    times = {"forward_ticks": 1, "backward_ticks": (None, 1), "weight_ticks": 1, "comm_ticks": 1}
    instance = Instance.model_validate({"stages": 2, "microbatches": 1, **times})
    ops = [op for op in PAIR if op[:2] not in (("B", 0), ("W", 0))]
    assert _check(instance, *ops, ("W", 0, 0, 5, 6)).valid
    assert _lines(_check(instance, *ops, ("W", 0, 0, 4, 5))) == [
        "dependency_violation: it0/s0/v0/mb0/W starts at 4, its input arrives at 5 from it0/s1/v1/mb0/B"
    ]
    extra = _check(instance, *ops, ("W", 0, 0, 5, 6), ("B", 0, 0, 6, 7))
    assert _lines(extra) == ["unknown_task: it0/s0/v0/mb0/B is not called for: the first virtual stage has no B"]


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (2, "invalid_interval: it0/s0/v0/mb0/W runs from 2 to 2; it must end after it starts"),
        (1, "invalid_interval: it0/s0/v0/mb0/W runs from 2 to 1; it must end after it starts"),
        (5, "wrong_duration: it0/s0/v0/mb0/W takes 3 ticks, the instance says 1"),
    ],
)
def test_interval(end: int, line: str) -> None:
    assert _lines(_check(ONE, STEP[0], STEP[1], ("W", 0, 0, 2, end))) == [line]


def test_negative_time() -> None:
    ops = [(kind, s, mb, start - 1, end - 1) for kind, s, mb, start, end in STEP]
    assert _lines(_check(ONE, *ops)) == ["invalid_interval: it0/s0/v0/mb0/F runs from -1 to 0; times start at 0"]


def test_cycle() -> None:
    """W before its B, B before its F: late inputs, and an order that no times mend."""
    verdict = _check(ONE, ("W", 0, 0, 0, 1), ("B", 0, 0, 2, 3), ("F", 0, 0, 5, 6))
    assert [violation.code for violation in verdict.violations] == [Code.DEPENDENCY_VIOLATION] * 2 + [Code.CYCLE]
    assert verdict.violations[-1].message.startswith("2 ops wait for each other in a circle: it0/s0/v0/mb0/")


def test_late_alone_is_no_cycle() -> None:
    """B starts a tick early, but after its F began: later times mend that."""
    verdict = _check(TWO, *PAIR[:4], ("B", 0, 0, 4, 5), PAIR[5])
    assert _codes(verdict) == {Code.DEPENDENCY_VIOLATION}


def test_optimizer_in_a_circle() -> None:
    """O before the W of its own stage waits for it, and it for O by the order of the stage."""
    instance = Instance.uniform(stages=1, microbatches=1, barrier="global")
    verdict = _check(instance, STEP[0], STEP[1], ("O", 0, None, 2, 2), ("W", 0, 0, 3, 4))
    assert [violation.code for violation in verdict.violations] == [Code.OPTIMIZER_BEFORE_GRADIENT, Code.CYCLE]
    assert verdict.violations[1].message.startswith("2 ops wait for each other in a circle: it0/s0/")


def test_ops_at_one_time_have_no_order() -> None:
    """W and B at the same time overlap, but neither comes before the other: no circle."""
    verdict = _check(ONE, STEP[0], ("W", 0, 0, 1, 2), ("B", 0, 0, 1, 2))
    assert _codes(verdict) == {Code.STAGE_OVERLAP, Code.DEPENDENCY_VIOLATION}


def test_each_op_inside_a_long_one_overlaps() -> None:
    """F takes 9 ticks; B and W, one after the other, both lie inside it."""
    verdict = _check(ONE, ("F", 0, 0, 0, 9), ("B", 0, 0, 2, 3), ("W", 0, 0, 4, 5))
    assert [line for line in _lines(verdict) if line.startswith("stage_overlap")] == [
        "stage_overlap: stage 0: it0/s0/v0/mb0/B starts at 2, it0/s0/v0/mb0/F runs from 0 to 9",
        "stage_overlap: stage 0: it0/s0/v0/mb0/W starts at 4, it0/s0/v0/mb0/F runs from 0 to 9",
    ]


def test_early_release_hides_no_other_activation() -> None:
    """Microbatch 0 is released at 2, before its F at 5: that is nothing held, not one less. Microbatch 1 holds 1."""
    instance = Instance.uniform(stages=1, microbatches=2)
    late = (("B", 0, 0, 0, 1), ("W", 0, 0, 1, 2), ("F", 0, 0, 5, 6))
    verdict = _check(instance, *late, ("F", 0, 1, 2, 3), ("B", 0, 1, 3, 4), ("W", 0, 1, 4, 5))
    assert verdict.peak_memory == (Fraction(1),)


def test_share_is_released_at_b() -> None:
    """F F B B W W, half held until W: 1, 2, then 2 - 1/2 after the first B; cap 3/2 is exceeded from 1 to 3."""
    instance = Instance.uniform(stages=1, microbatches=2, weight_share="1/2", memory_cap="3/2")
    ops = [
        ("F", 0, 0, 0, 1),
        ("F", 0, 1, 1, 2),
        ("B", 0, 0, 2, 3),
        ("B", 0, 1, 3, 4),
        ("W", 0, 0, 4, 5),
        ("W", 0, 1, 5, 6),
    ]
    assert _lines(_check(instance, *ops)) == ["memory_exceeded: stage 0 holds up to 2 from 1 to 3; its cap is 3/2"]


def test_release_makes_room_at_the_same_time() -> None:
    """Cap 1: the second F starts exactly where the first W ends."""
    instance = Instance.uniform(stages=1, microbatches=2, memory_cap=1)
    again = [(kind, s, 1, start + 3, end + 3) for kind, s, _, start, end in STEP]
    verdict = _check(instance, *STEP, *again)
    assert verdict.valid
    assert verdict.peak_memory == (Fraction(1),)


def test_each_interval_above_the_cap_is_named() -> None:
    """Cap 1, twice two at once: from 1 to 5 and from 7 to 11, when the first W of each pair ends."""
    instance = Instance.uniform(stages=1, microbatches=4, memory_cap=1)
    ops = []
    for first, at in ((0, 0), (2, 6)):
        order = [("F", first), ("F", first + 1), ("B", first), ("B", first + 1), ("W", first), ("W", first + 1)]
        ops += [(kind, 0, mb, at + i, at + i + 1) for i, (kind, mb) in enumerate(order)]
    assert _lines(_check(instance, *ops)) == [
        "memory_exceeded: stage 0 holds up to 2 from 1 to 5; its cap is 1",
        "memory_exceeded: stage 0 holds up to 2 from 7 to 11; its cap is 1",
    ]


def test_never_released() -> None:
    instance = Instance.uniform(stages=1, microbatches=1, memory_cap="1/2")
    assert "memory_exceeded: stage 0 holds up to 1 from 0 on, never released; its cap is 1/2" in _lines(
        _check(instance, STEP[0])
    )


@pytest.mark.parametrize(
    ("barrier", "at", "valid"), [("global", 5, False), ("global", 7, True), ("post_validation", 5, True)]
)
def test_optimizer(barrier: str, at: int, valid: bool) -> None:
    """W of stage 1 ends at 5, that of stage 0 at 7: O of stage 1 waits for both, or for its own alone."""
    instance = Instance.uniform(stages=2, microbatches=1, barrier=barrier)
    verdict = _check(instance, *PAIR, ("O", 0, None, 7, 7), ("O", 1, None, at, at))
    message = f"it0/s1/O starts at {at}, it0/s0/v0/mb0/W ends at 7"
    assert _lines(verdict) == ([] if valid else [f"optimizer_before_gradient: {message}"])
    assert _lines(_check(instance, *PAIR, ("O", 0, None, 7, 7))) == ["missing_task: it0/s1/O is not in the schedule"]


def test_optimizer_without_gradient() -> None:
    instance = Instance.uniform(stages=1, microbatches=1, barrier="global")
    assert "missing_dependency: it0/s0/O needs 1 gradients that are not in the schedule" in "\n".join(
        _lines(_check(instance, *STEP[:2], ("O", 0, None, 3, 3)))
    )


def test_step_of_no_length_overlaps_only_inside() -> None:
    """An O of 0 ticks at the end of an op is beside it, in its middle is inside it."""
    instance = Instance.uniform(stages=1, microbatches=1, weight_ticks=2, barrier="global")
    ops = (STEP[0], STEP[1], ("W", 0, 0, 2, 4))
    assert _check(instance, *ops, ("O", 0, None, 4, 4)).valid
    assert Code.STAGE_OVERLAP not in _codes(_check(instance, *ops, ("O", 0, None, 2, 2)))
    assert Code.STAGE_OVERLAP in _codes(_check(instance, *ops, ("O", 0, None, 3, 3)))


def test_nothing_at_all() -> None:
    """No event: every task is missing, and the figures are zero."""
    verdict = _check(TWO)
    assert _codes(verdict) == {Code.MISSING_TASK}
    assert len(verdict.violations) == 6
    assert (verdict.makespan, verdict.busy_ticks, verdict.peak_memory) == (0, (0, 0), (Fraction(0),) * 2)


@pytest.mark.parametrize(
    "number",
    [-(10**5000), -(2**63), -1, 2**63, 10**30, 10**5000],
    ids=["-10^5000", "-2^63", "-1", "2^63", "10^30", "10^5000"],
)
@pytest.mark.parametrize("field", ["stage", "virtual_stage", "microbatch", "start", "end", "iteration"])
def test_any_number_gets_a_verdict(field: str, number: int) -> None:
    """Python refuses to write out numbers of more than 4300 digits; a message about one must not raise."""
    events = [Event(Kind(k), s, s, mb, start, end) for k, s, mb, start, end in STEP]
    for i, event in enumerate(events):
        changes: dict[str, Any] = {field: number}
        verdict = validate(ONE, _schedule(ONE, [*events[:i], replace(event, **changes), *events[i + 1 :]]))
        assert not verdict.valid
        assert all(len(str(violation)) < 400 for violation in verdict.violations)


def _write_million(path: Path) -> None:
    """64 stages, 5208 microbatches, F, B and W of one tick: 999,936 events, all F first, then B and W in turn."""
    stages, microbatches = 64, 5208
    head = {"stages": stages, "microbatches": microbatches, "forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1}
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schema": "zbopt.schedule/1", "provenance": {"source": "test"}, ')
        file.write(f'"instance": {json.dumps(head)}, "events": [\n')
        comma = ""
        for s in range(stages):
            for mb in range(microbatches):
                back = stages + microbatches + 2 * mb + stages - 1 - s
                for kind, start in (("F", s + mb), ("B", back), ("W", back + 1)):
                    fields = f'"kind": "{kind}", "stage": {s}, "virtual_stage": {s}, "microbatch": {mb}'
                    file.write(f'{comma}{{{fields}, "start": {start}, "end": {start + 1}}}')
                    comma = ",\n"
        file.write("]}\n")


@pytest.mark.alone
def test_a_million_events(tmp_path: Path) -> None:
    """Reading and validating takes at most ten times what json.loads of the same file takes; measured: four times."""
    path = tmp_path / "million.json"
    _write_million(path)
    text = path.read_text(encoding="utf-8")
    begin = time.process_time()
    json.loads(text)
    loads = time.process_time() - begin
    begin = time.process_time()
    schedule = read_schedule(path)
    verdict = validate(schedule.instance, schedule)
    taken = time.process_time() - begin
    assert len(schedule.events) == 999_936
    assert verdict.valid
    assert verdict.makespan == figures(schedule).makespan == 64 + 5208 + 2 * 5208 + 63
    assert taken <= 10 * loads
