"""No lower bound is ever above a proved optimum: every closed argument, and every relaxation to a few stages."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from brute_force import optimum
from exact import any_instance, least, proved_optimum

from zbopt.bounds import ARGUMENTS, lower_bound
from zbopt.bounds.relax import keep_stages
from zbopt.graph import expand
from zbopt.problem.instance import Instance

BLOCKS, BLOCK = 26, 20
"""26 blocks of 20 instances: 520."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_bounds_stay_at_or_below_the_optimum(block: int) -> None:
    """Closed arguments, and relaxations to every proper set of stages, stay at or below CP-SAT's optimum."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        instance = any_instance(Random(seed))
        best = proved_optimum(instance)
        above = {name: bound for name, bound in _closed(instance).items() if bound > best}
        assert above == {}, f"seed {seed}: above the optimum {best}"
        graph = expand(instance)
        for count in range(1, instance.stages):
            for stages in combinations(range(instance.stages), count):
                # None would say that the relaxation has no solution within the optimum of the whole.
                assert least(keep_stages(graph, stages), best) is not None, f"seed {seed}: stages {stages}"


@pytest.mark.parametrize("block", range(10))
def test_closed_arguments_against_brute_force(block: int) -> None:
    """No closed argument is above the brute-force optimum, where at most twelve steps are to be put in order."""
    compared = 0
    for seed in range(10_000 + block * 40, 10_000 + (block + 1) * 40):
        instance = any_instance(Random(seed), most_microbatches=4)
        if instance.virtual_stages * instance.microbatches > 6:
            continue
        best = optimum(instance)
        assert best is not None
        assert lower_bound(instance).value <= best, f"seed {seed}"
        compared += 1
    assert compared >= 10


def _closed(instance: Instance) -> dict[str, int]:
    bounds = {name: argument(instance) for name, argument in ARGUMENTS.items()}
    return {name: bound.value for name, bound in bounds.items() if bound is not None}
