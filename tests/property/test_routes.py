"""Microbatches that take different routes or times: what the rules may assume of them, and what not."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from brute_force import optimum
from exact import FREE, known_value, proved_optimum, solver
from random_instances import random_instance, random_schedule

from zbopt.bounds import lower_bound
from zbopt.bounds.relax import whole
from zbopt.cpsat.formulation import Formulation
from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.instance import Instance
from zbopt.metrics import figures
from zbopt.validator import validate


def unlike(seed: int) -> Instance:
    """At most eight pairs of virtual stage and microbatch, with two routes, own times, or both."""
    random = Random(f"unlike {seed}")
    while True:
        instance = random_instance(random, most_stages=3, most_microbatches=4, unlike=True)
        passes = len(list(instance.passes()))
        if not instance.alike and passes <= (6 if instance.may_split and instance.may_fuse else 8):
            return instance


@pytest.mark.parametrize("block", range(12))
def test_brute_force_cpsat_bounds_and_validator_agree(block: int) -> None:
    """[D1] within classes loses nothing: one optimum by exhaustion, with the rules and without; no bound above it."""
    for seed in range(block * 8, block * 8 + 8):
        instance = unlike(seed)
        best = optimum(instance)
        assert best is not None
        assert (proved_optimum(instance), proved_optimum(instance, FREE)) == (best, best), f"seed {seed}"
        assert lower_bound(instance).value <= best, f"seed {seed}"
        schedule = random_schedule(Random(seed), instance)
        assert validate(instance, schedule).violations == ()
        assert figures(schedule).value(instance.objective) >= best


@pytest.mark.parametrize("block", range(4))
def test_heuristics_are_valid_or_say_why_not(block: int) -> None:
    """Every heuristic on instances of two routes and own times, caps of one microbatch too; list always answers."""
    for seed in range(block * 20, block * 20 + 20):
        instance = random_instance(Random(f"heuristic {seed}"), most_stages=5, most_microbatches=8, unlike=True)
        answered = set()
        for name, heuristic in HEURISTICS.items():
            try:
                schedule = heuristic(instance)
            except (CannotFitError, NotApplicableError):
                continue
            answered.add(name)
            assert validate(instance, schedule).violations == (), f"seed {seed}: {name}"
        assert "list" in answered, f"seed {seed}"


def test_one_order_of_unlike_microbatches_misses_the_optimum() -> None:
    """p = 2, m = 2: 15 ticks by exhaustion, F and backward in different orders; 16 with either order on all ops."""
    own = {"microbatches": [1], "forward_ticks": [2, 1], "backward_ticks": [2, 2], "weight_ticks": [2, 1]}
    instance = Instance.model_validate(
        {
            "stages": 2,
            "microbatches": 2,
            "forward_ticks": [1, 4],
            "backward_ticks": [1, 4],
            "weight_ticks": [2, 1],
            "microbatch_times": [own],
        }
    )
    assert optimum(instance) == proved_optimum(instance) == 15
    assert [_in_order(instance, order) for order in ((0, 1), (1, 0))] == [16, 16]


def _in_order(instance: Instance, order: tuple[int, ...]) -> int:
    """Least makespan with every kind of op of every virtual stage in this order of microbatches."""
    graph = expand(instance)
    formulation = Formulation(whole(graph), 2 * known_value(instance), minimise=True, rules=FREE)
    for (kind, where, microbatch, iteration), before in graph.index.items():
        for j, k in pairwise(order):
            if microbatch == j:
                after = graph.index[kind, where, k, iteration]  # type: ignore[index]
                formulation.model.add(formulation.start[after] >= formulation.start[before])
    search = solver()
    search.solve(formulation.model)
    return round(search.objective_value)
