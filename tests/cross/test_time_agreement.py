"""Model, bounds, timing and validator say the same of random tiny instances with everything that takes time."""

from __future__ import annotations

import contextlib
from collections import Counter
from random import Random

import pytest
from exact import FREE, least, proved_optimum, solver
from ortools.sat.python import cp_model
from random_instances import random_schedule
from random_time import timed_instance

from zbopt.analysis.metrics import figures
from zbopt.bounds import ARGUMENTS
from zbopt.bounds.relax import keep_stages, whole
from zbopt.cpsat.formulation import Formulation
from zbopt.cpsat.horizon import one_by_one
from zbopt.cpsat.search import objective_value, tightened
from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Provenance
from zbopt.timing import schedule_of, starts_of
from zbopt.validator import validate

BLOCKS, BLOCK = 10, 20
"""10 blocks of 20 instances: 200."""
CP_SAT = Provenance(source="cp-sat")


def block(number: int) -> range:
    return range(number * BLOCK, (number + 1) * BLOCK)


def instance_of(seed: int) -> Instance:
    return timed_instance(Random(f"time {seed}"))


def fixed_value(instance: Instance, starts: dict[int, int]) -> int | None:
    """Return the least value that the model without rules gives to ``starts``; ``None``: they are no solution."""
    graph = expand(instance)
    first = min(starts.values()) if instance.input_ready_ticks is None else 0
    horizon = max(start - first + graph.tasks[i].duration_ticks for i, start in starts.items()) + one_by_one(graph)
    formulation = Formulation(whole(graph), horizon, minimise=True, rules=FREE)
    for i, start in starts.items():
        formulation.model.add(formulation.start[i] == start - first)
    for choice, taken in enumerate(graph.taken(starts)):
        formulation.model.add(formulation.option[choice][taken] == 1)
    search = solver()
    return round(search.objective_value) if search.solve(formulation.model) == cp_model.OPTIMAL else None


@pytest.mark.parametrize("number", range(BLOCKS))
def test_what_the_validator_accepts_the_model_accepts(number: int) -> None:
    """A random valid schedule, fixed by equalities, is a solution of the value that metrics count."""
    for seed in block(number):
        instance = instance_of(seed)
        schedule = random_schedule(Random(seed), instance)
        verdict = validate(instance, schedule)
        assert verdict.violations == (), f"seed {seed}: {verdict.violations}"
        known = figures(schedule)
        assert (verdict.makespan, verdict.busy_ticks) == (known.makespan, known.busy_ticks), f"seed {seed}"
        graph = expand(instance)
        starts = starts_of(graph, schedule)
        value = known.value(instance.objective)
        assert fixed_value(instance, starts) == value, f"seed {seed}"
        assert objective_value(graph, starts) == value, f"seed {seed}"
        better, tight = tightened(graph, starts)
        assert better <= value, f"seed {seed}"
        assert validate(instance, schedule_of(graph, tight, CP_SAT)).valid, f"seed {seed}"


@pytest.mark.parametrize("number", range(BLOCKS))
def test_what_the_validator_refuses_the_model_refuses(number: int) -> None:
    """One task moved by one tick: both say the same of what comes out, valid or not."""
    said: Counter[bool] = Counter()
    for seed in block(number):
        random = Random(seed)
        instance = instance_of(seed)
        graph = expand(instance)
        starts = starts_of(graph, random_schedule(random, instance))
        for _ in range(3):
            moved = random.choice(sorted(starts))
            changed = {i: start + (random.choice((-1, 1)) if i == moved else 0) for i, start in starts.items()}
            if min(changed.values()) < 0:
                continue
            verdict = validate(instance, schedule_of(graph, changed, CP_SAT))
            found = fixed_value(instance, changed)
            assert (found is not None) == verdict.valid, f"seed {seed}: {graph.tasks[moved]} {verdict.violations}"
            said[verdict.valid] += 1
    assert set(said) == {True, False}


@pytest.mark.parametrize("number", range(BLOCKS))
def test_the_optimum_is_valid_and_no_bound_is_above_it(number: int) -> None:
    """The validator accepts what the model finds. Every closed argument, and stages alone, stay at or below it."""
    for seed in block(number)[:8]:
        instance = timed_instance(Random(f"optimum {seed}"), most_ops=6)
        graph = expand(instance)
        best = proved_optimum(instance)
        formulation = Formulation(whole(graph), best, minimise=False)
        search = solver()
        assert search.solve(formulation.model) == cp_model.OPTIMAL, f"seed {seed}"
        schedule = schedule_of(graph, formulation.runs(search), CP_SAT)
        verdict = validate(instance, schedule)
        assert verdict.valid, f"seed {seed}: {verdict.violations}"
        assert figures(schedule).value(instance.objective) <= best, f"seed {seed}"
        bounds = {name: argument(instance) for name, argument in ARGUMENTS.items()}
        assert {n: b.value for n, b in bounds.items() if b is not None and b.value > best} == {}, f"seed {seed}: {best}"
        for stage in range(instance.stages):
            assert instance.stages == 1 or least(keep_stages(graph, [stage]), best) is not None, f"seed {seed}"


@pytest.mark.parametrize("seed", range(40))
def test_order_of_microbatches_loses_nothing(seed: int) -> None:
    """[D1, D5] The optimum is the same without the rules that remove schedules."""
    instance = timed_instance(Random(f"order {seed}"), most_ops=4)
    assert proved_optimum(instance) == proved_optimum(instance, FREE)


@pytest.mark.parametrize("seed", range(30))
def test_every_heuristic_is_valid_or_says_why_not(seed: int) -> None:
    """Each runs its order at times that links, reductions, inputs and iterations allow, or raises."""
    instance = timed_instance(Random(f"heuristics {seed}"), most_ops=12)
    given = set()
    for name, heuristic in HEURISTICS.items():
        with contextlib.suppress(CannotFitError, NotApplicableError):
            schedule = heuristic(instance)
            assert validate(instance, schedule).violations == (), name
            assert figures(schedule).value(instance.objective) == schedule.provenance.value, name
            given.add(name)
    assert "list" in given


def test_bug_blocking_load_counted_transfers_and_reduction_one_after_the_other() -> None:
    """The load bound said 20. Stage 1: arrival at 3, F with loss 6, BW 4, then G 3 and O 2 beside its SEND of 2: 18."""
    instance = Instance.model_validate(
        {
            "stages": 2,
            "microbatches": 1,
            "forward_ticks": [1, 3],
            "fused_backward_ticks": [1, 4],
            "comm_ticks": 2,
            "communication": "blocking",
            "loss_ticks": 3,
            "reduction_ticks": [1, 3],
            "barrier": "post_validation",
            "optimizer_ticks": [0, 2],
        }
    )
    assert (ARGUMENTS["load"](instance).value, proved_optimum(instance)) == (18, 18)
