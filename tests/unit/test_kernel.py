"""Kernels: their least period by hand, moves that keep account of time and memory, and the schedules made of them."""

from __future__ import annotations

from itertools import accumulate, islice
from random import Random

import pytest
from uneven import uneven

from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS, NotApplicableError
from zbopt.heuristics.tools.patience import limited
from zbopt.improve import improving
from zbopt.improve.kernel import Kernel
from zbopt.improve.kernel_search import kernels
from zbopt.portfolio import engine_phase
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Barrier, Instance, Kind
from zbopt.problem.schedule import Schedule
from zbopt.timing import starts_of
from zbopt.validator import validate


def _one_by_one(instance: Instance, count: int) -> Kernel:
    """Each microbatch begins when the list schedule of the one before has ended."""
    alone = instance.model_copy(update={"microbatches": 1})
    one = expand(alone)
    schedule = HEURISTICS["list"](alone)
    starts, length = starts_of(one, schedule), schedule.provenance.value or 0
    times = {i * count + r: float(start + r * length) for i, start in starts.items() for r in range(count)}
    kernel = Kernel(one, count, times, count * length)
    assert kernel.settle()
    return kernel


def _found(instance: Instance, seed: int, most: int = 5) -> list[Schedule]:
    return [found for found in islice(kernels(expand(instance), seed), most) if found is not None]


@pytest.mark.parametrize("count", [1, 3])
def test_period_by_hand(count: int) -> None:
    """Two stages, one microbatch at a time: F, transfer, F, B, transfer, B, W, 10 + 1 + 10 + 11 + 1 + 11 + 8 = 52."""
    kernel = _one_by_one(uneven(2, 12, 1), count)
    assert kernel.period == pytest.approx(52 * count)
    assert kernel.fits()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_moves_keep_account(count: int) -> None:
    """Period, live memory and longest circuit after moves are those of a kernel made anew from the same times."""
    kernel, random = _one_by_one(uneven(4, 12, 2, "v"), count), Random(count)
    one, moved = expand(uneven(4, 1, 2, "v")), 0
    for _ in range(600):
        before = kernel.period
        moved += kernel.try_move(random.randrange(len(kernel.at)), random.choice((-3, -2, -1, 1, 2, 3)), 5.0)
        assert kernel.period <= before + 5.0 + 1e-6
    again = Kernel(one, count, dict(enumerate(kernel.at)), kernel.period)
    assert again.settle()
    assert moved > 100
    assert again.period == pytest.approx(kernel.period)
    assert kernel.fits()
    takers = [i for i, taken in enumerate(kernel.taken) if taken]
    assert [again.live[i] for i in takers] == [kernel.live[i] for i in takers]


def test_a_move_that_takes_too_long_is_undone() -> None:
    """Nothing changes where the period would become longer than allowed."""
    kernel = _one_by_one(uneven(4, 12, 1, "v"), 1)
    before = kernel.state()
    tried = [kernel.try_move(i, steps, -1.0) for i in range(len(kernel.at)) for steps in (1, -1)]
    assert not all(tried)
    kernel.restore(before)
    assert kernel.state() == before
    assert kernel.settle()
    assert kernel.period == pytest.approx(before.period)


@pytest.mark.parametrize("cap", [1, 2])
def test_each_schedule_is_valid_and_near_to_the_best(cap: int) -> None:
    """Within 2 % of the best so far. The seed decides all."""
    instance = uneven(3, 8, cap, "v")
    found = _found(instance, seed=0)
    values = [schedule.provenance.value for schedule in found]
    assert found
    assert all(validate(instance, schedule).valid for schedule in found)
    best = list(accumulate((value or 0 for value in values), min))
    assert all((value or 0) <= 1.02 * least for value, least in zip(values, best, strict=True))
    assert [schedule.events for schedule in _found(instance, seed=0)] == [schedule.events for schedule in found]


def test_bug_optimizer_steps() -> None:
    """They do not repeat, and ended the solve with a KeyError; what comes before them is what it is without them."""
    instance = uneven(4, 12, 2, "v")
    stepping = instance.model_copy(update={"optimizer_ticks": (5,) * 4, "barrier": Barrier.GLOBAL})
    plain, found = _found(instance, seed=0), _found(stepping, seed=0)
    assert all(validate(stepping, schedule).valid for schedule in found)
    assert [[e for e in schedule.events if e.kind is not Kind.O] for schedule in found] == [
        list(schedule.events) for schedule in plain
    ]
    assert all(sum(e.kind is Kind.O for e in schedule.events) == 4 for schedule in found)


def test_nothing_without_cap_or_time() -> None:
    """Without a cap ZB-V is enough; without time nothing is begun."""
    assert list(kernels(expand(uneven(4, 12, None, "v")), 0)) == []
    assert list(kernels(expand(uneven(4, 12, 4, "v")), 0)) == []
    with limited(lambda: True):
        assert list(kernels(expand(uneven(4, 12, 2, "v")), 0)) == []


def test_other_placements_are_refused() -> None:
    """Its first blocks go down the stages and back up."""
    with pytest.raises(NotApplicableError, match="kernels: the placement is not v"):
        next(kernels(expand(uneven(4, 12, 2, "interleaved")), 0))


def test_solve_looks_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an engine and without annealing `solve` goes below every heuristic by kernels alone."""
    monkeypatch.setattr(engine_phase, "run", lambda order, beside: iter(()))
    monkeypatch.setattr(improving, "annealed", lambda *args: iter(()))
    result = solve(uneven(4, 32, 2, "v"), time_limit_s=6, deterministic=True)
    assert result.best_heuristic is not None
    assert result.value is not None
    assert result.value < result.best_heuristic.value
    assert result.schedule is not None
    assert result.schedule.provenance.source == "heuristic:kernels"
