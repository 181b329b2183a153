"""The published integer program against the exhaustive solver, published optima and the validator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from random import Random

import pytest
from brute_force import optimum
from random_instances import PROVENANCE, random_instance
from strikes import struck

from zbopt.analysis.metrics import figures
from zbopt.engine import reach
from zbopt.engine.milp import solve_milp
from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS
from zbopt.portfolio.run import solve
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Engine, Status
from zbopt.timing import schedule_of, starts_of
from zbopt.validator import validate

LONG_S = 600.0


def split_instances() -> Iterator[Instance]:
    """Random linear instances whose backward is always split, small enough for the exhaustive solver."""
    for seed in count():
        instance = random_instance(Random(seed), most_stages=3, most_microbatches=3, virtual=False)
        if not instance.may_fuse and instance.stages * instance.microbatches <= 6:
            yield instance


@pytest.mark.parametrize("instance", list(islice(split_instances(), 40)))
def test_equals_the_exhaustive_solver(instance: Instance) -> None:
    """Uneven times, transfers, shares, caps, barriers, both objectives: proved, valid, and the same optimum."""
    graph = expand(instance)
    starts, bound, status = solve_milp(graph, time_limit_s=LONG_S)
    assert starts is not None
    schedule = schedule_of(graph, starts, PROVENANCE)
    assert validate(instance, schedule).violations == ()
    best = optimum(instance)
    assert (figures(schedule).value(instance.objective), bound, status) == (best, best, Status.OPTIMAL)


@pytest.mark.parametrize(("microbatches", "cap", "value"), [(2, 1, 18), (4, 4, 15), (6, 4, 21)])
def test_closed_forms(microbatches: int, cap: int, value: int) -> None:
    """p = 4, unit times. From cap p on m (F+B+W) + (p-1) F = 3m + 3. At cap 1 the first stage runs one microbatch
    after another, each there and back and W: m (p (F+B) + W) = 9m.
    """
    graph = expand(Instance.uniform(stages=4, microbatches=microbatches, memory_cap=cap))
    assert solve_milp(graph, time_limit_s=LONG_S)[1:] == (value, Status.OPTIMAL)


def test_start_is_never_made_worse() -> None:
    """Without time the answer is the start that was given, here ZB-H1, and the bound stays below its value."""
    instance = Instance.uniform(stages=8, microbatches=24, memory_cap=8, forward_ticks=3, backward_ticks=4)
    graph = expand(instance)
    given = HEURISTICS["zb-h1"](instance)
    starts, bound, status = solve_milp(graph, time_limit_s=2, start=starts_of(graph, given))
    value = figures(given).value(instance.objective)
    assert starts is not None
    assert figures(schedule_of(graph, starts, PROVENANCE)).value(instance.objective) <= value
    assert bound <= value
    assert status in (Status.FEASIBLE, Status.OPTIMAL)


def test_proved_to_the_tick() -> None:
    """p = 6, m = 18, the 1.5B times in us, cap 2p: m (F+B+W) + (p-1) (F+comm) = 18 * 45945 + 5 * 19123 = 922625.

    With the published big M what rounding may cost is more than a tick, and the bound stayed a tick below the value.
    """
    ticks = {"forward_ticks": 18522, "backward_ticks": 18086, "weight_ticks": 9337, "comm_ticks": 601}
    instance = Instance.uniform(stages=6, microbatches=18, memory_cap=12, **ticks)
    given = starts_of(expand(instance), HEURISTICS["zb-auto"](instance))
    assert solve_milp(expand(instance), time_limit_s=LONG_S, start=given)[1:] == (922625, Status.OPTIMAL)


def test_no_schedule_fits() -> None:
    """An activation counts 1 and the cap is 1/2."""
    graph = expand(Instance.uniform(stages=2, microbatches=2, memory_cap=0.5))
    assert solve_milp(graph, time_limit_s=LONG_S) == (None, 0, Status.INFEASIBLE)


def test_what_it_does_not_apply_to() -> None:
    """The program knows one virtual stage a stage and split backwards; the error names the way out."""
    placed = Instance.uniform(stages=2, microbatches=2, placement="v", virtual=2)
    with pytest.raises(ValueError, match=r"milp: 4 virtual stages on 2 stages; .* take cp-sat"):
        solve_milp(expand(placed), time_limit_s=1)
    fused = Instance.uniform(stages=2, microbatches=2, fused_backward_ticks=2)
    with pytest.raises(ValueError, match=r"milp: fused_backward_ticks is given; .* take cp-sat"):
        solve_milp(expand(fused), time_limit_s=1)


def test_any_field_that_the_program_does_not_know_is_refused() -> None:
    """It is older than most fields: what it does not name itself may only have its default."""
    fields = {"stages": 2, "microbatches": 2, "forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1}
    fields |= {"name": "n", "tick": "2us", "memory_unit": "GiB", "memory_cap": 3, "activation": 2}
    fields |= {"weight_share": "1/2"}
    fields |= {"comm_ticks": 2, "objective": "max_stage_span", "barrier": "global", "optimizer_ticks": 1}
    given = Instance.model_validate(fields)
    reach.require_modelled(given)
    message = r"milp: weight_share is given; the published program does not model it"
    with struck("weight_share", stated_by=frozenset()), pytest.raises(ValueError, match=message):
        reach.require_modelled(given)


def test_news_on_the_way() -> None:
    """p = 4, m = 4, unit times, cap p, so 3m + 3 = 15: values fall, bounds rise, the last of each is the outcome.

    No start is given, so that at least one schedule is told.
    """
    graph = expand(Instance.uniform(stages=4, microbatches=4, memory_cap=4))
    values: list[int] = []
    bounds: list[int] = []
    outcome = solve_milp(
        graph, time_limit_s=LONG_S, on_schedule=lambda value, starts: values.append(value), on_bound=bounds.append
    )
    assert outcome[1:] == (15, Status.OPTIMAL)
    assert values == sorted(values, reverse=True)
    assert bounds == sorted(bounds)
    assert (values[-1], bounds[-1]) == (15, 15)


def test_engine_by_its_process() -> None:
    """Solved with ``engine="milp"``: proved by it, without any bound of ours, and the file says who searched."""
    result = solve(Instance.uniform(stages=3, microbatches=4, memory_cap=3), engine="milp", time_limit_s=LONG_S)
    assert (result.status, result.value, result.bound) == (Status.OPTIMAL, 14, Bound(14, "milp"))
    assert result.schedule is not None
    said = result.schedule.provenance
    assert (said.engine, said.workers, said.proved_by) == (Engine.MILP, 1, "milp")
    assert result.history[0].bound == 0


def test_engine_refuses_what_it_does_not_model() -> None:
    """Before the search: the shape, deterministic time, and more than one thread."""
    with pytest.raises(ValueError, match=r"^milp: 4 virtual stages on 2 stages"):
        solve(Instance.uniform(stages=2, microbatches=2, placement="v", virtual=2), engine="milp")
    linear = Instance.uniform(stages=2, microbatches=2)
    with pytest.raises(ValueError, match=r"^deterministic: milp counts no deterministic time; leave it out"):
        solve(linear, engine="milp", deterministic=True)
    with pytest.raises(ValueError, match=r"^workers = 2: milp runs on one thread; leave workers out"):
        solve(linear, engine="milp", workers=2)
