"""Microbatches that take different routes or times: what the rules may assume of them, and what not."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from brute_force import optimum
from exact import FREE, known_value, proved_optimum, solver
from random_instances import random_instance, random_schedule

from zbopt.analysis.metrics import figures
from zbopt.bounds import lower_bound
from zbopt.bounds.relax import whole
from zbopt.cpsat.formulation import Formulation
from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.problem.instance import Instance
from zbopt.validator import validate


def unlike(seed: int) -> Instance:
    """Draw an instance of at most eight pairs of virtual stage and microbatch, with two routes, own times, or both."""
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
    """Each is valid or raises, on two routes and own times, caps of one microbatch too. ``list`` always answers."""
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


@pytest.mark.parametrize("name", ["chimera", "dualpipe", "dualpipe-v"])
def test_two_streams_at_any_times(name: str) -> None:
    """Uneven times, transfers, barriers, halves of ops overlapped or not, any shares: valid, and never above no cap."""
    for seed in range(30):
        random = Random(f"{name} {seed}")
        instance = _two_streams(random, name)
        schedule = HEURISTICS[name](instance)
        assert validate(instance, schedule).violations == (), f"seed {seed}"
        assert figures(schedule).value(instance.objective) >= lower_bound(instance).value, f"seed {seed}"


def _two_streams(random: Random, name: str) -> Instance:
    p = random.choice((2, 4)) if name == "dualpipe" else random.randint(1, 5)
    least = 2 if name == "chimera" else 2 * p
    placement = "v" if name == "dualpipe-v" else "bidirectional"
    m = random.randint(least, least + 6) // 2 * 2 if name == "dualpipe" else random.randint(least, least + 6)
    fields = Instance.uniform(stages=p, microbatches=m, placement=placement, virtual=2).model_dump()
    for field in ("forward_ticks", "backward_ticks", "weight_ticks", "fused_backward_ticks"):
        fields[field] = [random.randint(1, 6) for _ in range(2 * p)]
    if random.random() < 0.5:
        longest = max(*fields["forward_ticks"], *fields["fused_backward_ticks"])
        fields["overlapped_ticks"] = [random.choice((None, longest, longest + 2)) for _ in range(p)]
    barrier = random.choice(("none", "global", "post_validation"))
    shares = [random.choice((0, 0.5, 1)) for _ in range(2 * p)]
    fields |= {"barrier": barrier, "weight_share": shares, "comm_ticks": random.randint(0, 3)}
    return Instance.model_validate(fields | {"objective": random.choice(("makespan", "max_stage_span"))})


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
    """Return the least makespan with every kind of op of every virtual stage in this order of microbatches."""
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
