"""Chimera, DualPipe and DualPipeV by their published times and memory."""

from __future__ import annotations

from typing import Any

import pytest

from zbopt import Instance, Status, solve
from zbopt.analysis.metrics import figures
from zbopt.heuristics import HEURISTICS, NotApplicableError
from zbopt.validator import validate

BOTH_WAYS: dict[str, Any] = {"placement": "bidirectional", "virtual": 2}
FUSED = {"backward_ticks": None, "weight_ticks": None}


@pytest.mark.parametrize(
    ("p", "m", "backward", "makespan"),
    [(4, 4, 1, 10), (8, 8, 1, 22), (4, 8, 1, 18), (8, 32, 1, 70), (4, 4, 2, 16), (8, 8, 2, 36)],
)
def test_chimera(p: int, m: int, backward: int, makespan: int) -> None:
    """arXiv 2107.06925, table 2: bubble ratio (p-2)/(2m+p-2) at F = BW, (p-2)/(3m/2+p-2) at BW = 2F and m = p (c27).

    That is (2m + p - 2) F, and 3m + 2(p - 2). Activations: p/2 + 1 on the outermost stages to p in the middle.
    """
    instance = Instance.uniform(stages=p, microbatches=m, **BOTH_WAYS, **FUSED, fused_backward_ticks=backward)
    schedule = HEURISTICS["chimera"](instance)
    found = figures(schedule)
    assert validate(instance, schedule).violations == ()
    assert found.makespan == makespan
    assert (min(found.peak_memory), max(found.peak_memory)) == (p // 2 + 1, p)
    assert found.bubble_over_makespan == pytest.approx(
        (p - 2) / (2 * m + p - 2 if backward == 1 else 3 * m / 2 + p - 2)
    )


@pytest.mark.parametrize(("backward", "optimum"), [(1, 10), (2, 16)])
def test_two_directions_have_chimeras_optimum(backward: int, optimum: int) -> None:
    """c27: p = 4, two microbatches each way; exact, and equal to Chimera's closed forms."""
    fields = {**BOTH_WAYS, **FUSED, "fused_backward_ticks": backward}
    result = solve(Instance.uniform(stages=4, microbatches=4, **fields), time_limit_s=60, workers=2)
    assert (result.status, result.value) == (Status.OPTIMAL, optimum)


@pytest.mark.parametrize(("overlapped", "bubble"), [(3, 6), (2, 3)])
def test_dualpipe(overlapped: int, bubble: int) -> None:
    """deepseek-ai/DualPipe, README at 3da1bbe (c24): p = 8, m = 20, F = W = 1, BW = 2 and F&B as given.

    The bubble is (p/2 - 1)(F&B + BW - 3W), on the stages in the middle; p + 1 activations.
    """
    instance = Instance.uniform(stages=8, microbatches=20, **BOTH_WAYS, fused_backward_ticks=2)
    instance = Instance.model_validate(instance.model_dump() | {"overlapped_ticks": overlapped})
    schedule = HEURISTICS["dualpipe"](instance)
    found = figures(schedule)
    assert validate(instance, schedule).violations == ()
    assert found.makespan - found.busy_ticks[3] == bubble
    assert max(found.peak_memory) == 9
    assert instance.replicas == 2


def test_dualpipe_v() -> None:
    """Victarry/PP-Schedule-Visualization, formula.py (c25): p = 4, m = 16, F = W = B = 2, F&B = 5.5 a stage: 95.5.

    In quarters, 382; the last stage is active for 90.25, its bubble is (p - 1)(F&B + BW - 3W) = 5.25.
    Activations: 2p + 1 of a virtual stage (DualPipe's p + 1 on twice the devices), half as much of a stage.
    """
    instance = Instance.uniform(
        stages=4,
        microbatches=16,
        placement="v",
        virtual=2,
        forward_ticks=4,
        backward_ticks=4,
        weight_ticks=4,
        fused_backward_ticks=8,
    )
    instance = Instance.model_validate(instance.model_dump() | {"overlapped_ticks": 11})
    schedule = HEURISTICS["dualpipe-v"](instance)
    found = figures(schedule)
    assert validate(instance, schedule).violations == ()
    assert (found.makespan, found.busy_ticks[3]) == (4 * 95.5, 4 * 90.25)
    assert max(found.peak_memory) == 4.5


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v"])
def test_without_overlap_they_run_one_after_the_other(name: str) -> None:
    """This order with F and BW in turn is valid too: it takes no less than the load, 20 (F + BW)."""
    placement = "bidirectional" if name == "dualpipe" else "v"
    instance = Instance.uniform(stages=4, microbatches=20, placement=placement, virtual=2, fused_backward_ticks=2)
    schedule = HEURISTICS[name](instance)
    assert validate(instance, schedule).violations == ()
    assert figures(schedule).makespan >= 20 * (1 + 2) * (1 if name == "dualpipe" else 2)


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("chimera", {}, "two routes; give placement bidirectional"),
        ("dualpipe", {"stages": 3, **BOTH_WAYS}, "dualpipe: 3 stages and 8 microbatches; both have to be even"),
        ("dualpipe", {"microbatches": 6, **BOTH_WAYS}, "dualpipe: 3 microbatches a stream; it needs at least 4"),
        ("dualpipe", {**BOTH_WAYS}, "dualpipe: the backward is never whole; give fused_backward_ticks"),
        ("dualpipe-v", {}, "dualpipe-v: the placement is not v with one route"),
    ],
)
def test_where_they_are_not_defined(name: str, fields: dict[str, Any], reason: str) -> None:
    """Each error says which rule the instance breaks, and what to take instead."""
    with pytest.raises(NotApplicableError, match=reason):
        HEURISTICS[name](Instance.uniform(**({"stages": 4, "microbatches": 8} | fields)))


def test_overlapped_ops_lower_the_bound() -> None:
    """p = 8, m = 20 with F&B = 2 for F = 1 and BW = 2: of 20 microbatches 19 may save 1: no less than 60 - 19 = 41.

    Stages 3 and 4 start after 3 forwards at the earliest: 44.
    """
    instance = Instance.uniform(stages=8, microbatches=20, **BOTH_WAYS, fused_backward_ticks=2)
    instance = Instance.model_validate(instance.model_dump() | {"overlapped_ticks": 2})
    result = solve(instance, time_limit_s=60, workers=2)
    assert result.bound.value == 44
    assert result.value is not None
    assert 44 <= result.value <= 52
    assert result.best_heuristic is not None
