"""The integer program of *Zero Bubble Pipeline Parallelism* as published: the reference to beat, and a second opinion.

It is stated as in the appendix of arXiv 2401.10241 and in the code published with it: a continuous variable for the end
of every op, a binary variable for each two ops of a stage whose order microbatch order leaves open, one big M, memory
counted by order at every op, and the work that is still to come on a stage. No bound of zbopt's goes in; all it gets is
a schedule to begin with. Section 7 of models/formulation.md states the program, and each deviation with its reason.
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
"""The search ends when its bound is this near to its value, as published: no schedule has part of a tick."""
_FEASIBILITY = 1e-9
"""The share of its largest number by which the solver may break a constraint, and by which an integer may be off.

Smaller is more exact and slower. SCIP's own 1e-6 times the big M of times in microseconds is more than a tick
(models/formulation.md, section 7).
"""
_TOLERANCE = 1e-7
"""The relative error that the solver's bound may have, since it computes in floating point.

Not measured; chosen far above the error of a sum of doubles, and far below what changes a bound by a tick.
"""
_ENDED = (
    mathopt.TerminationReason.OPTIMAL,
    mathopt.TerminationReason.FEASIBLE,
    mathopt.TerminationReason.NO_SOLUTION_FOUND,
)


class MilpOutcome(NamedTuple):
    """Hold ``starts`` of every task (``None``: no solution) and the ``bound`` on the objective, both in ticks."""

    starts: dict[int, int] | None
    bound: int
    status: Status


def solve_milp(
    graph: TaskGraph,
    *,
    time_limit_s: float,
    seed: int = 0,
    start: Mapping[int, int] | None = None,
    on_schedule: Callable[[int, Mapping[int, int]], None] = lambda value, starts: None,
    on_bound: Callable[[int], None] = lambda bound: None,
) -> MilpOutcome:
    """Minimise the instance's objective by the published integer program, on one thread.

    Args:
        graph: Task graph of an instance with one virtual stage a stage whose backward is always split.
        time_limit_s: Most seconds for the solver.
        seed: Of the solver's random choices.
        start: A valid schedule to begin with, by task, in ticks; ``None``: the solver finds its own.
        on_schedule: Called with each better schedule as it is found: value and starts, in ticks.
        on_bound: Called with each better bound as it is proved, in ticks.

    Raises:
        ValueError: The instance asks for what the published program does not model.
    """
    require_modelled(graph.instance)
    return _Program(graph, start, on_schedule, on_bound).solve(time_limit_s, seed)


class _Program:
    """Build the integer program, one method a constraint family, and solve it."""

    def __init__(
        self,
        graph: TaskGraph,
        start: Mapping[int, int] | None,
        on_schedule: Callable[[int, Mapping[int, int]], None],
        on_bound: Callable[[int], None],
    ) -> None:
        self.graph, self.on_schedule, self.on_bound = graph, on_schedule, on_bound
        self.span = graph.instance.objective is Objective.MAX_STAGE_SPAN
        self.best = None if start is None else (objective_value(graph, start), dict(start))
        self.bound = 0
        self.big_m = _big_m(graph)
        if self.best is not None and self._error_ticks(self.best[0]) > _GAP_TICKS:
            # No two ops of a stage need be further apart in a better schedule.
            self.big_m = min(self.big_m, self.best[0])
        self.stage_ops = [sorted(ops, key=self._rank) for ops in graph.resources]
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
        """Return an expression that is 1 where i runs before k: a number where [D1, D8] decide it, or a binary."""
        if (i, k) in self.order:
            return self.order[i, k]
        if (k, i) in self.order:
            return 1 - self.order[k, i]
        return float(self._rank(i) < self._rank(k))

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Yield each two ops of a stage whose order is open: the first of a later kind and an earlier microbatch."""
        for ops in self.stage_ops:
            for early, (kind, microbatch) in ((k, self._rank(k)) for k in ops):
                yield from (
                    (i, early) for i in ops if kind < self._rank(i)[0] < _RANK[Kind.O] and self._rank(i)[1] < microbatch
                )

    def _nothing_starts_before_the_first_op(self) -> None:
        self.model.add_linear_constraint(self._start(self.stage_ops[0][0]) >= 0)

    def _inputs_arrive_before_start(self) -> None:
        """[C2] A task starts after its inputs have arrived."""
        for edge in self.graph.precedences:
            self.model.add_linear_constraint(self._start(edge.after) >= self.end[edge.before] + edge.lag_ticks)

    def _stages_run_one_at_a_time(self) -> None:
        """[C3] Ops of a kind run in microbatch order [D1]; a binary orders each pair whose order is open [D8]."""
        for ops in self.stage_ops:
            for i, k in pairwise(ops):
                if self._rank(i)[0] == self._rank(k)[0]:
                    self.model.add_linear_constraint(self._start(k) >= self.end[i])
        for i, k in self._pairs():
            before = self.order[i, k] = self.model.add_binary_variable()
            self.model.add_linear_constraint(self._start(k) >= self.end[i] - self.big_m * (1 - before))
            self.model.add_linear_constraint(self._start(i) >= self.end[k] - self.big_m * before)

    def _memory_stays_within_cap(self) -> None:
        """[C4] The memory that the ops before an op hold, together with what it takes itself, stays within the cap."""
        if self.graph.caps is None:
            return
        change = [0] * len(self.graph.tasks)
        for r in self.graph.residences:
            change[r.first] += r.amount
            change[r.last] -= r.amount
        for ops, cap in zip(self.stage_ops, self.graph.caps, strict=True):
            for k in ops:
                before = (change[i] * self._is_before(i, k) for i in ops if i != k and change[i])
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
        """[O1, O2] Minimise the makespan or the largest stage span: after an op come all later ops of its stage."""
        value = self.model.add_variable()
        for ops in self.stage_ops:
            origin = self._start(ops[0]) if self.span else 0
            for i in ops:
                to_come = mathopt.fast_sum(self._ticks(k) * self._is_before(i, k) for k in ops if k != i)
                self.model.add_linear_constraint(value >= self.end[i] + to_come - origin)
        self.model.minimize(value)

    def _hint(self, start: Mapping[int, int]) -> mathopt.SolutionHint:
        """Return a schedule to begin with, renumbered into microbatch order [D1]."""
        ends: dict[int, int] = {}
        for ops in self.stage_ops:
            for kind in _RANK:
                alike = [i for i in ops if self.graph.tasks[i].kind is kind]
                ends |= dict(zip(alike, sorted(start[i] + self._ticks(i) for i in alike), strict=True))
        values = {self.end[i]: float(time) for i, time in ends.items()}
        values |= {before: float(ends[i] < ends[k]) for (i, k), before in self.order.items()}
        return mathopt.SolutionHint(variable_values=values)

    def solve(self, time_limit_s: float, seed: int) -> MilpOutcome:
        """Run SCIP on one thread and return the best schedule and bound that it reaches within the time limit."""
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
            cb=self._on_event,
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

    def _on_event(self, data: mathopt.CallbackData) -> mathopt.CallbackResult:
        """Take a solution and a bound when the solver has found one or is done with a node."""
        if data.event is mathopt.Event.MIP_SOLUTION and data.solution is not None:
            self._take(data.solution)
        self._raise_bound(data.mip_stats.dual_bound)
        return mathopt.CallbackResult()

    def _take(self, solution: Mapping[mathopt.Variable, float]) -> None:
        """Keep a solution if it is better, at exact times for its order: its own are rounded floating point."""
        orders = [self._in_order(ops, solution) for ops in self.stage_ops]
        starts = (least_span_starts if self.span else earliest_starts)(self.graph, orders)
        value = objective_value(self.graph, starts)
        if self.best is None or value < self.best[0]:
            self.best = value, starts
            self.on_schedule(value, starts)

    def _in_order(self, ops: list[int], solution: Mapping[mathopt.Variable, float]) -> list[int]:
        """Return a stage's ops in the order of a solution, by its binaries: ops without length may share a time."""
        places = {k: place for place, k in enumerate(ops)}
        for i, k in ((i, k) for i, k in self.order if i in places):
            # ``ops`` has k first, the earlier kind; the solution may say otherwise.
            if solution[self.order[i, k]] > 0.5:
                places[i] -= 1
                places[k] += 1
        return sorted(ops, key=places.__getitem__)

    def _raise_bound(self, dual: float | None) -> None:
        """Keep a bound if it is better; no schedule has part of a tick."""
        if dual is None or not math.isfinite(dual):
            return
        bound = math.ceil(dual - self._error_ticks(dual))
        if self.best is not None:
            bound = min(bound, self.best[0])
        if bound > self.bound:
            self.bound = bound
            self.on_bound(bound)

    def _error_ticks(self, dual: float) -> float:
        """Return the most ticks by which a bound of the solver may be off.

        The big M lets each op of a chain begin a little early; a chain as long as the bound has no more ops than fit
        into it. To this comes the solver's relative error.
        """
        shortest = min(task.duration_ticks for task in self.graph.tasks)
        ops = len(self.graph.tasks) if shortest == 0 else min(len(self.graph.tasks), 1 + max(0.0, dual) / shortest)
        return _TOLERANCE * max(1.0, abs(dual)) + 2 * _FEASIBILITY * self.big_m * ops


def main() -> None:
    """Read one request, solve the published program, and send results until done."""
    serve(_search)


def _search(request: SolveRequest, channel: EngineChannel) -> None:
    channel.send_activity("solving the published integer program")
    solve_milp(
        expand(request.instance),
        time_limit_s=request.time_limit_s,
        seed=request.seed,
        start=request.starts,
        on_schedule=channel.send_schedule,
        on_bound=lambda bound: channel.send_bound(Bound(bound, "milp")),
    )


def _big_m(graph: TaskGraph) -> int:
    """Return the published big M in ticks: the largest times of F, B, W and three transfers, times stages microbatches.

    It is no less than the makespan of one microbatch after another, a schedule that fits every cap that any schedule
    fits.
    """
    instance = graph.instance
    most = sum(max((t.duration_ticks for t in graph.tasks if t.kind is kind), default=0) for kind in _RANK)
    lag = max((instance.lag_ticks(v, v + 1) for v in range(instance.stages - 1)), default=0)
    return (most + 3 * lag) * instance.stages * instance.microbatches
