"""The exhaustive solver that other tests rely on, against published optima and against plain enumeration."""

from __future__ import annotations

from itertools import permutations, product
from random import Random

import pytest
from brute_force import optimum
from random_instances import PROVENANCE, random_instance, random_schedule

from zbopt.analysis.metrics import figures
from zbopt.graph import TaskGraph, expand
from zbopt.problem.instance import Instance, Kind, Objective
from zbopt.problem.schedule import Schedule
from zbopt.timing import DeadlockError, earliest_starts, least_span_starts, schedule_of
from zbopt.validator import validate


@pytest.mark.parametrize(("cap", "value"), [(1, 32), (2, 18), (3, 16), (4, 14)])
def test_caps_of_a_fused_pipeline(cap: int, value: int) -> None:
    """p = m = 4, F = BW = 1: cap 1 is serial, m p (F + BW) = 32; cap p gives (m + p - 1)(F + BW) = 14.

    The two between are pipeline-parallelism-tutor's level "memory wall", proved there by CP-SAT.
    """
    instance = Instance.uniform(
        stages=4, microbatches=4, backward_ticks=None, weight_ticks=None, fused_backward_ticks=1, memory_cap=cap
    )
    assert optimum(instance) == value


def test_unit_times() -> None:
    """Unit times, p = 2. Makespan m(F+B+W) + (p-1)F = 7 at m = 2.

    Span: the first B of stage 0 comes 3 ticks after its first F at the earliest, and two forwards fill only two of
    them: load 6 + 1 = 7 at m = 2; three fill them (ZB-H2, 2p - 1 in flight): the load, 9, at m = 3.
    """
    assert optimum(Instance.uniform(stages=2, microbatches=2)) == 7
    assert optimum(Instance.uniform(stages=2, microbatches=2, objective="max_stage_span")) == 7
    assert optimum(Instance.uniform(stages=2, microbatches=3, objective="max_stage_span")) == 9


def test_nothing_fits() -> None:
    """An activation counts 1 and the cap is 1/2, so there is no schedule."""
    assert optimum(Instance.uniform(stages=2, microbatches=2, memory_cap=0.5)) is None


@pytest.mark.parametrize("seed", range(60))
def test_equals_the_best_of_all_orders(seed: int) -> None:
    """Enumerating every order of every stage, timed by the package's own timing, gives the same value."""
    random = Random(seed)
    instance = random_instance(random, most_stages=3, most_microbatches=2, virtual=False)
    values = [_value(schedule, instance) for schedule in _all_schedules(instance)]
    assert optimum(instance) == min(values)


@pytest.mark.parametrize("seed", range(100))
def test_no_valid_schedule_is_better(seed: int) -> None:
    """Random valid schedules, virtual stages included, never beat the optimum."""
    random = Random(seed)
    instance = random_instance(random, most_stages=3, most_microbatches=2)
    best = optimum(instance)
    assert best is not None
    assert all(_value(random_schedule(random, instance), instance) >= best for _ in range(3))


def _value(schedule: Schedule, instance: Instance) -> int:
    return figures(schedule).value(instance.objective)


def _all_schedules(instance: Instance) -> list[Schedule]:
    graph = expand(instance)
    time = earliest_starts if instance.objective is Objective.MAKESPAN else least_span_starts
    found = []
    for taken in product(*map(range, graph.choices)):
        rows = [_orders(graph, row, taken) for row in graph.resources]
        for orders in product(*rows):
            try:
                schedule = schedule_of(graph, time(graph, orders), PROVENANCE)
            except DeadlockError:
                continue
            if validate(instance, schedule).valid:
                found.append(schedule)
    return found


def _orders(graph: TaskGraph, row: tuple[int, ...], taken: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Yield the orders of a stage's tasks in which each microbatch goes F, B, W, and the last is O."""
    runs = [i for i in row if (choice := graph.tasks[i].choice) is None or taken[choice] == graph.tasks[i].option]
    rank = [Kind.F, Kind.B, Kind.BW, Kind.W]
    steps = [i for i in runs if graph.tasks[i].kind is Kind.O]
    ops = sorted((i for i in runs if i not in steps), key=lambda i: rank.index(graph.tasks[i].kind))
    pattern = [graph.tasks[i].microbatch for i in ops]
    orders = []
    for numbers in sorted(set(permutations(pattern))):
        queues = {m: [i for i in ops if graph.tasks[i].microbatch == m] for m in set(pattern)}
        orders.append((*(queues[m].pop(0) for m in numbers), *steps))
    return orders
