"""Times with a common divisor: what [D3] of models/formulation.md may divide, and what not."""

from __future__ import annotations

import pytest
from brute_force import optimum

from zbopt.portfolio.run import solve
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Status


@pytest.mark.parametrize(("objective", "halved", "whole"), [("makespan", 40, 80), ("max_stage_span", 34, 67)])
def test_bug_span_of_even_times_is_odd(objective: str, halved: int, whole: int) -> None:
    """The solver divided times by 2 under ``max_stage_span`` too, whose optimum here is odd: 67 stayed unproved.

    Two stages whose first starts move against each other; by the exhaustive solver. The makespan is the load of the
    second stage after its first input: 5 + 2 + 3 (2 + 1 + 8) = 40.
    """
    times = {"forward_ticks": [5, 2], "backward_ticks": [5, 1], "weight_ticks": [1, 8]}
    half = Instance.model_validate({"stages": 2, "microbatches": 3, "comm_ticks": 2, "objective": objective} | times)
    doubled = {name: [2 * t for t in row] for name, row in times.items()}
    even = Instance.model_validate({"stages": 2, "microbatches": 3, "comm_ticks": 4, "objective": objective} | doubled)
    assert (optimum(half), optimum(even)) == (halved, whole)
    result = solve(even, time_limit_s=600)
    assert (result.status, result.value, result.bound.value) == (Status.OPTIMAL, whole, whole)
