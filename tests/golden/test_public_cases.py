"""Public cases with one virtual stage a stage, whose answers their sources assert or a closed form gives."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from zbopt import Instance, Status, solve
from zbopt.analysis.metrics import figures
from zbopt.heuristics import HEURISTICS

FUSED = {"backward_ticks": None, "weight_ticks": None}
HALF = {"weight_share": "1/2"}

OPTIMA: list[tuple[str, dict[str, Any], int]] = [
    ("c01: (m+p-1)(F+BW) = 11 * 2", {**FUSED, "fused_backward_ticks": 1, "memory_cap": 4}, 22),
    ("c03: (m+p-1)(F+BW) = 11 * 3", {**FUSED, "fused_backward_ticks": 2, "memory_cap": 4}, 33),
    ("c04: (p-1)F + m(F+B+W) = 3 + 24", {**HALF, "memory_cap": 4}, 27),
    ("c04, span: 24 + (p-1)(F+B-W) = 24 + 3", {**HALF, "memory_cap": 4, "objective": "max_stage_span"}, 27),
    ("c05: zero bubble at 2p-1 = 7", {**HALF, "memory_cap": 7, "objective": "max_stage_span"}, 24),
    ("c05, makespan: (p-1)F + 24", {**HALF, "memory_cap": 7}, 27),
    ("c05 at cap 6.5: no zero bubble below 7", {**HALF, "memory_cap": 6.5, "objective": "max_stage_span"}, 25),
    ("c05 at cap 6", {**HALF, "memory_cap": 6, "objective": "max_stage_span"}, 25),
    ("c12: m < p, (m+p-1)(F+BW) = 5 * 2", {**FUSED, "fused_backward_ticks": 1, "microbatches": 2}, 10),
    ("c13: one stage, its load 5 * 3", {"stages": 1, "microbatches": 5}, 15),
]


@pytest.mark.parametrize(("case", "fields", "optimum"), OPTIMA, ids=[case.split(":")[0] for case, _, _ in OPTIMA])
def test_optimum_is_proved(case: str, fields: dict[str, Any], optimum: int) -> None:
    """c01 to c05, c12, c13: ezyang/pipeline-parallelism-tutor at 4cf0b72 (tests/engine.test.mjs, levels.js)."""
    instance = Instance.uniform(**({"stages": 4, "microbatches": 8} | fields))
    result = solve(instance, time_limit_s=600, workers=2)
    assert (result.status, result.value, result.bound.value) == (Status.OPTIMAL, optimum, optimum), case


def test_1f1b_and_gpipe_differ_in_memory_only() -> None:
    """c01, c02: both take (m+p-1)(F+BW) = 22; 1F1B holds p-s = 4, 3, 2, 1, GPipe m = 8 on every stage."""
    instance = Instance.uniform(
        stages=4, microbatches=8, backward_ticks=None, weight_ticks=None, fused_backward_ticks=1
    )
    one_f_one_b, gpipe = figures(HEURISTICS["1f1b"](instance)), figures(HEURISTICS["gpipe"](instance))
    assert (one_f_one_b.makespan, gpipe.makespan) == (22, 22)
    assert one_f_one_b.peak_memory == (4, 3, 2, 1)
    assert gpipe.peak_memory == (8, 8, 8, 8)


def test_two_bubble_ratios_of_one_schedule() -> None:
    """c01, c59: makespan 22 over work 16 is 3/11 idle of the total, and 3/8 of the work, which is another ratio."""
    instance = Instance.uniform(
        stages=4, microbatches=8, backward_ticks=None, weight_ticks=None, fused_backward_ticks=1
    )
    found = figures(HEURISTICS["1f1b"](instance))
    assert found.bubble_over_makespan == pytest.approx(3 / 11)
    assert Fraction(found.makespan - max(found.busy_ticks), max(found.busy_ticks)) == Fraction(3, 8)
