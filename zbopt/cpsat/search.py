"""Search with CP-SAT for a better schedule and a better bound, until they meet or the budget ends.

Two moves take turns, each with a slice of time that doubles: solve relaxations to a few stages, which raise the bound,
and ask whether there is a schedule within so many ticks, at the bound first and then between bound and value.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from ortools.sat.python import cp_model

from zbopt.bounds.relax import keep_stages, whole
from zbopt.cpsat.budget import Budget
from zbopt.cpsat.formulation import Formulation, Rules
from zbopt.cpsat.periodic import PeriodicFormulation, Shape, shape
from zbopt.graph import Key, TaskGraph
from zbopt.instance import Kind, Objective
from zbopt.memory import chooses
from zbopt.repeat import Run, unrolled
from zbopt.result import Bound
from zbopt.timing import best_starts, link_orders, stage_orders

log = logging.getLogger(__name__)


_MOST_TASKS = 5000
"""Tasks of a model that CP-SAT is asked to solve; larger ones take longer to build than they are worth."""

_PARTS = (2, 3, 4, 6, 8, 12, 16)
"""Sizes of the sets of stages that relaxations keep."""

_MOST_OPEN = 5
"""Questions that may stay open in one round before the next, with a longer slice, begins."""


class Answer(Enum):
    """CP-SAT's status, in our words; an invalid model is our fault and raises."""

    FOUND = "found"
    OPTIMAL = "optimal"
    REFUTED = "refuted"
    OPEN = "open"


_ANSWERS = {
    cp_model.OPTIMAL: Answer.OPTIMAL,
    cp_model.FEASIBLE: Answer.FOUND,
    cp_model.INFEASIBLE: Answer.REFUTED,
    cp_model.UNKNOWN: Answer.OPEN,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """Outcome of one CP-SAT call: starts of the tasks that run (``None``: no solution) and the bound it proved."""

    answer: Answer
    starts: dict[int, int] | None
    bound: int


def ask(formulation: Formulation, budget: Budget, slice_s: float, *, first: bool = False) -> Reply:
    """One CP-SAT call within ``slice_s`` and the budget.

    Args:
        formulation: What to solve.
        budget: Gives limits, workers and seed; is charged for the call.
        slice_s: Most seconds of this call.
        first: Stop at the first solution.

    Raises:
        AssertionError: CP-SAT calls the model invalid.
    """
    if first:
        solver, status = _race(formulation.model, budget, slice_s)
    else:
        solver = cp_model.CpSolver()
        budget.limit(solver.parameters, slice_s)
        status = solver.solve(formulation.model)
    budget.charge(solver)
    assert status in _ANSWERS, f"CP-SAT refused the model: {formulation.model.validate()}"
    answer = _ANSWERS[status]
    found = answer in (Answer.OPTIMAL, Answer.FOUND)
    bound = round(solver.best_objective_bound) if formulation.model.has_objective() and found else 0
    return Reply(answer, formulation.runs(solver) if found else None, bound)


def _race(model: cp_model.CpModel, budget: Budget, slice_s: float) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
    """One single-threaded search a worker, each another way; the first that is done ends the others.

    CP-SAT's own workers divide a question without objective badly: with two, one of them runs feasibility jumps.
    Measured on such questions in bench/README.md.
    """
    solvers = [cp_model.CpSolver() for _ in range(budget.racers())]
    for place, solver in enumerate(solvers):
        budget.limit_racer(solver.parameters, slice_s, place)
    done: queue.Queue[tuple[cp_model.CpSolver, cp_model.CpSolverStatus]] = queue.Queue()
    threads = [
        threading.Thread(target=lambda s=solver: done.put((s, s.solve(model))), daemon=True) for solver in solvers
    ]
    for thread in threads:
        thread.start()
    winner = done.get()
    for _ in solvers[1:]:
        if winner[1] != cp_model.UNKNOWN:
            break
        winner = done.get()
    for solver in solvers:
        solver.stop_search()
    for thread in threads:
        thread.join()
    return winner


@dataclass
class Question:
    """A family of decision problems: is there a schedule of some shape within so many ticks?

    ``whole`` makes the starts of the whole step from a solution. Where the shape is no restriction, a refutation
    proves a bound; where it is, ``floor`` remembers it: below that there is no schedule of the shape.
    """

    name: str
    formulate: Callable[[int], Formulation]
    whole: Callable[[dict[int, int]], dict[int, int]]
    proves: bool
    floor: int = 0


@dataclass
class Search:
    """The state of one search. ``found`` is told each better schedule, ``proved`` each better bound.

    ``value`` and ``bound`` are in ticks; ``starts`` belong to ``value``.
    """

    graph: TaskGraph
    starts: Mapping[int, int]
    value: int
    bound: Bound
    budget: Budget
    found: Callable[[int, Mapping[int, int]], None]
    proved: Callable[[Bound], None]
    doing: Callable[[str], None]
    unsolved: list[tuple[int, ...]] = field(default_factory=list)

    def run(self) -> None:
        """Search until value and bound meet or the budget ends."""
        self.unsolved = list(stage_sets(self.graph))
        questions = list(self.questions())
        slice_s = min(8.0, max(0.5, len(self.graph.tasks) / 150))
        while not self.over():
            self.relax(slice_s)
            for question in questions:
                self.narrow(question, slice_s)
            slice_s *= 2

    def over(self) -> bool:
        """Whether nothing is left to do, or no time to do it."""
        return self.bound.value >= self.value or self.budget.spent()

    def questions(self) -> Iterator[Question]:
        """The shapes worth asking for: a repeating middle in a long step, any at all in one that is not too long."""
        repeating = shape(self.graph.instance) if self.graph.instance.objective is Objective.MAKESPAN else None
        if repeating is not None and repeating.inserted:
            yield Question(
                "repeating schedule",
                lambda horizon: PeriodicFormulation(repeating, horizon),
                lambda starts: self.long_starts(repeating, starts),
                proves=False,
            )
        if len(self.graph.tasks) <= _MOST_TASKS:
            problem = whole(self.graph)
            if chooses(self.graph.instance):
                # [D1] is not safe here, but it finds schedules much faster.
                ordered = Rules(one_order=True)
                yield Question(
                    "schedule in microbatch order",
                    lambda h: Formulation(problem, h, minimise=False, rules=ordered),
                    lambda s: s,
                    proves=False,
                )
            yield Question("schedule", lambda h: Formulation(problem, h, minimise=False), lambda s: s, proves=True)

    def long_starts(self, repeating: Shape, starts: dict[int, int]) -> dict[int, int]:
        """Starts of the whole step from those of a short one that repeats."""
        first = repeating.graph.index[Key(Kind.F, 0, repeating.first)]
        period = starts[repeating.graph.index[Key(Kind.F, 0, repeating.first + repeating.stride)]] - starts[first]
        run = Run(repeating.first, repeating.last, repeating.stride, period)
        return unrolled(repeating.graph, starts, run, self.graph)

    def relax(self, slice_s: float) -> None:
        """Solve relaxations to a few stages, from the smallest set on, until one takes its whole slice."""
        while self.unsolved and not self.over():
            stages = self.unsolved[0]
            if len(stages) * len(self.graph.tasks) > _MOST_TASKS * self.graph.instance.stages:
                return
            self.doing(f"bound from stages {', '.join(map(str, stages))}")
            formulation = Formulation(keep_stages(self.graph, stages), self.value, minimise=True)
            formulation.at_least(self.bound.value)
            reply = ask(formulation, self.budget, slice_s)
            assert reply.answer is not Answer.REFUTED, "the best schedule is a solution of every relaxation"
            self.raise_bound(reply.bound, f"cp-sat:stages-{'-'.join(map(str, stages))}")
            if reply.answer is not Answer.OPTIMAL:
                return
            self.unsolved.pop(0)

    def narrow(self, question: Question, slice_s: float) -> None:
        """Ask for schedules between bound and value, first at the bound itself; questions left open part the range.

        The easy questions lie at both ends: far below the optimum a refutation is quick, far above it a schedule.
        """
        still_open: list[int] = []
        horizon: int | None = max(self.bound.value, question.floor)
        while horizon is not None and horizon < self.value and not self.over():
            self.doing(f"{question.name} within {horizon}")
            if self.decide(question, horizon, slice_s) is Answer.OPEN:
                still_open.append(horizon)
            horizon = self.aim(max(self.bound.value, question.floor), still_open)

    def aim(self, low: int, still_open: Sequence[int]) -> int | None:
        """The next horizon to ask for, ``low`` at least; ``None`` where the open questions leave no room for one."""
        high = self.value - 1
        if len(still_open) >= _MOST_OPEN or high < low:
            return None
        inside = [horizon for horizon in still_open if low <= horizon <= high]
        if not inside:
            return (low + high) // 2
        below, above = min(inside) - low, high - max(inside)
        if max(below, above) * 16 < high - low or not (below or above):
            return None
        return low + below // 2 if below > above else high - above // 2

    def decide(self, question: Question, horizon: int, slice_s: float) -> Answer:
        """Ask whether there is a schedule within ``horizon`` ticks."""
        reply = ask(question.formulate(horizon), self.budget, slice_s, first=True)
        if reply.starts is not None:
            self.take(question.whole(reply.starts))
        elif reply.answer is Answer.REFUTED:
            question.floor = horizon + 1
            if question.proves:
                self.raise_bound(horizon + 1, "cp-sat")
        return reply.answer

    def take(self, starts: Mapping[int, int]) -> None:
        """Keep a solution if it is better, after moving its ops as early as its order allows."""
        value, starts = tightened(self.graph, starts)
        if value < self.value:
            self.value, self.starts = value, starts
            self.found(value, starts)

    def raise_bound(self, value: int, proved_by: str) -> None:
        """Keep a bound if it is better."""
        if value > self.bound.value:
            self.bound = Bound(value, proved_by)
            self.proved(self.bound)


def tightened(graph: TaskGraph, starts: Mapping[int, int]) -> tuple[int, dict[int, int]]:
    """(objective value, starts) after giving the order of ``starts`` its best times."""
    best = best_starts(graph, stage_orders(graph, starts), link_orders(graph, starts))
    return objective_value(graph, best), best


def objective_value(graph: TaskGraph, starts: Mapping[int, int]) -> int:
    """Value of the instance's objective at ``starts``, in ticks."""
    if graph.instance.objective is Objective.PERIOD:
        return _period(graph, starts)
    ends = {i: start + graph.tasks[i].duration_ticks for i, start in starts.items()}
    if graph.instance.objective is Objective.MAX_STAGE_SPAN:
        rows = [[i for i in row if i in starts] for row in graph.resources]
        return max(max(ends[i] for i in row) - min(starts[i] for i in row) for row in rows if row)
    return max(ends.values()) - (min(starts.values()) if graph.instance.input_ready_ticks is None else 0)


def _period(graph: TaskGraph, starts: Mapping[int, int]) -> int:
    """[T6] The most that an iteration starts after the one before, on any stage."""
    longest = 0
    for row in graph.resources:
        firsts: dict[int, int] = {}
        for i in row:
            if i in starts:
                iteration = graph.tasks[i].iteration
                firsts[iteration] = min(starts[i], firsts.get(iteration, starts[i]))
        times = [firsts[iteration] for iteration in sorted(firsts)]
        longest = max([longest, *(after - before for before, after in pairwise(times))])
    return longest


def stage_sets(graph: TaskGraph) -> Iterator[tuple[int, ...]]:
    """Sets of stages for the relaxation, from small to large, the whole left out."""
    stages = graph.instance.stages
    ends = tuple(sorted({0, stages - 1}))
    spread = [tuple(sorted({stages * k // parts for k in range(parts)})) for parts in _PARTS]
    halved = [tuple(sorted({stages // 2 * k // parts for k in range(parts)})) for parts in _PARTS]
    sets = [(0,), ends, *(chosen for pair in zip(halved, spread, strict=True) for chosen in pair)]
    yield from (chosen for chosen in dict.fromkeys(sets) if len(chosen) < stages)
