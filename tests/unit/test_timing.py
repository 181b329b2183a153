"""Orders to times: earliest starts, deadlock, and the least largest span."""

from __future__ import annotations

from random import Random

import pytest
from random_instances import PROVENANCE, random_instance, random_schedule

from zbopt.analysis.metrics import figures
from zbopt.graph import Key, TaskGraph, expand
from zbopt.problem.instance import Instance, Kind
from zbopt.timing import DeadlockError, earliest_starts, least_span_starts, schedule_of, starts_of
from zbopt.validator import validate


def order(graph: TaskGraph, text: str) -> list[list[int]]:
    """Read an order, stages split by ``|``, ops as kind, virtual stage, microbatch: ``F00 B00 W00 | F10``."""
    rows = [row.split() for row in text.split("|")]
    return [[graph.index[Key(Kind(op[:-2]), int(op[-2]), int(op[-1]))] for op in row] for row in rows]


TWO = Instance.uniform(stages=2, microbatches=2, forward_ticks=2, backward_ticks=3, weight_ticks=4, comm_ticks=1)


def test_earliest_starts_by_hand() -> None:
    """F = 2, B = 3, W = 4, comm = 1, two stages: every start counted by hand.

    Stage 1: F 3-5, B 5-8, F 8-10, B 10-13, W 13-21. Stage 0: F 0-4, B after 8 + 1, W, B after 13 + 1, W.
    """
    graph = expand(TWO)
    orders = order(graph, "F00 F01 B00 W00 B01 W01 | F10 B10 F11 B11 W10 W11")
    starts = earliest_starts(graph, orders)
    assert [[starts[i] for i in row] for row in orders] == [[0, 2, 9, 12, 16, 19], [3, 5, 8, 10, 13, 17]]


def test_release_moves_what_follows() -> None:
    """The first F not before 5: everything 5 later. The last W not before 30: it alone."""
    graph = expand(TWO)
    orders = order(graph, "F00 F01 B00 W00 B01 W01 | F10 B10 F11 B11 W10 W11")
    starts = earliest_starts(graph, orders)
    assert earliest_starts(graph, orders, {orders[0][0]: 5}) == {i: start + 5 for i, start in starts.items()}
    assert earliest_starts(graph, orders, {orders[0][-1]: 30}) == starts | {orders[0][-1]: 30}


def test_deadlock_names_the_first_op() -> None:
    """Stage 0 wants its B before its F, which the B waits for by way of stage 1."""
    graph = expand(Instance.uniform(stages=2, microbatches=1))
    with pytest.raises(DeadlockError) as error:
        earliest_starts(graph, order(graph, "B00 F00 W00 | F10 B10 W10"))
    assert str(error.value) == (
        "deadlock: 6 ops wait for each other in a circle, the first of stage 0 is "
        "B of microbatch 0 on virtual stage 0; change the order of that stage"
    )
    assert len(error.value.tasks) == 6


def test_barriers_join() -> None:
    """Two stages, one microbatch, unit times: W at 3-4 on stage 1 (after B 2-3), B 3-4 and W 4-5 on stage 0.

    ``global``: both O at 5. ``post_validation``: stage 1's at 4.
    """
    for barrier, steps in (("global", [5, 5]), ("post_validation", [5, 4])):
        graph = expand(Instance.uniform(stages=2, microbatches=1, barrier=barrier))
        orders = order(graph, "F00 B00 W00 | F10 B10 W10")
        for stage, row in enumerate(orders):
            row.append(graph.index[Key(Kind.O, stage, None)])
        starts = earliest_starts(graph, orders)
        assert [starts[row[-1]] for row in orders] == steps


def test_span_of_an_order_by_hand() -> None:
    """p = 2, m = 1, unit times: stage 0 runs F 0-1, B 3-4, W 4-5, a span of 5; stage 1 F 1-2, B 2-3, W 3-4."""
    graph = expand(Instance.uniform(stages=2, microbatches=1, objective="max_stage_span"))
    starts = least_span_starts(graph, order(graph, "F00 B00 W00 | F10 B10 W10"))
    assert figures(schedule_of(graph, starts, PROVENANCE)).stage_spans == (5, 3)


def test_waiting_lowers_a_span() -> None:
    """F = 9 and W = 1 on stage 0, F = 1 and W = 9 on stage 1, B = 1, m = 2, all F first.

    Stage 0: F to 18, then from 20 on (the first B of stage 1 ends there) B W B W to 24. Stage 1: F 9-10, F 18-19, B B
    to 21, W W to 39: a span of 30, unless its first F waits until 15, which keeps nobody waiting: 24.
    """
    instance = Instance.uniform(stages=2, microbatches=2, objective="max_stage_span")
    instance = instance.model_copy(update={"forward_ticks": (9, 1), "weight_ticks": (1, 9)})
    graph = expand(instance)
    orders = order(graph, "F00 F01 B00 W00 B01 W01 | F10 F11 B10 B11 W10 W11")
    early, narrow = earliest_starts(graph, orders), least_span_starts(graph, orders)
    assert figures(schedule_of(graph, early, PROVENANCE)).stage_spans == (24, 30)
    assert figures(schedule_of(graph, narrow, PROVENANCE)).stage_spans == (24, 24)
    assert narrow == early | {orders[1][0]: 15}


def test_a_span_begins_late_where_an_input_comes_late() -> None:
    """One stage, unit times, two microbatches, the second there at 10: its W ends at 13, so a span of 6 begins at 7.

    The makespan counts from the first input, at 0, all the same.
    """
    instance = Instance.uniform(stages=1, microbatches=2, objective="max_stage_span")
    graph = expand(Instance.model_validate(instance.model_dump() | {"input_ready_ticks": (0, 10)}))
    starts = least_span_starts(graph, order(graph, "F00 B00 W00 F01 B01 W01"))
    found = figures(schedule_of(graph, starts, PROVENANCE))
    assert (found.stage_spans, found.makespan, min(starts.values())) == ((6,), 13, 7)


@pytest.mark.parametrize("seed", range(40))
def test_retimed_orders_are_valid_and_no_worse(seed: int) -> None:
    """The order of any valid schedule: as early as possible it is valid with no larger makespan; so for the span."""
    random = Random(seed)
    instance = random_instance(random)
    schedule = random_schedule(random, instance)
    graph = expand(instance)
    before = figures(schedule)
    starts = starts_of(graph, schedule)
    orders = [sorted((i for i in row if i in starts), key=lambda i: (starts[i], i)) for row in graph.resources]
    early = schedule_of(graph, earliest_starts(graph, orders), PROVENANCE)
    narrow = schedule_of(graph, least_span_starts(graph, orders), PROVENANCE)
    assert validate(instance, early).valid
    assert validate(instance, narrow).valid
    assert figures(early).makespan <= before.makespan
    assert figures(narrow).max_stage_span <= min(before.max_stage_span, figures(early).max_stage_span)


@pytest.mark.parametrize("seed", range(20))
def test_starts_and_schedule_are_inverse(seed: int) -> None:
    random = Random(seed)
    instance = random_instance(random)
    schedule = random_schedule(random, instance)
    graph = expand(instance)
    back = schedule_of(graph, starts_of(graph, schedule), schedule.provenance)
    assert set(back.events) == set(schedule.events)
    assert len(back.events) == len(schedule.events)


def test_period_is_between_first_starts() -> None:
    """F, B, W, O at 0, 1, 2, 3 and again at 4, 6, 10, 11: begun 4 ticks after the first, and ended 8 later."""
    step = {"stages": 1, "microbatches": 1, "iterations": 2, "barrier": "post_validation", "optimizer_ticks": 1}
    instance = Instance.model_validate(step | {"forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1})
    graph = expand(instance)
    starts = {"F": (0, 4), "B": (1, 6), "W": (2, 10), "O": (3, 11)}
    at = {i: starts[op.kind.value][op.iteration] for i, op in enumerate(graph.tasks)}
    schedule = schedule_of(graph, at, PROVENANCE)
    backwards = schedule.model_copy(update={"events": schedule.events[::-1]})
    assert [figures(s).period for s in (schedule, backwards)] == [4, 4]
