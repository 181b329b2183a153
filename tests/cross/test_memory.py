"""Memory by tensor and recomputation by choice: model, bounds, validator, ledger and brute force say the same."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from brute_force import optimum
from exact import FREE, check_one_optimum, fixed_value, proved_optimum
from random_instances import random_instance, random_schedule, with_memory

from zbopt.analysis.ledger import Ledger
from zbopt.analysis.metrics import figures
from zbopt.bounds import lower_bound
from zbopt.cpsat.search import objective_value, tightened
from zbopt.graph import expand
from zbopt.graph.memory import chooses, least_memory
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.portfolio.result import infeasible
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Provenance
from zbopt.timing import schedule_of, starts_of
from zbopt.validator import validate

BLOCKS, BLOCK = 10, 10
CP_SAT = Provenance(source="cp-sat")


def tiny(seed: int, *, offload: bool = False) -> Instance:
    """Few enough microbatches on virtual stages for brute force, which knows no offloading."""
    random = Random(f"memory {seed}")
    while True:
        instance = with_memory(random, random_instance(random, most_stages=3, most_microbatches=3))
        if (instance.offload is not None) != offload:
            continue
        free = chooses(instance) or (instance.may_fuse and instance.may_split)
        if instance.virtual_stages * instance.microbatches <= (4 if free else 6):
            return instance


def block(number: int) -> range:
    return range(number * BLOCK, (number + 1) * BLOCK)


@pytest.mark.parametrize("number", range(BLOCKS))
def test_brute_force_cpsat_and_bounds_agree(number: int) -> None:
    """One optimum, with the rules that remove solutions [D1, D5, D9] and without; no closed bound above it."""
    for seed in block(number):
        check_one_optimum(tiny(seed), f"seed {seed}")


@pytest.mark.parametrize("number", range(4))
def test_offloading_has_one_optimum_with_rules_and_without(number: int) -> None:
    """Where orders alone do not say what memory holds: [D9] loses nothing, no closed bound is above it."""
    for seed in block(number):
        instance = tiny(seed, offload=True)
        free = proved_optimum(instance, FREE)
        assert proved_optimum(instance) == free, f"seed {seed}"
        assert lower_bound(instance).value <= free, f"seed {seed}"


@pytest.mark.parametrize("number", range(2 * BLOCKS))
def test_validator_and_model_agree_both_ways(number: int) -> None:
    """A random valid schedule is a solution of its value; with one op moved by a tick both say the same of it."""
    said = set()
    for seed in block(number):
        random = Random(seed)
        instance = tiny(seed, offload=seed % 2 == 1)
        schedule = random_schedule(random, instance)
        assert validate(instance, schedule).violations == (), f"seed {seed}"
        graph = expand(instance)
        starts = starts_of(graph, schedule)
        value = figures(schedule).value(instance.objective)
        assert (fixed_value(instance, starts), objective_value(graph, starts)) == (value, value), f"seed {seed}"
        for _ in range(4):
            moved = random.choice(sorted(starts))
            changed = {i: start + 5 + (random.choice((-1, 1)) if i == moved else 0) for i, start in starts.items()}
            valid = validate(instance, schedule_of(graph, changed, CP_SAT)).valid
            assert (fixed_value(instance, changed) is not None) == valid, f"seed {seed}: {graph.tasks[moved]}"
            said.add(valid)
        better_value, better = tightened(graph, starts)
        assert better_value <= value
        assert validate(instance, schedule_of(graph, better, CP_SAT)).violations == (), f"seed {seed}: tightened"
    assert said == {True, False}


@pytest.mark.parametrize("number", range(2))
def test_heuristics_are_valid_and_the_list_always_fits(number: int) -> None:
    """At any cap from the least on the list schedule is one; whatever a heuristic gives, the validator accepts."""
    for seed in range(number * 25, (number + 1) * 25):
        random = Random(f"heuristics {seed}")
        instance = with_memory(random, random_instance(random))
        for name, heuristic in HEURISTICS.items():
            try:
                schedule = heuristic(instance)
            except (CannotFitError, NotApplicableError):
                assert name != "list", f"seed {seed}"
                continue
            assert validate(instance, schedule).violations == (), f"seed {seed}: {name}"


def test_the_least_cap_is_exact() -> None:
    """At what ``least_memory`` says there is a schedule, and a thousandth below there is none."""
    tried = 0
    for seed in range(60):
        instance = tiny(seed, offload=seed % 3 == 0)
        least = tuple(least_memory(instance, stage) for stage in range(instance.stages))
        at_it = instance.model_copy(update={"memory_cap": least})
        assert infeasible(at_it) is None
        assert validate(at_it, HEURISTICS["list"](at_it)).valid
        for stage in range(instance.stages):
            caps = tuple(cap - Fraction(stage == other, 1000) for other, cap in enumerate(least))
            below = instance.model_copy(update={"memory_cap": caps})
            reason = infeasible(below)
            assert reason is not None
            assert (reason.stage, reason.needed) == (stage, least[stage])
            if instance.virtual_stages * instance.microbatches <= 4 and instance.offload is None:
                assert optimum(below) is None, f"seed {seed}"
                tried += 1
    assert tried > 20


@pytest.mark.parametrize("number", range(4))
def test_ledger_metrics_and_validator_count_one_peak(number: int) -> None:
    """The peak of the sum over all tensors' lives, at every start of one, on each stage of 160 random schedules."""
    for seed in range(number * 40, (number + 1) * 40):
        random = Random(f"ledger {seed}")
        instance = with_memory(random, random_instance(random))
        schedule = random_schedule(random, instance)
        peaks = []
        for stage, row in enumerate(schedule.holders_by_stage()):
            lives = list(Ledger(instance, row, stage).lives())
            at = [
                [other for other in lives if other.begin <= life.begin and not _over(other.end, life.begin)]
                for life in lives
            ]
            peaks.append(max((sum(life.amount for life in held) for held in at), default=Fraction(0)))
        assert tuple(peaks) == figures(schedule).peak_memory == validate(instance, schedule).peak_memory, f"seed {seed}"


def _over(end: int | None, time: int) -> bool:
    return end is not None and end <= time
