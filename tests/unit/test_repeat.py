"""Short steps that repeat, made long."""

from __future__ import annotations

from collections import Counter

import pytest
from random_instances import PROVENANCE

from zbopt.analysis.metrics import figures
from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule
from zbopt.timing import schedule_of, starts_of
from zbopt.timing.repeat import RepeatingRun, find_run, in_flight, lengthened, shortened, unrolled
from zbopt.validator import validate


def long_of(instance: Instance, short_microbatches: int, heuristic: str) -> tuple[Schedule, Schedule, RepeatingRun]:
    """(short, long, run): the heuristic's short step, and the whole step made from it."""
    short = instance.model_copy(update={"microbatches": short_microbatches})
    schedule = HEURISTICS[heuristic](short)
    graph, whole = expand(short), expand(instance)
    starts = starts_of(graph, schedule)
    run = find_run(graph, starts, instance.microbatches - short_microbatches)
    assert run is not None
    return schedule, schedule_of(whole, unrolled(graph, starts, run, whole), PROVENANCE), run


@pytest.mark.parametrize("microbatches", [24, 60, 240])
def test_one_f_one_b_of_any_length(microbatches: int) -> None:
    """p = 4, F = 1, BW = 2: a period of 3, and (m + p - 1)(F + BW) for any m."""
    instance = Instance.uniform(
        stages=4, microbatches=microbatches, backward_ticks=None, weight_ticks=None, fused_backward_ticks=2
    )
    short, long, run = long_of(instance, 12, "1f1b")
    assert run.period == 3 * run.stride
    assert figures(short).makespan == (12 + 3) * 3
    assert figures(long).makespan == (microbatches + 3) * 3
    assert validate(instance, long).violations == ()


@pytest.mark.parametrize("comm", [0, 1])
@pytest.mark.parametrize("cap", [2, 3, 4, 8])
@pytest.mark.parametrize("objective", ["makespan", "max_stage_span"])
def test_value_is_the_short_one_and_the_periods(cap: int, comm: int, objective: str) -> None:
    """List schedules, caps below and above p: valid, and longer by exactly the periods put in."""
    instance = Instance.uniform(
        stages=4, microbatches=300, comm_ticks=comm, memory_cap=cap, weight_share="1/2", objective=objective
    )
    short = shortened(instance)
    assert short is not None
    schedule = HEURISTICS["list"](short)
    graph, whole = expand(short), expand(instance)
    starts = starts_of(graph, schedule)
    run = find_run(graph, starts, 300 - short.microbatches)
    assert run is not None
    long = schedule_of(whole, unrolled(graph, starts, run, whole), PROVENANCE)
    strides = (300 - short.microbatches) // run.stride
    assert validate(instance, long).violations == ()
    assert figures(long).makespan == figures(schedule).makespan + strides * run.period


def test_optimizer_steps_move_to_the_end() -> None:
    """O is no microbatch's: it moves by all periods, and the barrier holds."""
    instance = Instance.uniform(stages=3, microbatches=90, memory_cap=3, barrier="global")
    _, long, _ = long_of(instance, 18, "list")
    assert validate(instance, long).violations == ()


def test_nothing_repeats() -> None:
    """Each W comes a tick later after its B than the one before: no microbatch is a translate of another."""
    instance = Instance.uniform(stages=1, microbatches=9)
    graph = expand(instance)
    starts = {}
    for task, op in enumerate(graph.tasks):
        assert op.microbatch is not None
        starts[task] = op.microbatch * 20 + {"F": 0, "B": 1, "W": 2 + op.microbatch}[op.kind.value]
    assert validate(instance, schedule_of(graph, starts, PROVENANCE)).valid
    assert find_run(graph, starts, 12) is None


def test_microbatches_that_differ_in_their_ops() -> None:
    """One fused backward among split ones: no table of starts, no run."""
    instance = Instance.uniform(stages=1, microbatches=9, fused_backward_ticks=2)
    graph = expand(instance)
    starts = {}
    for task, op in enumerate(graph.tasks):
        assert op.microbatch is not None
        fused = op.microbatch == 4
        if op.kind.value in ("F", "BW") if fused else op.kind.value != "BW":
            starts[task] = op.microbatch * 3 + {"F": 0, "B": 1, "W": 2, "BW": 1}[op.kind.value]
    assert validate(instance, schedule_of(graph, starts, PROVENANCE)).valid
    assert find_run(graph, starts, 12) is None


def test_stride_divides_what_is_missing() -> None:
    """Pairs of microbatches, 3 and 5 ticks apart in turn: stride 2, period 8, where an even number is missing.

    Where nine are missing, pairs do not fill the step; what is left is a single repetition within a pair.
    """
    instance = Instance.uniform(stages=1, microbatches=12)
    graph = expand(instance)
    starts = {}
    for task, op in enumerate(graph.tasks):
        assert op.microbatch is not None
        pair, second = divmod(op.microbatch, 2)
        starts[task] = pair * 8 + second * 3 + "FBW".index(op.kind.value)
    assert find_run(graph, starts, 10) == RepeatingRun(0, 11, 2, 8)
    assert find_run(graph, starts, 9) == RepeatingRun(0, 1, 1, 3)


def test_the_least_stride_of_equals() -> None:
    """Twelve microbatches 3 ticks apart repeat by 1, 2, 3 and 4 at a time, all twelve each time: by 1 it is."""
    graph = expand(Instance.uniform(stages=1, microbatches=12))
    starts = {i: (op.microbatch or 0) * 3 + "FBW".index(op.kind.value) for i, op in enumerate(graph.tasks)}
    assert find_run(graph, starts, 12) == RepeatingRun(0, 11, 1, 3)


@pytest.mark.parametrize(("cap", "held"), [(None, 8), (3, 3), ("1/2", 1), (100, 8)])
def test_in_flight(cap: int | str | None, held: int) -> None:
    """Under the cap, at least one microbatch is in flight, and at most two for each virtual stage."""
    assert in_flight(Instance.uniform(stages=4, microbatches=9, memory_cap=cap)) == held


def test_short_steps_stay_short() -> None:
    """p = 4, cap 4: 4 in flight and strides of up to 12 need 16 + 24 microbatches; 80 and fewer are not shortened."""
    instance = Instance.uniform(stages=4, microbatches=1000, memory_cap=4)
    short = shortened(instance)
    assert short is not None
    assert 40 <= short.microbatches < 52
    assert (1000 - short.microbatches) % 12 == 0
    assert shortened(instance.model_copy(update={"microbatches": 80})) is None


@pytest.mark.parametrize("heuristic", ["1f1b", "zb-h1", "zb-auto", "list"])
@pytest.mark.parametrize("barrier", ["none", "global", "post_validation"])
def test_lengthened_is_unrolled(heuristic: str, barrier: str) -> None:
    """From events as from tasks: the same long schedule, O of each stage included."""
    instance = Instance.uniform(stages=3, microbatches=90, comm_ticks=1, barrier=barrier, memory_cap=4)
    short = HEURISTICS[heuristic](instance.model_copy(update={"microbatches": 30}))
    graph, whole = expand(short.instance), expand(instance)
    starts = starts_of(graph, short)
    run = find_run(graph, starts, 60)
    assert run is not None
    expected = schedule_of(whole, unrolled(graph, starts, run, whole), short.provenance)
    assert lengthened(short, run, instance) == expected


@pytest.mark.parametrize("fields", [
    {"communication": "link"},
    {"communication": "blocking"},
    {"communication": "link", "transfer_occupies": "port", "collectives": [{"kind": "F", "start": 0, "ticks": 1}]},
    {"communication": "link", "reduction_ticks": 3, "barrier": "global"},
])  # fmt: skip
def test_transfers_repeat_like_ops(fields: dict[str, object]) -> None:
    """Over links too a long step comes from a short one: valid, and with all SEND, G and O of the whole.

    3 stages, 200 microbatches: 2 links of 2 transfers each a microbatch, one G and O a stage.
    """
    times = {"forward_ticks": 2, "backward_ticks": 2, "weight_ticks": 2, "comm_ticks": 1}
    instance = Instance.model_validate({"stages": 3, "microbatches": 200, "memory_cap": 3} | times | fields)
    short = shortened(instance)
    assert short is not None
    schedule = HEURISTICS["1f1b-split"](short)
    graph = expand(short)
    run = find_run(graph, starts_of(graph, schedule), 200 - short.microbatches)
    assert run is not None
    long = lengthened(schedule, run, instance)
    assert validate(instance, long).violations == ()
    kinds = Counter(e.kind for e in long.events)
    assert kinds[Kind.SEND_F] == kinds[Kind.SEND_B] == 2 * 200
    assert kinds[Kind.G] == (3 if "reduction_ticks" in fields else 0)
