"""No closed argument is above a proved optimum where stages hold several virtual stages."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from exact import proved_optimum

from zbopt.bounds import ARGUMENTS
from zbopt.instance import Instance

BLOCKS, BLOCK = 10, 20
"""10 blocks of 20 instances: 200; test_bounds.py holds the same arguments against 520 more of every placement."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_bounds_on_v_placement(block: int) -> None:
    """2 stages, uneven times, communication, shares, short memory; the optimum is CP-SAT's."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        instance = _instance(Random(seed))
        found = {name: argument(instance) for name, argument in ARGUMENTS.items()}
        best = proved_optimum(instance)
        above = {name: bound.value for name, bound in found.items() if bound is not None and bound.value > best}
        assert above == {}, f"seed {seed}: above the optimum {best}"


def test_turns_and_area_at_unit_times() -> None:
    """Section 5 and 6 of models/bounds.md, p=8 m=16 k=8: 96 + 2p - 1 - k = 103; k=4: m(4p + 4)/k = 144."""
    for k, name, value in ((8, "turns", 103), (4, "area", 144)):
        instance = Instance.uniform(
            stages=8,
            microbatches=16,
            placement="v",
            virtual=2,
            memory_cap=Fraction(k, 2),
            objective="max_stage_span",
        )
        bound = ARGUMENTS[name](instance)
        assert bound is not None
        assert bound.value == value


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
