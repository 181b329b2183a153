"""Interleaved 1F1B with its group size, looped BFS and interleaved zero bubble, by their closed forms."""

from __future__ import annotations

from fractions import Fraction

import pytest

from zbopt.analysis.metrics import Figures, figures
from zbopt.heuristics import HEURISTICS, NotApplicableError
from zbopt.heuristics.interleaved import interleaved
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule
from zbopt.validator import validate


def fused(p: int, v: int, m: int, ticks: int = 1) -> Instance:
    """Return an instance with F = 1 and BW = 2 on a stage: ``ticks`` and twice that on a virtual stage."""
    placement = {"placement": "linear"} if v == 1 else {"placement": "interleaved", "virtual": v}
    return Instance.uniform(
        stages=p,
        microbatches=m,
        forward_ticks=ticks,
        backward_ticks=None,
        weight_ticks=None,
        fused_backward_ticks=2 * ticks,
        **placement,  # type: ignore[arg-type]
    )


def measured(schedule: Schedule) -> Figures:
    assert validate(schedule.instance, schedule).valid
    return figures(schedule)


@pytest.mark.parametrize(
    ("p", "m", "v", "time", "bubble"),
    [
        (4, 8, 1, 33, Fraction(3, 11)),
        (4, 8, 2, Fraction(57, 2), Fraction(3, 19)),
        (4, 8, 4, Fraction(105, 4), Fraction(3, 35)),
        (6, 12, 3, 41, Fraction(5, 41)),
        (4, 16, 2, Fraction(105, 2), Fraction(3, 35)),
    ],
)
def test_interleaved_time_and_bubble(p: int, m: int, v: int, time: Fraction, bubble: Fraction) -> None:
    """Arxiv 2104.04473: (F + BW)(m + (p-1)/v) and (p-1)/(vm + p-1) at F=1 BW=2 a stage; looped BFS takes the same."""
    for name in ("1f1b",) if v == 1 else ("interleaved", "looped-bfs"):
        found = measured(HEURISTICS[name](fused(p, v, m)))
        assert Fraction(found.makespan, v) == time == 3 * (m + Fraction(p - 1, v))
        assert bubble == Fraction(p - 1, v * m + p - 1)
        assert found.bubble_over_makespan == pytest.approx(float(bubble))


def test_peak_memory_of_interleaved_does_not_grow_with_m() -> None:
    """Stage 0 of p=4 v=2 holds 2(p - 1) + (v - 1)p + 1 = 11 halves; looped BFS holds all m."""
    for m in (8, 16, 64):
        assert max(measured(HEURISTICS["interleaved"](fused(4, 2, m))).peak_memory) == Fraction(11, 2)
        assert max(measured(HEURISTICS["looped-bfs"](fused(4, 2, m))).peak_memory) == m


@pytest.mark.parametrize("group", range(4, 17))
def test_any_group_size(group: int) -> None:
    """P=4 v=2 m=16: (mv + p - 1) * 3 = 105 with any group; where it divides m, 2(p - 1) + (v - 1)g + 1 halves."""
    found = measured(interleaved(fused(4, 2, 16), group))
    assert found.makespan == 105
    if 16 % group == 0:
        assert max(found.peak_memory) == Fraction(2 * 3 + group + 1, 2)


@pytest.mark.parametrize("group", [3, 17])
def test_a_group_that_waits_for_itself_is_refused(group: int) -> None:
    """NVIDIA/Megatron-LM#1829: the group size "should range in [PP, M]"."""
    with pytest.raises(NotApplicableError, match=f"groups of {group} microbatches; give 4 to 16"):
        interleaved(fused(4, 2, 16), group)


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 8), (4, 4, 8), (6, 3, 12), (4, 2, 16), (8, 2, 16)])
def test_interleaved_zero_bubble(p: int, v: int, m: int) -> None:
    """Unit times: the load and the way down, 3mv + p - 1; span 3mv, no bubble; at most what interleaved 1F1B holds."""
    for objective, value in (("makespan", 3 * m * v + p - 1), ("max_stage_span", 3 * m * v)):
        instance = Instance.uniform(stages=p, microbatches=m, placement="interleaved", virtual=v, objective=objective)
        found = measured(HEURISTICS["interleaved-zb"](instance))
        assert getattr(found, objective) == value
        assert max(found.peak_memory) == Fraction(2 * (p - 1) + (v - 1) * p + 1, v)
