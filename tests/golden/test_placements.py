"""Placements of several virtual stages, ragged sizes, and where a zero bubble exists, by their published values."""

from __future__ import annotations

from typing import Any

import pytest

from zbopt import Instance, Status, solve

FUSED = {"backward_ticks": None, "weight_ticks": None, "fused_backward_ticks": 1}
INTERLEAVED = {"placement": "interleaved", "virtual": 2}


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({**FUSED, **INTERLEAVED, "stages": 3, "microbatches": 4, "memory_cap": 3}, 21),
        ({**FUSED, **INTERLEAVED, "stages": 4, "microbatches": 10}, 46),
        ({**FUSED, **INTERLEAVED, "stages": 4, "microbatches": 2}, 18),
        ({"placement": "v", "virtual": 2, "stages": 4, "microbatches": 1}, 17),
    ],
    ids=["ragged-p3-m4-cap-6-chunks", "c21-m10-of-p4", "m2-below-p4", "v-m1-below-p4"],
)
def test_ragged_sizes_need_no_rule(fields: dict[str, Any], most: int) -> None:
    """Proved optima, at most as long as published.

    3 stages, 4 microbatches, cap of 6 halves: 21 in the project's issue. c21 (Megatron-LM refuses m = 10 at p = 4):
    46, which is (mv + p - 1)(F + BW) = 23 * 2. m = 2 < p: with n = 8 slices in turn, none twice at once,
    (m + n - 1)(F + BW) = 18. V, m = 1: n forwards, n B and a W, 17.
    """
    result = solve(Instance.uniform(**fields), time_limit_s=60, workers=2)
    assert result.status is Status.OPTIMAL
    assert result.value is not None
    assert result.value <= most


@pytest.mark.parametrize("p", [4, 5, 6])
def test_zero_bubble_exists_at_twice_p_less_one(p: int) -> None:
    """m = 2p, unit times, cap 2p - 1 (c05, c18): the largest stage span is the load, 3m, found and proved."""
    instance = Instance.uniform(stages=p, microbatches=2 * p, memory_cap=2 * p - 1, objective="max_stage_span")
    result = solve(instance, time_limit_s=60, workers=2)
    assert (result.status, result.value, result.bound.value) == (Status.OPTIMAL, 6 * p, 6 * p)
