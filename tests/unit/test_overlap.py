"""An F and a BW as one op: what the validator asks of it, who refuses it, and how it is drawn."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from zbopt.analysis.idle import explain
from zbopt.analysis.metrics import figures
from zbopt.bounds import lower_bound
from zbopt.bounds.relax import whole
from zbopt.cpsat.formulation import Formulation
from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS, candidates_of
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event, Provenance, Schedule
from zbopt.replay.checks import check_schedule
from zbopt.reports.figure import draw
from zbopt.reports.gantt import gantt
from zbopt.reports.svg import gantt_svg
from zbopt.validator import validate


def instance(**changes: Any) -> Instance:
    """One stage, F = 2, BW = 3, both in one op 4."""
    fields = {"stages": 1, "microbatches": 2, "forward_ticks": 2, "fused_backward_ticks": 3, "overlapped_ticks": 4}
    return Instance.model_validate(fields | changes)


def schedule(of: Instance, *ops: tuple[Kind, int, int, int]) -> Schedule:
    """Events (kind, microbatch, start, end) on stage 0."""
    events = tuple(Event(kind, 0, 0, microbatch, start, end) for kind, microbatch, start, end in ops)
    return Schedule(instance=of, provenance=Provenance(source="hand"), events=events)


PAIRED = ((Kind.F, 0, 0, 2), (Kind.F, 1, 2, 6), (Kind.BW, 0, 2, 6), (Kind.BW, 1, 6, 9))


def test_a_pair_is_one_op() -> None:
    """F of 0, then F of 1 with BW of 0 in 4 ticks, then BW of 1: 9 ticks, all busy; two activations."""
    found = schedule(instance(), *PAIRED)
    verdict = validate(instance(), found)
    assert (verdict.violations, verdict.makespan, verdict.busy_ticks, verdict.peak_memory) == ((), 9, (9,), (2,))
    known = figures(found)
    assert (known.makespan, known.busy_ticks, known.bubble_over_makespan) == (9, (9,), 0)
    assert [e.start for e in explain(found).critical_path] == [0, 2, 6]


@pytest.mark.parametrize(
    ("changes", "ops", "messages"),
    [
        ({"overlapped_ticks": None}, PAIRED,
         ["it0/s0/v0/mb1/F takes 4 ticks, the instance says 2", "it0/s0/v0/mb0/BW takes 4 ticks, the instance says 3",
          "stage 0: it0/s0/v0/mb0/BW starts at 2, it0/s0/v0/mb1/F runs from 2 to 6"]),
        ({"overlapped_ticks": 5}, PAIRED,
         ["it0/s0/v0/mb1/F takes 4 ticks, the instance says 2", "it0/s0/v0/mb0/BW takes 4 ticks, the instance says 3",
          "stage 0: it0/s0/v0/mb0/BW starts at 2, it0/s0/v0/mb1/F runs from 2 to 6"]),
        ({}, ((Kind.F, 0, 0, 2), (Kind.F, 1, 2, 6), (Kind.BW, 0, 6, 9), (Kind.BW, 1, 9, 12)),
         ["it0/s0/v0/mb1/F takes 4 ticks, the instance says 2"]),
        ({}, ((Kind.F, 0, 0, 2), (Kind.F, 1, 2, 4), (Kind.BW, 0, 2, 5), (Kind.BW, 1, 5, 8)),
         ["stage 0: it0/s0/v0/mb0/BW starts at 2, it0/s0/v0/mb1/F runs from 2 to 4"]),
    ],
    ids=["not-allowed", "other-time", "half-alone", "own-times"],
)  # fmt: skip
def test_anything_else_is_refused(changes: dict[str, Any], ops: Any, messages: list[str]) -> None:
    """Without the field, of another length, a half without the other, or two ops of their own times at once."""
    found = validate(instance(**changes), schedule(instance(**changes), *ops))
    assert [violation.message for violation in found.violations] == messages


def test_bug_no_time_was_left_to_overlap() -> None:
    """`v-auto`, which overlaps nothing, searched first, and on a long step until time was over."""
    fields = {"forward_ticks": 2, "backward_ticks": 2, "weight_ticks": 2, "fused_backward_ticks": 4}
    alone = Instance.uniform(stages=4, microbatches=16, placement="v", virtual=2, **fields)
    instance = Instance.model_validate(alone.model_dump() | {"overlapped_ticks": 4})
    assert list(candidates_of(instance))[:4] == ["dualpipe", "dualpipe-v", "zb-auto", "v-auto"]
    assert list(candidates_of(alone))[:2] == ["zb-auto", "v-auto"]
    values = {name: figures(HEURISTICS[name](instance)).makespan for name in ("dualpipe-v", "v-auto")}
    assert values["dualpipe-v"] < values["v-auto"]


def test_load_counts_what_pairs_may_save() -> None:
    """2 (2 + 3) = 10, of which one pair, not two, may save 2 + 3 - 4 = 1: 9, and the schedule above has it."""
    assert lower_bound(instance()).value == 9


def test_engines_and_pytorch_refuse_it() -> None:
    """CP-SAT would have to choose the pairs, PyTorch runs the two in turn."""
    with pytest.raises(ValueError, match="overlapped_ticks: CP-SAT does not choose which F and BW run as one op"):
        Formulation(whole(expand(instance())), 9, minimise=True)
    assert [refusal.code for refusal in check_schedule(schedule(instance(), *PAIRED))] == ["overlapped"]


def test_bug_pictures_showed_one_of_a_pair() -> None:
    """F1 with BW0 from 2 to 6: in a terminal both names; elsewhere F1 above BW0, each half as high as F0 or BW1.

    Charts drew them on each other: the terminal showed the F alone, the others the BW with two numbers in one place.
    """
    found = schedule(instance(), *PAIRED)
    drawn = [str(line) for line in gantt(found, 80, coloured=False)]
    assert drawn[0] == "stage 0 F0------F1+BW0----------BW1---------"
    assert "F+BW both as one op" in drawn[2]
    assert next(str(line) for line in gantt(found, 20, coloured=False)) == "stage 0 F0F+BWBW1"
    assert 'height="11" fill="#1f4e9c"' in gantt_svg(found)
    ax = draw(found, Figure(figsize=(7, 1)).add_subplot())
    heights = {
        (float(box.x0), round(float(box.y0), 2), round(float(box.height), 2))
        for collection in ax.collections
        for box in (path.get_extents() for path in collection.get_paths())
    }
    assert heights == {(0, -0.42, 0.84), (2, -0.42, 0.42), (2, 0, 0.42), (6, -0.42, 0.84)}
    assert [text.get_position() for text in ax.texts if text.get_text() == "1"] == [(4, -0.21), (7.5, 0)]
