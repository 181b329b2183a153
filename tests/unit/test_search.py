"""The search in this process: its questions, its answers, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from time import sleep

import pytest
from brute_force import optimum
from exact import any_instance, least, proved_optimum, solver
from ortools.sat.python import cp_model

from zbopt.analysis.metrics import figures
from zbopt.bounds import ARGUMENTS, lower_bound
from zbopt.bounds.relax import keep_stages, whole
from zbopt.cpsat.budget import Budget
from zbopt.cpsat.formulation import Formulation
from zbopt.cpsat.question import Answer, Question, Reply, ask
from zbopt.cpsat.search import Call, CpSatSearch, stage_sets, tightened
from zbopt.cpsat.strategy import Strategy
from zbopt.graph import TaskGraph, expand
from zbopt.heuristics import HEURISTICS
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Kind
from zbopt.timing import objective_value

pytestmark = pytest.mark.alone


def budget(time_limit_s: float = 600) -> Budget:
    return Budget(time_limit_s, workers=1, seed=0)


class Told:
    """Record everything that a search tells, from the schedule with one microbatch after another."""

    def __init__(self, instance: Instance) -> None:
        self.graph = expand(instance)
        serial = serial_starts(self.graph)
        self.values: list[int] = []
        self.bounds: list[Bound] = []
        self.found: Mapping[int, int] = serial
        self.search = CpSatSearch(
            graph=self.graph,
            starts=serial,
            value=objective_value(self.graph, serial),
            bound=Bound(0, "bound:none"),
            budget=budget(),
            on_schedule=self._found,
            on_bound=self.bounds.append,
            on_activity=lambda activity: None,
        )

    def _found(self, value: int, starts: Mapping[int, int]) -> None:
        self.values.append(value)
        self.found = starts


def serial_starts(graph: TaskGraph) -> dict[int, int]:
    """Return the starts of one microbatch after another: F down, B up, then all W, with split backwards."""
    free, starts = 0, {}
    rank = {Kind.F: 0, Kind.B: 1, Kind.W: 2, Kind.O: 3}
    tasks = [(i, t) for i, t in enumerate(graph.tasks) if t.kind is not Kind.BW]
    last = graph.instance.microbatches

    def turn(item: tuple[int, object]) -> tuple[int, int, int]:
        task = graph.tasks[item[0]]
        virtual_stage = task.virtual_stage or 0
        down = virtual_stage if task.kind is Kind.F else -virtual_stage
        return (last if task.microbatch is None else task.microbatch, rank[task.kind], down)

    for i, task in sorted(tasks, key=turn):
        starts[i] = free
        free += task.duration_ticks + graph.instance.comm_ticks
    return starts


@pytest.mark.parametrize("objective", ["makespan", "max_stage_span"])
@pytest.mark.parametrize(("cap", "barrier"), [(1, "none"), (2, "global"), (3, "post_validation"), (None, "none")])
def test_search_meets_brute_force(objective: str, cap: int | None, barrier: str) -> None:
    """From the serial schedule to the optimum that exhausting all orders finds; values fall, bounds rise."""
    instance = Instance.uniform(
        stages=3,
        microbatches=3,
        forward_ticks=2,
        weight_ticks=2,
        comm_ticks=1,
        memory_cap=cap,
        objective=objective,
        barrier=barrier,
    )
    told = Told(instance)
    told.search.run()
    best = optimum(instance)
    assert (told.search.value, told.search.bound.value) == (best, best)
    assert told.values == sorted(set(told.values), reverse=True)
    bounds = [bound.value for bound in told.bounds]
    assert bounds == sorted(set(bounds))
    assert told.values[-1] == objective_value(told.graph, told.found)


def test_answers() -> None:
    """p = m = 2, unit times, optimum m(F+B+W) + (p-1)F = 7: least value, a solution, none, and no time to tell."""
    problem = whole(expand(Instance.uniform(stages=2, microbatches=2)))
    reply = ask(Formulation(problem, 20, minimise=True), budget(), 10)
    assert (reply.answer, reply.bound) == (Answer.OPTIMAL, 7)
    assert reply.starts is not None
    assert objective_value(problem.graph, reply.starts) == 7
    found = ask(Formulation(problem, 7, minimise=False), budget(), 10)
    assert found.answer in (Answer.FOUND, Answer.OPTIMAL)
    assert ask(Formulation(problem, 6, minimise=False), budget(), 10).answer is Answer.REFUTED


@pytest.mark.parametrize("number", range(10))
def test_every_variant_of_the_search_gives_the_same_answer(number: int) -> None:
    """On 60 random instances: a schedule within the proved optimum, none within one tick less."""
    for seed in range(6 * number, 6 * number + 6):
        instance = any_instance(Random(f"ways {seed}"), most_microbatches=4)
        problem, best = whole(expand(instance)), proved_optimum(instance)
        for variant in range(4):
            found = ask(Formulation(problem, best, minimise=False), budget(60), 60, variant)
            assert found.answer in (Answer.FOUND, Answer.OPTIMAL), f"seed {seed}, variant {variant}"
            below = ask(Formulation(problem, best - 1, minimise=False), budget(60), 60, variant)
            assert below.answer is Answer.REFUTED, f"seed {seed}, variant {variant}"


def test_spent_budget_leaves_questions_open() -> None:
    """Without time nothing is claimed: no solution, no bound."""
    problem = whole(expand(Instance.uniform(stages=6, microbatches=12, memory_cap=4)))
    spent = budget(1e-9)
    assert spent.spent()
    reply = ask(Formulation(problem, 200, minimise=True), spent, 10)
    assert (reply.answer, reply.starts, reply.bound) == (Answer.OPEN, None, 0)


def test_deterministic_budget_counts_the_solver_alone() -> None:
    """Its clock is CP-SAT's deterministic time: it stands still between calls and runs during one."""
    counted = Budget(5, workers=4, seed=0, deterministic=True)
    assert counted.left_s() == 5
    formulation = Formulation(whole(expand(Instance.uniform(stages=3, microbatches=4))), 30, minimise=True)
    counted.charge(ask(formulation, counted, 5).cost_s)
    assert 0 < counted.spent_s < 5
    assert counted.left_s() == 5 - counted.spent_s


@pytest.mark.parametrize("stages", [1, 2, 3, 8, 32])
def test_stage_sets(stages: int) -> None:
    """Proper subsets, each once, the first stage alone at first; none where there is but one stage."""
    sets = list(stage_sets(expand(Instance.uniform(stages=stages, microbatches=1))))
    assert len(set(sets)) == len(sets)
    assert all(0 < len(chosen) < stages and set(chosen) <= set(range(stages)) for chosen in sets)
    assert sets[:1] == ([(0,)] if stages > 1 else [])


def test_tightened_removes_idle_time() -> None:
    """p = 2, m = 1, unit times: F F B then W beside B, W: from any late start to 2F + 2B + W = 5."""
    graph = expand(Instance.uniform(stages=2, microbatches=1))
    late = {i: 7 + 10 * start for i, start in serial_starts(graph).items()}
    assert objective_value(graph, late) == 51
    value, starts = tightened(graph, late)
    assert (value, objective_value(graph, starts), min(starts.values())) == (5, 5, 0)


@pytest.mark.parametrize(("stages", "value"), [((0,), 57), ((0, 2), 57)])
def test_few_stages_prove_a_published_bound(stages: tuple[int, ...], value: int) -> None:
    """p = 4, m = 16, cap 3, unit times: stages 0 and 2 together need 57, stage 0 alone less (design notes)."""
    graph = expand(Instance.uniform(stages=4, microbatches=16, memory_cap=3))
    found = least(keep_stages(graph, stages), 69)
    assert found is not None
    assert found == value if len(stages) == 2 else found < value


def test_bug_horizon_below_the_longest_path() -> None:
    """A start had the domain {latest} where no start was early enough: the model "found" what ends too late.

    V placement, p = 2, m = 1, unit times: the way down and back is 4 F + 4 B, and a W: 9.
    """
    graph = expand(Instance.uniform(stages=2, microbatches=1, placement="v", virtual=2))
    for horizon, status in ((9, "OPTIMAL"), (8, "INFEASIBLE"), (2, "INFEASIBLE")):
        search = solver()
        assert search.status_name(search.solve(Formulation(whole(graph), horizon, minimise=False).model)) == status


def test_option_too_long_for_the_horizon() -> None:
    """BW = 50 does not fit into 3 ticks; B and W do: F + B + W = 3 on one stage."""
    instance = Instance.uniform(stages=1, microbatches=1, fused_backward_ticks=50)
    assert least(whole(expand(instance)), 3) == 3


def test_bug_span_of_kept_stages_that_start_late() -> None:
    """The first virtual stage on stage 1: stage 0 alone, after its head, did not end within one span and was refuted.

    p = 2, m = 1: stage 0 runs F B W of the last virtual stage, 1 + 1 + 20 ticks from 5 on; stage 1 ends at 13.
    """
    fields = {"stages": 2, "microbatches": 1, "stage_of": (1, 0), "objective": "max_stage_span"}
    times = {"forward_ticks": (5, 1), "backward_ticks": (5, 1), "weight_ticks": (1, 20)}
    instance = Instance.model_validate(fields | times)
    assert proved_optimum(instance) == 22
    assert least(keep_stages(expand(instance), [0]), 22) == 22


def test_bug_residency_after_post_validation() -> None:
    """The step of stage 1 was added to a tail that ends on stage 0: 32, above the optimum of 29.

    p = 2, m = 2, caps 2 and 1. The optimum is by exhausting all orders.
    """
    fields = {"stages": 2, "microbatches": 2, "comm_ticks": 3, "barrier": "post_validation", "optimizer_ticks": (0, 10)}
    times = {"forward_ticks": 1, "backward_ticks": (5, 1), "weight_ticks": (5, 1), "memory_cap": (2, 1)}
    instance = Instance.model_validate(fields | times)
    best = optimum(instance)
    assert best == 29
    found = {name: bound.value for name, argument in ARGUMENTS.items() if (bound := argument(instance)) is not None}
    assert {name: value for name, value in found.items() if value > best} == {}
    assert figures(HEURISTICS["list"](instance)).makespan >= best


def test_bug_bound_of_a_cap_below_one_activation() -> None:
    """The round trip looked for the most work that is live beside an F where not even the F fits, and raised."""
    instance = Instance.uniform(stages=2, microbatches=2, memory_cap="1/2")
    assert lower_bound(instance).value >= 2 * 3 + 1


def test_bug_two_calls_end_at_once() -> None:
    """The first closed the gap, and hearing the second divided by it."""
    told = Told(Instance.uniform(stages=2, microbatches=2))
    question = Question("schedule", lambda horizon: pytest.fail("asked"), None, "cp-sat", pending=[5])
    strategy = Strategy([question], 1.0)
    told.search.bound = Bound(told.search.value, "cp-sat")
    told.search.receive(Call(strategy, question, 5, cp_model.CpSolver()), Reply(Answer.OPEN, None, 0, 0.5))
    assert (question.pending, question.left_open, strategy.wasted_s) == ([], [], 0.5)


def test_bug_fault_of_one_call_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault on one thread was heard only after the slices of the others; and a call stopped early ran in full."""
    told = Told(Instance.uniform(stages=2, microbatches=2))
    told.search.budget = Budget(600, workers=2, seed=0)
    stopped: list[bool] = []

    def faulty(horizon: int) -> Formulation:
        raise ZeroDivisionError

    def slow(horizon: int) -> Formulation:
        while not (mine := [call for call in list(told.search.calls.values()) if call.question is waiting]):
            sleep(0.01)  # this thread runs before the search has noted its call
        stopped.append(mine[0].stopped.wait(60))
        return Formulation(whole(told.graph), horizon, minimise=False)

    waiting = Question("slow", slow, None, "cp-sat")
    strategies = [Strategy([waiting], 60), Strategy([Question("faulty", faulty, None, "cp-sat")], 60)]
    monkeypatch.setattr(told.search, "strategies", lambda: strategies)
    with pytest.raises(ZeroDivisionError):
        told.search.run()
    assert stopped == [True]
