"""Crossings: optima known from elsewhere, layers that repeat, orders, and what a search makes of them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from uneven import uneven

from zbopt import solve
from zbopt.bounds import lower_bound
from zbopt.bounds.crossings import Crossings
from zbopt.bounds.relax import whole
from zbopt.cpsat.budget import Budget
from zbopt.cpsat.fixed_orders import with_orders
from zbopt.cpsat.formulation import Formulation
from zbopt.cpsat.question import Answer, ask
from zbopt.graph import expand
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Status


def grown(instance: Instance) -> Crossings:
    crossings = Crossings.of(instance)
    assert crossings is not None
    assert crossings.grow(lambda: False)
    return crossings


@pytest.mark.parametrize(
    ("stages", "microbatches", "cap", "optimum"),
    [(8, 16, 6, 61), (8, 16, 4, 79), (4, 16, 3, 57), (8, 8, 4, 43), (16, 32, 8, 155)],
)
def test_unit_times_give_optima_that_plain_cp_sat_proved(
    stages: int, microbatches: int, cap: int, optimum: int
) -> None:
    """The values of bench/README.md and of the design: found and proved by the whole model without crossings."""
    instance = Instance.uniform(stages=stages, microbatches=microbatches, memory_cap=cap)
    assert grown(instance).bound() == Bound(optimum, "bound:crossings")


def test_published_times_give_the_optimum_that_cp_sat_proved() -> None:
    """1.5B times, 8 stages, 24 microbatches, cap 6: 1,527,928 us refuted in bench/README.md, 1,527,929 found."""
    instance = Instance.uniform(
        stages=8,
        microbatches=24,
        forward_ticks=18522,
        backward_ticks=18086,
        weight_ticks=9337,
        comm_ticks=601,
        memory_cap=6,
        weight_share=Fraction(366412, 10**6),
    )
    assert grown(instance).bound().value == 1_527_929


def test_layers_repeat_and_tell_of_any_number() -> None:
    """Six slots, 10/11/8/1: 1213 at m = 32, which CP-SAT proved, and 203 ticks more for each further 6 microbatches.

    203 is the least strict period of 6: CP-SAT refutes 202 on F and B alone. At 32 the round trip alone, 190
    for 6, says 1150.
    """
    instance = uneven(8, 4096, 6)
    crossings = grown(instance)
    assert crossings.front.repeats is not None
    assert len(crossings.front.layers) < 60
    assert [crossings.front.least(m) for m in (32, 38, 92)] == [1213, 1416, 1213 + 10 * 203]
    assert crossings.bound().value == crossings.front.least(28) + 678 * 203
    assert lower_bound(uneven(8, 32, 6)).value == 1150


def test_few_layers_say_less_and_never_more() -> None:
    """Broken off, blocks of as many microbatches as there are layers follow each other."""
    instance = uneven(8, 40, 4)
    full = grown(instance).bound().value
    values = []
    for layers in (1, 4, 8, 16, 24):
        crossings = Crossings.of(instance)
        assert crossings is not None
        assert crossings.front.grow(layers, lambda: False)
        values.append(crossings.bound().value)
    assert max(values) <= full
    assert values[-1] > lower_bound(instance).value
    stopped = Crossings.of(instance)
    assert stopped is not None
    assert not stopped.grow(lambda: True)


@pytest.mark.parametrize("microbatches", [9, 24, 41])
def test_orders_name_every_op_once_and_in_turn(microbatches: int) -> None:
    """On each stage but the first: each F before its own B, both in microbatch order; also beyond the last layer."""
    rows = grown(uneven(5, 100, 3)).orders(microbatches)
    assert rows is not None
    assert sorted(rows) == [1, 2, 3, 4]
    for row in rows.values():
        for kind in (Kind.F, Kind.B):
            assert [j for k, j in row if k is kind] == list(range(microbatches))
        assert all(row.index((Kind.F, j)) < row.index((Kind.B, j)) for j in range(microbatches))


def test_the_order_of_a_best_step_leads_to_a_schedule_of_that_value() -> None:
    """Unit times, 8 stages, 16 microbatches, cap 4: 79, with F and B of the stages behind the second as they cross."""
    instance = Instance.uniform(stages=8, microbatches=16, memory_cap=4)
    rows = grown(instance).orders(16)
    assert rows is not None
    formulation = Formulation(whole(expand(instance)), 79, minimise=False)
    reply = ask(with_orders(formulation, {s: row for s, row in rows.items() if s >= 2}), Budget(600, 1, 0), 600)
    assert reply.answer in (Answer.FOUND, Answer.OPTIMAL)
    assert reply.starts is not None
    graph = formulation.graph
    for s, row in rows.items():
        if s >= 2:
            starts = [
                reply.starts[next(i for i, t in enumerate(graph.tasks) if (t.kind, t.stage, t.microbatch) == (k, s, j))]
                for k, j in row
            ]
            assert starts == sorted(starts)


def test_a_long_step_is_proved_where_memory_is_short() -> None:
    """4 stages, 3 slots, unit times: 10 ticks for each 3 microbatches after 57 at m = 16, which CP-SAT proved."""
    result = solve(
        Instance.uniform(stages=4, microbatches=301, memory_cap=3), time_limit_s=600, workers=1, deterministic=True
    )
    assert (result.status, result.value) == (Status.OPTIMAL, 57 + 95 * 10)
    assert result.bound.proved_by == "bound:crossings"


@pytest.mark.parametrize(
    "changed",
    [
        {"memory_cap": None},
        {"memory_cap": (8,) * 8},
        {"fused_backward_ticks": (19,) * 8},
        {"input_ready_ticks": (0, *(5,) * 15)},
        {"backward_ticks": (None, *(11,) * 7)},
    ],
)
def test_says_nothing_where_its_argument_does_not_hold(changed: dict[str, object]) -> None:
    """The bound is silent without a cap, with as many slots as stages, fused backwards, late inputs, or no first B."""
    instance = Instance.model_validate(uneven(8, 16, 4).model_dump() | changed)
    assert Crossings.of(instance) is None
