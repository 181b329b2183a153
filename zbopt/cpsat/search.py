"""Search with CP-SAT for a better schedule and a better bound, until they meet or the budget ends.

Two moves take turns, each with a slice of time that doubles: solve relaxations to a few stages, which raise the bound,
and ask whether there is a schedule within so many ticks, at the bound first and then between bound and value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ortools.sat.python import cp_model

from zbopt.bounds.relax import Relaxed, keep_stages, whole
from zbopt.cpsat.budget import Budget
from zbopt.cpsat.formulation import Formulation, latest_end
from zbopt.graph import TaskGraph
from zbopt.instance import Objective
from zbopt.result import Bound
from zbopt.timing import earliest_starts, least_span_starts

log = logging.getLogger(__name__)


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
    solver = cp_model.CpSolver()
    budget.limit(solver.parameters, slice_s)
    solver.parameters.stop_after_first_solution = first
    status = solver.solve(formulation.model)
    budget.charge(solver)
    assert status in _ANSWERS, f"CP-SAT refused the model: {formulation.model.validate()}"
    answer = _ANSWERS[status]
    found = answer in (Answer.OPTIMAL, Answer.FOUND)
    bound = round(solver.best_objective_bound) if formulation.model.has_objective() and found else 0
    return Reply(answer, formulation.runs(solver) if found else None, bound)


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
        self.problem = whole(self.graph)
        self.unsolved = list(stage_sets(self.graph))
        slice_s = 1.0
        while not self.over():
            self.relax(slice_s)
            self.narrow(slice_s)
            slice_s *= 2

    def over(self) -> bool:
        """Whether nothing is left to do, or no time to do it."""
        return self.bound.value >= self.value or self.budget.spent()

    def relax(self, slice_s: float) -> None:
        """Solve relaxations to a few stages, from the smallest set on, until one takes its whole slice."""
        while self.unsolved and not self.over():
            stages = self.unsolved[0]
            self.doing(f"bound from stages {', '.join(map(str, stages))}")
            formulation = Formulation(keep_stages(self.graph, stages), self.value, minimise=True)
            formulation.at_least(self.bound.value)
            reply = ask(formulation, self.budget, slice_s)
            assert reply.answer is not Answer.REFUTED, "the best schedule is a solution of every relaxation"
            self.raise_bound(reply.bound, f"cp-sat:stages-{'-'.join(map(str, stages))}")
            if reply.answer is not Answer.OPTIMAL:
                return
            self.unsolved.pop(0)

    def narrow(self, slice_s: float) -> None:
        """Ask for schedules between bound and value, first at the bound itself; questions left open part the range.

        The easy questions lie at both ends: far below the optimum a refutation is quick, far above it a schedule.
        """
        still_open: list[int] = []
        horizon: int | None = self.bound.value
        while horizon is not None and not self.over():
            self.doing(f"schedule within {horizon}")
            if self.decide(horizon, slice_s) is Answer.OPEN:
                still_open.append(horizon)
            horizon = self.aim(still_open)

    def aim(self, still_open: Sequence[int]) -> int | None:
        """The next horizon to ask for; ``None`` where the open questions leave no room worth asking."""
        low, high = self.bound.value, self.value - 1
        if len(still_open) >= _MOST_OPEN or high < low:
            return None
        inside = [horizon for horizon in still_open if low <= horizon <= high]
        if not inside:
            return (low + high) // 2
        below, above = min(inside) - low, high - max(inside)
        if max(below, above) * 16 < high - low or not (below or above):
            return None
        return low + below // 2 if below > above else high - above // 2

    def decide(self, horizon: int, slice_s: float) -> Answer:
        """Ask whether there is a schedule within ``horizon`` ticks."""
        formulation = Formulation(self.problem, horizon, minimise=False)
        formulation.hint(self.starts)
        reply = ask(formulation, self.budget, slice_s, first=True)
        if reply.starts is not None:
            self.take(reply.starts)
        elif reply.answer is Answer.REFUTED:
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
            self.bound = Bound(min(value, self.value), proved_by)
            self.proved(self.bound)


def tightened(graph: TaskGraph, starts: Mapping[int, int]) -> tuple[int, dict[int, int]]:
    """(objective value, starts) after giving the order of ``starts`` its best times."""
    orders = [sorted((i for i in row if i in starts), key=lambda i: (starts[i], i)) for row in graph.resources]
    if graph.instance.objective is Objective.MAX_STAGE_SPAN:
        best = least_span_starts(graph, orders)
    else:
        best = earliest_starts(graph, orders)
    return objective_value(graph, best), best


def objective_value(graph: TaskGraph, starts: Mapping[int, int]) -> int:
    """Value of the instance's objective at ``starts``, in ticks."""
    rows = [[i for i in row if i in starts] for row in graph.resources]
    windows = [
        (min(starts[i] for i in row), max(starts[i] + graph.tasks[i].duration_ticks for i in row))
        for row in rows
        if row
    ]
    if graph.instance.objective is Objective.MAX_STAGE_SPAN:
        return max(last - first for first, last in windows)
    return max(last for _, last in windows) - min(first for first, _ in windows)


def stage_sets(graph: TaskGraph) -> Iterator[tuple[int, ...]]:
    """Sets of stages for the relaxation, from small to large, the whole left out."""
    stages = graph.instance.stages
    seen = set()
    for parts in (1, 2, 3, 4, 6, 8, 12, 16):
        spread = tuple(sorted({stages * k // parts for k in range(parts)}))
        half = tuple(sorted({(stages // 2 * k) // parts for k in range(parts)}))
        for chosen in (half, spread):
            if chosen not in seen and len(chosen) < stages:
                seen.add(chosen)
                yield chosen


__all__ = ["Answer", "Relaxed", "Reply", "Search", "ask", "latest_end", "objective_value", "stage_sets", "tightened"]
