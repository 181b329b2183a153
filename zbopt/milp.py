"""The published integer program, on OR-Tools' own MIP solver: the reference to beat, and a second opinion.

Zero Bubble Pipeline Parallelism (arXiv 2401.10241), appendix: binaries for the order of two ops of a stage, big-M
constraints, memory counted by order. models/formulation.md, section 7, states it and what is tightened; its tags hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import NamedTuple

from ortools.math_opt.python import mathopt  # type: ignore[import-untyped]  # OR-Tools leaves it untyped

from zbopt.bounds.relax import Relaxed, whole
from zbopt.engine.order import Order
from zbopt.engine.reach import require_modelled
from zbopt.engine.serve import News, serve
from zbopt.graph import TaskGraph, expand
from zbopt.instance import Kind, Objective
from zbopt.result import Bound
from zbopt.schedule import Status
from zbopt.timing import earliest_starts, least_span_starts

_RANK = {Kind.F: 0, Kind.B: 1, Kind.W: 2}
_FEASIBILITY = 1e-9
"""Most by which the solver may break a constraint or an integer: a big M times this has to be far below a tick."""
_TOLERANCE = 1e-7
"""Relative error that the solver's bound may have: it computes in floating point."""
_ENDED = (
    mathopt.TerminationReason.OPTIMAL,
    mathopt.TerminationReason.FEASIBLE,
    mathopt.TerminationReason.NO_SOLUTION_FOUND,
)


class MilpOutcome(NamedTuple):
    """``starts`` of every task in ticks, ``None`` without a solution; ``bound`` on the objective in ticks."""

    starts: dict[int, int] | None
    bound: int
    status: Status


def solve_milp(
    graph: TaskGraph,
    *,
    time_limit_s: float,
    seed: int = 0,
    start: Mapping[int, int] | None = None,
    found: Callable[[int, Mapping[int, int]], None] = lambda value, starts: None,
    proved: Callable[[int], None] = lambda bound: None,
) -> MilpOutcome:
    """Minimise the instance's objective by the published integer program, on one thread.

    Args:
        graph: Task graph of an instance with one virtual stage a stage whose backward is always split.
        time_limit_s: Most seconds for the solver.
        seed: Of the solver's random choices.
        start: A valid schedule to begin with, by task, in ticks; ``None``: the solver finds its own.
        found: Told each better schedule as it is found: value and starts, in ticks.
        proved: Told each better bound as it is proved, in ticks.

    Raises:
        ValueError: The instance asks for what the published program does not model.
    """
    require_modelled(graph.instance)
    return _Program(graph, start, found, proved).solve(time_limit_s, seed)


class _Program:
    """The integer program, one method a constraint family."""

    def __init__(
        self,
        graph: TaskGraph,
        start: Mapping[int, int] | None,
        found: Callable[[int, Mapping[int, int]], None],
        proved: Callable[[int], None],
    ) -> None:
        self.graph, self.found, self.proved = graph, found, proved
        self.problem: Relaxed = whole(graph)
        self.span = graph.instance.objective is Objective.MAX_STAGE_SPAN
        self.horizon = _one_by_one(graph) if start is None else _value(graph, start)
        self.best = None if start is None else (self.horizon, dict(start))
        self.bound = 0
        self.model = mathopt.Model()
        latest = self.horizon * (graph.instance.stages if self.span else 1)
        self.start = [
            self.model.add_variable(lb=self.problem.heads[i], ub=latest - task.duration_ticks)
            for i, task in enumerate(graph.tasks)
        ]
        self.before: dict[tuple[int, int], mathopt.Variable] = {}
        self._inputs_arrive_before_start()
        self._stages_run_one_at_a_time()
        self._memory_stays_within_cap()
        self._optimizer_waits_for_gradients()
        self._objective()
        self.hints = [] if start is None else [self._hint(start)]

    def _end(self, i: int) -> mathopt.LinearBase:
        return self.start[i] + self.graph.tasks[i].duration_ticks

    def _inputs_arrive_before_start(self) -> None:
        """[C2] A task starts after its inputs have arrived."""
        for edge in self.graph.precedences:
            self.model.add_linear_constraint(self.start[edge.after] >= self._end(edge.before) + edge.lag_ticks)

    def _stages_run_one_at_a_time(self) -> None:
        """[C3] Ops of a class in microbatch order [D1]; a binary for each pair whose order is open [D8]."""
        for row in self.graph.resources:
            classes = [[i for i in row if self.graph.tasks[i].kind is kind] for kind in _RANK]
            for ops in classes:
                ops.sort(key=self._microbatch)
                for i, k in pairwise(ops):
                    self.model.add_linear_constraint(self.start[k] >= self._end(i))
            for rank, late in enumerate(classes):
                for early in classes[:rank]:
                    # Of a later microbatch and an earlier kind: either may go first.
                    for i in late:
                        for k in early[self._microbatch(i) + 1 :]:
                            self._add_order(i, k)

    def _add_order(self, i: int, k: int) -> None:
        literal = self.model.add_binary_variable()
        self.before[i, k] = literal
        self.model.add_linear_constraint(self.start[k] >= self._end(i) - self._big_m(i, k) * (1 - literal))
        self.model.add_linear_constraint(self.start[i] >= self._end(k) - self._big_m(k, i) * literal)

    def _big_m(self, i: int, k: int) -> int:
        """Most by which i can end after k starts: both lie in a window as long as the horizon."""
        return self.horizon - (0 if self.span else self.problem.tails[i] + self.problem.heads[k])

    def _memory_stays_within_cap(self) -> None:
        """[C4] What the ops before a forward took, less what they gave back, leaves room for it."""
        if self.graph.caps is None:
            return
        for stage, row in enumerate(self.graph.resources):
            takes: dict[int, int] = dict.fromkeys((i for i in row if self.graph.tasks[i].kind is Kind.F), 0)
            gives: dict[int, int] = {}
            for r in self.graph.residences:
                if r.stage == stage:
                    takes[r.first] += r.amount
                    gives[r.last] = gives.get(r.last, 0) + r.amount
            for k in takes:
                earlier = sum(takes[i] for i in takes if self._microbatch(i) <= self._microbatch(k))
                released = [amount * self.before[i, k] for i, amount in gives.items() if (i, k) in self.before]
                self.model.add_linear_constraint(mathopt.fast_sum(released) >= earlier - self.graph.caps[stage])

    def _microbatch(self, i: int) -> int:
        return self.graph.tasks[i].microbatch or 0

    def _optimizer_waits_for_gradients(self) -> None:
        """[C5] O starts after the gradients that its barrier names."""
        for join in self.graph.joins:
            time = self.model.add_variable(lb=0)
            for i in join.before:
                self.model.add_linear_constraint(time >= self._end(i) + join.lag_ticks)
            for i in join.after:
                self.model.add_linear_constraint(self.start[i] >= time)

    def _objective(self) -> None:
        """[O1, O2] The makespan, or the largest stage span, is least."""
        value = self.model.add_variable(lb=0, ub=self.horizon)
        for row in self.graph.resources:
            first = self.model.add_variable(lb=0)
            for i in row:
                if self.span:
                    self.model.add_linear_constraint(first <= self.start[i])
                    self.model.add_linear_constraint(value >= self._end(i) - first)
                else:
                    self.model.add_linear_constraint(value >= self._end(i) + self.problem.tails[i])
        self.model.minimize(value)

    def _hint(self, start: Mapping[int, int]) -> mathopt.SolutionHint:
        """A schedule to begin with, renumbered into microbatch order [D1]."""
        rows: dict[tuple[int, Kind], list[int]] = {}
        for i, task in enumerate(self.graph.tasks):
            rows.setdefault((task.stage, task.kind), []).append(i)
        at: dict[int, int] = {}
        for tasks in rows.values():
            tasks.sort(key=self._microbatch)
            at |= dict(zip(tasks, sorted(start[i] for i in tasks), strict=True))
        values = {self.start[i]: float(time) for i, time in at.items()}
        values |= {literal: float(at[i] < at[k]) for (i, k), literal in self.before.items()}
        return mathopt.SolutionHint(variable_values=values)

    def solve(self, time_limit_s: float, seed: int) -> MilpOutcome:
        parameters = mathopt.SolveParameters(time_limit=timedelta(seconds=time_limit_s), threads=1, random_seed=seed)
        parameters.gscip.real_params["numerics/feastol"] = _FEASIBILITY
        result = mathopt.solve(
            self.model,
            mathopt.SolverType.GSCIP,
            params=parameters,
            model_params=mathopt.ModelSolveParameters(solution_hints=self.hints),
            callback_reg=mathopt.CallbackRegistration(
                events={mathopt.Event.MIP_SOLUTION, mathopt.Event.MIP_NODE},
                mip_node_filter=mathopt.VariableFilter(filtered_items=()),
            ),
            cb=self._hear,
        )
        reason = result.termination.reason
        if reason is mathopt.TerminationReason.INFEASIBLE:
            return MilpOutcome(None, 0, Status.INFEASIBLE)
        assert reason in _ENDED, f"the MIP solver refused the program: {result.termination}"
        if result.has_primal_feasible_solution():
            self._take(result.variable_values())
        self._raise_bound(result.termination.objective_bounds.dual_bound)
        if self.best is None:
            return MilpOutcome(None, self.bound, Status.UNKNOWN)
        value, starts = self.best
        return MilpOutcome(starts, self.bound, Status.OPTIMAL if self.bound >= value else Status.FEASIBLE)

    def _hear(self, news: mathopt.CallbackData) -> mathopt.CallbackResult:
        """The solver has a solution or is done with a node."""
        if news.event is mathopt.Event.MIP_SOLUTION and news.solution is not None:
            self._take(news.solution)
        self._raise_bound(news.mip_stats.dual_bound)
        return mathopt.CallbackResult()

    def _take(self, times: Mapping[mathopt.Variable, float]) -> None:
        """Keep a solution if it is better, at exact times for its order: its own are rounded floating point."""
        orders = [sorted(row, key=lambda i: times[self.start[i]]) for row in self.graph.resources]
        starts = (least_span_starts if self.span else earliest_starts)(self.graph, orders)
        value = _value(self.graph, starts)
        if self.best is None or value < self.best[0]:
            self.best = value, starts
            self.found(value, starts)

    def _raise_bound(self, dual: float | None) -> None:
        """Keep a bound if it is better; no schedule has part of a tick."""
        if dual is None or not math.isfinite(dual):
            return
        bound = math.ceil(dual - _TOLERANCE * max(1.0, abs(dual)))
        if self.best is not None:
            bound = min(bound, self.best[0])
        if bound > self.bound:
            self.bound = bound
            self.proved(bound)


def _answer(order: Order, news: News) -> None:
    news.doing("published integer program")
    solve_milp(
        expand(order.instance),
        time_limit_s=order.time_limit_s,
        seed=order.seed,
        start=order.starts,
        found=news.found,
        proved=lambda bound: news.proved(Bound(bound, "milp")),
    )


def _one_by_one(graph: TaskGraph) -> int:
    """Makespan of one microbatch after another: a schedule that fits every cap that any schedule fits."""
    instance = graph.instance
    transfers = 2 * instance.microbatches * sum(instance.lag_ticks(v, v + 1) for v in range(instance.stages - 1))
    return sum(task.duration_ticks for task in graph.tasks) + transfers


def _value(graph: TaskGraph, starts: Mapping[int, int]) -> int:
    """Value of the instance's objective at ``starts``, in ticks."""
    windows = [
        (min(starts[i] for i in row), max(starts[i] + graph.tasks[i].duration_ticks for i in row))
        for row in graph.resources
    ]
    if graph.instance.objective is Objective.MAX_STAGE_SPAN:
        return max(last - first for first, last in windows)
    return max(last for _, last in windows) - min(first for first, _ in windows)


if __name__ == "__main__":
    serve(_answer)
