"""No closed argument is above a proved optimum where stages hold several virtual stages."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from exact import proved_optimum

from zbopt.analysis.metrics import figures
from zbopt.bounds import ARGUMENTS, lower_bound
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance

BLOCKS, BLOCK = 10, 20
"""10 blocks of 20 instances: 200; test_bounds.py holds the same arguments against 520 more of every placement."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_bounds_on_v_placement(block: int) -> None:
    """Two stages, uneven times, communication, shares, little memory: no bound is above CP-SAT's optimum."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        instance = _instance(Random(seed))
        found = {name: argument(instance) for name, argument in ARGUMENTS.items()}
        best = proved_optimum(instance)
        above = {name: bound.value for name, bound in found.items() if bound is not None and bound.value > best}
        assert above == {}, f"seed {seed}: above the optimum {best}"


@pytest.mark.parametrize(
    ("m", "k", "objective", "name", "value"),
    [
        (16, 8, "max_stage_span", "turns", 104),
        (16, 4, "max_stage_span", "area", 144),
        (16, 8, "max_stage_span", "last-forward", 119),
        (16, 14, "max_stage_span", "last-forward", 101),
        (24, 12, "makespan", "last-forward", 155),
        (24, 8, "makespan", "last-forward", 167),
    ],
)
def test_at_unit_times(m: int, k: int, objective: str, name: str, value: int) -> None:
    """Sections 5, 6 and 8 of models/bounds.md, p=8: 6m + 2p - k; m(4p + 4)/k; 6m + 6p - 1 - 3k for k < 2p under the
    largest span, and under the makespan for k <= 3p/2."""
    bound = ARGUMENTS[name](_unit(m, k, objective))
    assert bound is not None
    assert bound.value == value


@pytest.mark.parametrize(("p", "k"), [(4, 4), (4, 6), (5, 6), (6, 6), (6, 8), (8, 8), (8, 12)])
def test_adaptive_v_is_optimal_under_the_makespan(p: int, k: int) -> None:
    """Section 8 of models/bounds.md for k <= 3p/2 at unit times: 6m + 6p - 1 - 3k, which `v-auto` meets at m = 3p."""
    instance = _unit(3 * p, k, "makespan", stages=p)
    formula = 24 * p - 1 - 3 * k
    assert (lower_bound(instance).value, figures(HEURISTICS["v-auto"](instance)).makespan) == (formula, formula)


def _unit(microbatches: int, k: int, objective: str, *, stages: int = 8) -> Instance:
    return Instance.uniform(
        stages=stages,
        microbatches=microbatches,
        placement="v",
        virtual=2,
        memory_cap=Fraction(k, 2),
        objective=objective,
    )


def _instance(random: Random) -> Instance:
    stages = 2
    objective = random.choice(("makespan", "makespan", "max_stage_span"))
    # Three microbatches under the span are seconds each to prove.
    microbatches = 3 if objective == "makespan" and random.random() < 0.2 else 2
    times = {name: [random.randint(1, 4) for _ in range(2 * stages)] for name in ("forward", "backward", "weight")}
    fields: dict[str, object] = {f"{name}_ticks": ticks for name, ticks in times.items()}
    if random.random() < 0.3:
        fields["fused_backward_ticks"] = [random.randint(1, 7) for _ in range(2 * stages)]
    return Instance.model_validate(
        {
            **fields,
            "stages": stages,
            "microbatches": microbatches,
            "stage_of": [*range(stages), *reversed(range(stages))],
            "comm_ticks": random.randint(0, 2),
            "weight_share": random.choice((1, Fraction(1, 2), 0)),
            "memory_cap": random.choice((1, Fraction(3, 2), 2)),
            "objective": objective,
        }
    )
