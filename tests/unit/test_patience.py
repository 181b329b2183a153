"""Heuristics that are told to come to an end. The clock is a count of questions here: no test waits."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from random_instances import random_instance

from zbopt.heuristics import HEURISTICS
from zbopt.heuristics.list_schedule import first_schedule
from zbopt.heuristics.tools import best_rule, build
from zbopt.heuristics.tools.costs import Costs
from zbopt.heuristics.tools.dispatch import Dispatched, dispatch_within
from zbopt.heuristics.tools.patience import OutOfTimeError, bounded, check_time, is_over, limited
from zbopt.heuristics.tools.rule import Rule
from zbopt.portfolio import run as portfolio
from zbopt.portfolio import views
from zbopt.portfolio.clock import Clock
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule
from zbopt.validator import validate

pytestmark = pytest.mark.alone


def after(questions: int) -> Callable[[], bool]:
    """Return a limit that is reached when it has been asked about so many times."""
    left = iter(range(questions))
    return lambda: next(left, None) is None


PLACEMENTS = [("linear", 1, 3), ("v", 2, 2), ("interleaved", 2, 2)]


@pytest.mark.parametrize("questions", [0, 1, 2, 5, 20, 100])
@pytest.mark.parametrize(("placement", "virtual", "cap"), PLACEMENTS)
def test_list_always_has_a_schedule(placement: str, virtual: int, cap: int, questions: int) -> None:
    """Stopped at once, on the way, or never: what comes out is valid."""
    instance = Instance.uniform(stages=4, microbatches=12, placement=placement, virtual=virtual, memory_cap=cap)
    with limited(after(questions)):
        schedule = HEURISTICS["list"](instance)
    assert validate(instance, schedule).violations == ()


def test_the_first_schedule_of_a_long_step_needs_no_task_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to: p = 32, m = 512 of placement v took twice a limit of 3 s. m = 105 is the least that is long there."""
    instance = Instance.uniform(stages=32, microbatches=105, placement="v", virtual=2, memory_cap=40)
    monkeypatch.setattr(views, "expand", None)
    monkeypatch.setattr(build, "expand", None)
    result = solve(instance, time_limit_s=0.01, workers=1)
    assert result.schedule is not None
    assert result.schedule.provenance.source == "heuristic:list"
    assert validate(instance, result.schedule).violations == ()


def test_the_first_schedule_is_valid() -> None:
    """60 mixed instances: valid where there is one, and never shorter than the best list schedule."""
    found = 0
    for seed in range(60):
        instance = random_instance(Random(f"first-{seed}"), unlike=True)
        first = first_schedule(instance)
        if first is None:
            continue
        found += 1
        assert validate(instance, first).violations == ()
        best = HEURISTICS["list"](instance).provenance.value
        assert best is not None
        assert first.provenance.value is not None
        assert best <= first.provenance.value
    assert found >= 20


def test_more_patience_is_never_worse() -> None:
    """The rules are tried in one order, so that a later end has seen all that an earlier one has."""
    instance = Instance.uniform(stages=4, microbatches=12, placement="v", virtual=2, memory_cap=3)
    values = []
    for questions in (0, 10, 40, 10_000):
        with limited(after(questions)):
            found = HEURISTICS["list"](instance).provenance.value
        assert found is not None
        values.append(found)
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1], "or there is nothing to be seen here"


def test_the_limit_ends_with_its_block() -> None:
    """Outside of its block there is no limit. Inside, ``check_time`` raises."""
    with limited(lambda: True):
        assert is_over()
        with pytest.raises(OutOfTimeError, match="stopped before it had a schedule"):
            check_time()
    assert not is_over()
    check_time()


def stubborn(instance: Instance) -> Schedule:
    """A heuristic that asks and asks, and has nothing until it is stopped."""
    while True:
        check_time()


@pytest.fixture
def late_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of any time is over when a solve has looked at the clock fifty times."""
    asked = iter(range(50))
    monkeypatch.setattr(Clock, "is_late", lambda clock, share=1.0: next(asked, None) is None)


@pytest.mark.usefixtures("late_clock")
def test_a_solve_goes_on_without_the_one_that_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One valid schedule comes out whatever a heuristic does; here the fallback's, since none else is left."""
    monkeypatch.setattr(portfolio, "candidates_of", lambda instance: {"stubborn": stubborn})
    instance = Instance.uniform(stages=4, microbatches=12, placement="v", virtual=2, memory_cap=2, comm_ticks=1)
    result = solve(instance, time_limit_s=60, workers=1)
    assert result.schedule is not None
    assert result.schedule.provenance.source == "heuristic:list"
    assert result.best_heuristic is not None
    assert result.best_heuristic.name == "list"
    assert validate(instance, result.schedule).violations == ()


@pytest.mark.parametrize("objective", ["makespan", "max_stage_span"])
@pytest.mark.parametrize("name", ["zb-auto", "list"])
def test_nothing_is_tried_beyond_a_bound(name: str, objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """p = 4, m = 8, cap 8, unit times: with 3m + 3 = 27, and 3m = 24 of a stage, fewer rules give the same schedule."""
    instance = Instance.uniform(stages=4, microbatches=8, memory_cap=8, objective=objective)
    tried = 0

    def counted(costs: Costs, rule: Rule, most: int) -> Dispatched | None:
        nonlocal tried
        tried += 1
        return dispatch_within(costs, rule, most)

    monkeypatch.setattr(best_rule, "dispatch_within", counted)
    free = HEURISTICS[name](instance)
    all_rules, tried = tried, 0
    with bounded(27 if objective == "makespan" else 24):
        assert HEURISTICS[name](instance) == free
    assert tried < all_rules


def test_deterministic_patience_is_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no clock may decide, one that asks on and on never ended: half of 2 s is 250 questions at 250 a second.

    One microbatch of F=B=W=1 on one stage takes 3, which the fallback finds and the load proves.
    """
    asked = 0

    def counting(instance: Instance) -> Schedule:
        nonlocal asked
        while True:
            asked += 1
            check_time()

    monkeypatch.setattr(portfolio, "candidates_of", lambda instance: {"counting": counting})
    result = solve(Instance.uniform(stages=1, microbatches=1), time_limit_s=2, deterministic=True)
    assert asked == 251
    assert (result.value, result.bound.value) == (3, 3)
