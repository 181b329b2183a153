"""The integer program of *Zero Bubble Pipeline Parallelism* as published: the reference to beat, and a second opinion.

Stated as in the appendix of arXiv 2401.10241 and in the code published with it: a continuous end of every op, a binary
for each two ops of a stage whose order microbatch order leaves open, one big M, memory counted by order at every op,
and the work that is still to come on a stage. No bound of ours goes in; all it gets is a schedule to begin with.
models/formulation.md, section 7, states it, and each deviation with its reason; its tags hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import NamedTuple

from ortools.math_opt.python import mathopt  # type: ignore[import-untyped]  # OR-Tools leaves it untyped

from zbopt.engine.reach import require_modelled
from zbopt.engine.request import SolveRequest
from zbopt.engine.serve import EngineChannel, serve
from zbopt.graph import TaskGraph, expand
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Kind, Objective
from zbopt.problem.schedule import Status
from zbopt.timing import earliest_starts, least_span_starts, objective_value

_RANK = {Kind.F: 0, Kind.B: 1, Kind.W: 2, Kind.O: 3}
_GAP_TICKS = 0.5
"""The search ends when its bound is as near as that, as published: no schedule has part of a tick."""
_FEASIBILITY = 1e-9
"""Most by which the solver may break a constraint, of its largest number, or an integer."""
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
        self.span = graph.instance.objective is Objective.MAX_STAGE_SPAN
        self.best = None if start is None else (objective_value(graph, start), dict(start))
        self.bound = 0
        self.big_m = _big_m(graph)
        if self.best is not None and self._error_ticks(self.best[0]) > _GAP_TICKS:
            # No two ops of a stage need be further apart in a better schedule.
            self.big_m = min(self.big_m, self.best[0])
        self.rows = [sorted(row, key=self._rank) for row in graph.resources]
        self.model = mathopt.Model()
        self.end = [self.model.add_variable() for _ in graph.tasks]
        self.order: dict[tuple[int, int], mathopt.Variable] = {}
        self._nothing_starts_before_the_first_op()
        self._inputs_arrive_before_start()
        self._stages_run_one_at_a_time()
        self._memory_stays_within_cap()
        self._optimizer_waits_for_gradients()
        self._objective()
        self.hints = [] if start is None else [self._hint(start)]

    def _rank(self, i: int) -> tuple[int, int]:
        task = self.graph.tasks[i]
        return _RANK[task.kind], task.microbatch or 0

    def _ticks(self, i: int) -> int:
        return self.graph.tasks[i].duration_ticks

    def _start(self, i: int) -> mathopt.LinearBase:
        return self.end[i] - self._ticks(i)

    def _is_before(self, i: int, k: int) -> mathopt.LinearTypes:
        """1 where i of a stage is before its k: decided by microbatch order [D1, D8], or a binary."""
        if (i, k) in self.order:
            return self.order[i, k]
        if (k, i) in self.order:
            return 1 - self.order[k, i]
        return float(self._rank(i) < self._rank(k))

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Every two ops of a stage whose order is open: the first of a later kind and an earlier microbatch."""
        for row in self.rows:
            for early, (kind, microbatch) in ((k, self._rank(k)) for k in row):
                yield from (
                    (i, early) for i in row if kind < self._rank(i)[0] < _RANK[Kind.O] and self._rank(i)[1] < microbatch
                )

    def _nothing_starts_before_the_first_op(self) -> None:
        self.model.add_linear_constraint(self._start(self.rows[0][0]) >= 0)

    def _inputs_arrive_before_start(self) -> None:
        """[C2] A task starts after its inputs have arrived."""
        for edge in self.graph.precedences:
            self.model.add_linear_constraint(self._start(edge.after) >= self.end[edge.before] + edge.lag_ticks)

    def _stages_run_one_at_a_time(self) -> None:
        """[C3] Ops of a kind in microbatch order [D1]; a binary for each pair whose order is open [D8]."""
        for row in self.rows:
            for i, k in pairwise(row):
                if self._rank(i)[0] == self._rank(k)[0]:
                    self.model.add_linear_constraint(self._start(k) >= self.end[i])
        for i, k in self._pairs():
            before = self.order[i, k] = self.model.add_binary_variable()
            self.model.add_linear_constraint(self._start(k) >= self.end[i] - self.big_m * (1 - before))
            self.model.add_linear_constraint(self._start(i) >= self.end[k] - self.big_m * before)

    def _memory_stays_within_cap(self) -> None:
        """[C4] What the ops before an op took, less what they gave back, and what it takes itself, fits the cap."""
        if self.graph.caps is None:
            return
        change = [0] * len(self.graph.tasks)
        for r in self.graph.residences:
            change[r.first] += r.amount
            change[r.last] -= r.amount
        for row, cap in zip(self.rows, self.graph.caps, strict=True):
            for k in row:
                before = (change[i] * self._is_before(i, k) for i in row if i != k and change[i])
                self.model.add_linear_constraint(mathopt.fast_sum(before) + change[k] <= cap)

    def _optimizer_waits_for_gradients(self) -> None:
        """[C5] O starts after the gradients that its barrier names."""
        for join in self.graph.joins:
            time = self.model.add_variable()
            for i in join.before:
                self.model.add_linear_constraint(time >= self.end[i] + join.lag_ticks)
            for i in join.after:
                self.model.add_linear_constraint(self._start(i) >= time)

    def _objective(self) -> None:
        """[O1, O2] The makespan, or the largest stage span, is least: an op ends before all that comes after it."""
        value = self.model.add_variable()
        for row in self.rows:
            origin = self._start(row[0]) if self.span else 0
            for i in row:
                to_come = mathopt.fast_sum(self._ticks(k) * self._is_before(i, k) for k in row if k != i)
                self.model.add_linear_constraint(value >= self.end[i] + to_come - origin)
        self.model.minimize(value)

    def _hint(self, start: Mapping[int, int]) -> mathopt.SolutionHint:
        """A schedule to begin with, renumbered into microbatch order [D1]."""
        ends: dict[int, int] = {}
        for row in self.rows:
            for kind in _RANK:
                ops = [i for i in row if self.graph.tasks[i].kind is kind]
                ends |= dict(zip(ops, sorted(start[i] + self._ticks(i) for i in ops), strict=True))
        values = {self.end[i]: float(time) for i, time in ends.items()}
        values |= {before: float(ends[i] < ends[k]) for (i, k), before in self.order.items()}
        return mathopt.SolutionHint(variable_values=values)

    def solve(self, time_limit_s: float, seed: int) -> MilpOutcome:
        parameters = mathopt.SolveParameters(
            time_limit=timedelta(seconds=time_limit_s), threads=1, random_seed=seed, absolute_gap_tolerance=_GAP_TICKS
        )
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

    def _take(self, solution: Mapping[mathopt.Variable, float]) -> None:
        """Keep a solution if it is better, at exact times for its order: its own are rounded floating point."""
        orders = [self._in_order(row, solution) for row in self.rows]
        starts = (least_span_starts if self.span else earliest_starts)(self.graph, orders)
        value = objective_value(self.graph, starts)
        if self.best is None or value < self.best[0]:
            self.best = value, starts
            self.found(value, starts)

    def _in_order(self, row: list[int], solution: Mapping[mathopt.Variable, float]) -> list[int]:
        """A stage's ops in the order of a solution, which its times would not tell of ops that take none."""
        places = {k: place for place, k in enumerate(row)}
        for i, k in ((i, k) for i, k in self.order if i in places):
            # A row has k first, the earlier kind; the solution may say otherwise.
            if solution[self.order[i, k]] > 0.5:
                places[i] -= 1
                places[k] += 1
        return sorted(row, key=places.__getitem__)

    def _raise_bound(self, dual: float | None) -> None:
        """Keep a bound if it is better; no schedule has part of a tick."""
        if dual is None or not math.isfinite(dual):
            return
        bound = math.ceil(dual - self._error_ticks(dual))
        if self.best is not None:
            bound = min(bound, self.best[0])
        if bound > self.bound:
            self.bound = bound
            self.proved(bound)

    def _error_ticks(self, dual: float) -> float:
        """Most by which a bound of the solver may be too low: a big M lets each op of a chain begin a little early.

        A chain as long as the bound has no more ops than fit into it.
        """
        shortest = min(task.duration_ticks for task in self.graph.tasks)
        ops = len(self.graph.tasks) if shortest == 0 else min(len(self.graph.tasks), 1 + max(0.0, dual) / shortest)
        return _TOLERANCE * max(1.0, abs(dual)) + 2 * _FEASIBILITY * self.big_m * ops


def _answer(order: SolveRequest, news: EngineChannel) -> None:
    news.doing("published integer program")
    solve_milp(
        expand(order.instance),
        time_limit_s=order.time_limit_s,
        seed=order.seed,
        start=order.starts,
        found=news.found,
        proved=lambda bound: news.proved(Bound(bound, "milp")),
    )


def _big_m(graph: TaskGraph) -> int:
    """As published: the largest times of F, B, W and three transfers, for each stage and microbatch.

    No less than one microbatch after another, a schedule that fits every cap that any schedule fits.
    """
    instance = graph.instance
    most = sum(max((t.duration_ticks for t in graph.tasks if t.kind is kind), default=0) for kind in _RANK)
    lag = max((instance.lag_ticks(v, v + 1) for v in range(instance.stages - 1)), default=0)
    return (most + 3 * lag) * instance.stages * instance.microbatches


if __name__ == "__main__":
    serve(_answer)
