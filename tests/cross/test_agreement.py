"""Model, bounds, validator and brute force say the same of random tiny instances, and obey the laws of the problem."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from exact import FREE, any_instance, check_one_optimum, fixed_value, least, proved_optimum, solver, with_times
from ortools.sat.python import cp_model
from random_instances import random_schedule

from zbopt.analysis.metrics import figures
from zbopt.bounds.relax import whole
from zbopt.cpsat.formulation import Formulation, Rules
from zbopt.cpsat.scale import Scale
from zbopt.cpsat.search import tightened
from zbopt.graph import expand
from zbopt.problem.instance import Instance, Objective, read_instance, write_instance
from zbopt.problem.schedule import Provenance, read_schedule, write_schedule
from zbopt.timing import objective_value, schedule_of, starts_of
from zbopt.validator import validate

BLOCKS, BLOCK = 21, 10
"""21 blocks of 10 instances: 210."""
CP_SAT = Provenance(source="cp-sat")


def tiny(seed: int) -> Instance:
    """At most eight pairs of virtual stage and microbatch: what brute force exhausts at once."""
    random = Random(f"tiny {seed}")
    while True:
        instance = any_instance(random, most_microbatches=4)
        if instance.virtual_stages * instance.microbatches <= (6 if instance.may_split and instance.may_fuse else 8):
            return instance


def block(number: int) -> range:
    return range(number * BLOCK, (number + 1) * BLOCK)


@pytest.mark.parametrize("number", range(BLOCKS))
def test_brute_force_cpsat_and_bounds_agree(number: int) -> None:
    """One optimum, with the rules that remove solutions and without; no bound above it."""
    for seed in block(number):
        check_one_optimum(tiny(seed), f"seed {seed}")


@pytest.mark.parametrize("number", range(BLOCKS))
def test_what_the_validator_accepts_the_model_accepts(number: int) -> None:
    """A random valid schedule, fixed by equalities, is a solution without the rules, of the value that metrics count.

    With the order rules on, the model may refuse it, but the same ops in microbatch order have the same optimum:
    the test above.
    """
    for seed in block(number):
        instance = tiny(seed)
        schedule = random_schedule(Random(seed), instance)
        assert validate(instance, schedule).valid, f"seed {seed}"
        value = figures(schedule).value(instance.objective)
        graph = expand(instance)
        starts = starts_of(graph, schedule)
        assert fixed_value(instance, starts) == value, f"seed {seed}"
        assert objective_value(graph, starts) == value, f"seed {seed}"


@pytest.mark.parametrize("number", range(BLOCKS))
def test_what_the_validator_refuses_the_model_refuses(number: int) -> None:
    """One op moved by one tick: both say the same of what comes out, valid or not."""
    said = set()
    for seed in block(number):
        random = Random(seed)
        instance = tiny(seed)
        graph = expand(instance)
        starts = starts_of(graph, random_schedule(random, instance))
        for _ in range(4):
            moved = random.choice(sorted(starts))
            changed = {i: start + 5 + (random.choice((-1, 1)) if i == moved else 0) for i, start in starts.items()}
            valid = validate(instance, schedule_of(graph, changed, CP_SAT)).valid
            assert (fixed_value(instance, changed) is not None) == valid, f"seed {seed}: {graph.tasks[moved]}"
            said.add(valid)
    assert said == {True, False}


@pytest.mark.parametrize("rules", [Rules(), FREE], ids=["rules", "free"])
def test_what_the_model_finds_the_validator_accepts(rules: Rules) -> None:
    """Solutions within three quarters of the serial time, of any value, before and after tightening."""
    for seed in range(60):
        instance = any_instance(Random(f"found {seed}"))
        graph = expand(instance)
        best = proved_optimum(instance)
        horizon = max(best, sum(task.duration_ticks for task in graph.tasks) * 3 // 4)
        formulation = Formulation(whole(graph), horizon, minimise=False, rules=rules)
        search = solver()
        assert search.solve(formulation.model) == cp_model.OPTIMAL, f"seed {seed}"
        starts = formulation.runs(search)
        value, better = tightened(graph, starts)
        for found in (starts, better):
            schedule = schedule_of(graph, found, CP_SAT)
            assert validate(instance, schedule).violations == (), f"seed {seed}"
            assert best <= figures(schedule).value(instance.objective) <= horizon, f"seed {seed}"
        assert value == figures(schedule).value(instance.objective)


@pytest.mark.parametrize("seed", range(40))
def test_below_the_optimum_there_is_nothing(seed: int) -> None:
    """The decision problem at the optimum has a solution, one tick below it has none."""
    instance = any_instance(Random(f"below {seed}"))
    best = proved_optimum(instance)
    for horizon, status in ((best, cp_model.OPTIMAL), (best - 1, cp_model.INFEASIBLE)):
        formulation = Formulation(whole(expand(instance)), horizon, minimise=False)
        assert solver().solve(formulation.model) == status


@pytest.mark.parametrize("seed", range(30))
def test_times_scale_the_optimum(seed: int) -> None:
    """All times by c: the makespan by c; the span by no more, since means of path lengths are no longer rounded up."""
    instance = any_instance(Random(f"times {seed}"))
    best, longer = proved_optimum(instance), proved_optimum(with_times(instance, 6))
    if instance.objective is Objective.MAKESPAN:
        assert longer == 6 * best
    else:
        assert 6 * (best - 1) < longer <= 6 * best


@pytest.mark.parametrize("seed", range(30))
def test_scale_loses_nothing(seed: int) -> None:
    """[D3] The coarser instance has the same optimum in its ticks."""
    instance = with_times(any_instance(Random(f"scale {seed}")), 12)
    scale = Scale.of(instance)
    assert proved_optimum(scale.instance) * scale.ticks == proved_optimum(instance)
    if instance.objective is Objective.MAKESPAN:
        assert scale.ticks % 12 == 0


@pytest.mark.parametrize("seed", range(30))
def test_more_memory_never_hurts(seed: int) -> None:
    """Half a unit more on every stage, then no cap at all: the optimum only falls."""
    instance = any_instance(Random(f"memory {seed}"))
    if instance.memory_cap is None:
        needs = [sum(instance.activation[v] for v in instance.virtual_stages_of(s)) for s in range(instance.stages)]
        instance = instance.model_copy(update={"memory_cap": tuple(map(Fraction, needs))})
    assert instance.memory_cap is not None
    more = tuple(cap + Fraction(1, 2) for cap in instance.memory_cap)
    values = [proved_optimum(instance.model_copy(update={"memory_cap": cap})) for cap in (instance.memory_cap, more)]
    values.append(proved_optimum(instance.model_copy(update={"memory_cap": None})))
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("seed", range(30))
def test_longer_transfers_never_help(seed: int) -> None:
    """0, 1 and 4 ticks between stages: the optimum only rises, by at most all transfers one after another."""
    instance = any_instance(Random(f"comm {seed}"))
    values = [proved_optimum(instance.model_copy(update={"comm_ticks": ticks})) for ticks in (0, 1, 4)]
    transfers = 2 * (instance.virtual_stages - 1) * instance.microbatches
    assert values == sorted(values)
    assert values[2] <= values[0] + 4 * transfers


@pytest.mark.parametrize("seed", range(30))
def test_files_keep_everything(tmp_path: Path, seed: int) -> None:
    """Instance and schedule read back as they were, with the same verdict and figures."""
    random = Random(seed)
    instance = any_instance(random)
    schedule = random_schedule(random, instance)
    write_instance(instance, tmp_path / "instance.json")
    write_schedule(schedule, tmp_path / "schedule.json")
    back = read_schedule(tmp_path / "schedule.json")
    assert read_instance(tmp_path / "instance.json") == instance
    assert back == schedule
    assert validate(back.instance, back) == validate(instance, schedule)
    assert figures(back) == figures(schedule)


def test_bug_file_with_one_stage_of_several_slices(tmp_path: Path) -> None:
    """``stage_of`` (0, 0) was written as 0, which no reader accepts."""
    instance = Instance.uniform(stages=1, microbatches=1, placement="interleaved", virtual=2)
    write_instance(instance, tmp_path / "instance.json")
    assert read_instance(tmp_path / "instance.json") == instance


def test_least_says_what_the_horizon_excludes() -> None:
    """p = 2, m = 2, unit times: the optimum is m(F+B+W) + (p-1)F = 7, so there is nothing within 6."""
    problem = whole(expand(Instance.uniform(stages=2, microbatches=2)))
    assert (least(problem, 7), least(problem, 6)) == (7, None)
