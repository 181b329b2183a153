"""The published integer program, on OR-Tools' own MIP solver: the reference to beat, and a second opinion.

Zero Bubble Pipeline Parallelism (arXiv 2401.10241), appendix: binaries for the order of two ops of a stage, big-M
constraints, memory counted by order. models/formulation.md, section 6, states it and what is tightened; its tags hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]  # OR-Tools leaves it untyped

from zbopt.bounds.relax import Relaxed, whole
from zbopt.graph import TaskGraph
from zbopt.heuristics import NotApplicableError
from zbopt.instance import Kind, Objective
from zbopt.schedule import Status
from zbopt.timing import earliest_starts, least_span_starts

_SOLVER = "SCIP"
_RANK = {Kind.F: 0, Kind.B: 1, Kind.W: 2}
_TOLERANCE = 1e-6
"""Relative error that the solver's bound may have: it computes in floating point."""


class MilpOutcome(NamedTuple):
    """``starts`` of every task in ticks, ``None`` without a solution; ``bound`` on the objective in ticks."""

    starts: dict[int, int] | None
    bound: int
    status: Status


def solve_milp(graph: TaskGraph, *, time_limit_s: float, start: Mapping[int, int] | None = None) -> MilpOutcome:
    """Minimise the instance's objective by the published integer program, on one thread.

    Args:
        graph: Task graph of an instance with one virtual stage a stage whose backward is always split.
        time_limit_s: Most seconds for the solver.
        start: A valid schedule to begin with, by task, in ticks; ``None``: the solver finds its own.

    Raises:
        NotApplicableError: A stage holds several virtual stages, or a backward may be fused.
    """
    _require_published_shape(graph)
    program = _Program(graph, start)
    return program.solve(time_limit_s)


def _require_published_shape(graph: TaskGraph) -> None:
    instance = graph.instance
    if instance.virtual_stages != instance.stages:
        raise NotApplicableError(
            f"milp: {instance.virtual_stages} virtual stages on {instance.stages} stages; the published program "
            "needs one virtual stage a stage, take cp-sat"
        )
    if instance.may_fuse:
        raise NotApplicableError(
            "milp: fused_backward_ticks is given; the published program always splits the backward, leave it out "
            "or take cp-sat"
        )


class _Program:
    """The integer program, one method a constraint family."""

    def __init__(self, graph: TaskGraph, start: Mapping[int, int] | None) -> None:
        self.graph = graph
        self.problem: Relaxed = whole(graph)
        self.span = graph.instance.objective is Objective.MAX_STAGE_SPAN
        self.horizon = _one_by_one(graph) if start is None else _value(graph, start)
        self.mip = pywraplp.Solver.CreateSolver(_SOLVER)
        assert self.mip is not None, f"OR-Tools comes with {_SOLVER}"
        latest = self.horizon * (graph.instance.stages if self.span else 1)
        self.start = [
            self.mip.NumVar(self.problem.heads[i], latest - task.duration_ticks, f"s{i}")
            for i, task in enumerate(graph.tasks)
        ]
        self.before: dict[tuple[int, int], pywraplp.Variable] = {}
        self._inputs_arrive_before_start()
        self._stages_run_one_at_a_time()
        self._memory_stays_within_cap()
        self._optimizer_waits_for_gradients()
        self._objective()
        if start is not None:
            self._hint(start)

    def _end(self, i: int) -> pywraplp.LinearExpr:
        return self.start[i] + self.graph.tasks[i].duration_ticks

    def _inputs_arrive_before_start(self) -> None:
        """[C2] A task starts after its inputs have arrived."""
        for edge in self.graph.precedences:
            self.mip.Add(self.start[edge.after] >= self._end(edge.before) + edge.lag_ticks)

    def _stages_run_one_at_a_time(self) -> None:
        """[C3] Ops of a class in microbatch order [D1]; a binary for each pair whose order is open [D8]."""
        for row in self.graph.resources:
            ops = [i for i in row if self.graph.tasks[i].kind in _RANK]
            for i in ops:
                for k in ops:
                    if self._follows_at_once(i, k):
                        self.mip.Add(self.start[k] >= self._end(i))
                    elif self._order_is_open(i, k):
                        self._add_order(i, k)

    def _follows_at_once(self, i: int, k: int) -> bool:
        first, second = self.graph.tasks[i], self.graph.tasks[k]
        return first.kind is second.kind and (first.microbatch or 0) + 1 == second.microbatch

    def _order_is_open(self, i: int, k: int) -> bool:
        """Whether k, of a later microbatch, is of a kind that comes before i's: either may go first."""
        first, second = self.graph.tasks[i], self.graph.tasks[k]
        return _RANK[first.kind] > _RANK[second.kind] and (first.microbatch or 0) < (second.microbatch or 0)

    def _add_order(self, i: int, k: int) -> None:
        literal = self.mip.BoolVar(f"{i}<{k}")
        self.before[i, k] = literal
        self.mip.Add(self.start[k] >= self._end(i) - self._big_m(i, k) * (1 - literal))
        self.mip.Add(self.start[i] >= self._end(k) - self._big_m(k, i) * literal)

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
                    gives[r.last] = r.amount
            for k in takes:
                earlier = sum(takes[i] for i in takes if self._microbatch(i) <= self._microbatch(k))
                released = [amount * self.before[i, k] for i, amount in gives.items() if (i, k) in self.before]
                self.mip.Add(earlier - self.mip.Sum(released) <= self.graph.caps[stage])

    def _microbatch(self, i: int) -> int:
        return self.graph.tasks[i].microbatch or 0

    def _optimizer_waits_for_gradients(self) -> None:
        """[C5] O starts after the gradients that its barrier names."""
        for n, join in enumerate(self.graph.joins):
            time = self.mip.NumVar(0, self.mip.infinity(), f"join{n}")
            for i in join.before:
                self.mip.Add(time >= self._end(i))
            for i in join.after:
                self.mip.Add(self.start[i] >= time)

    def _objective(self) -> None:
        """[O1, O2] The makespan, or the largest stage span, is least."""
        self.value = self.mip.NumVar(0, self.horizon, "value")
        for stage, row in enumerate(self.graph.resources):
            first = self.mip.NumVar(0, self.mip.infinity(), f"first{stage}")
            for i in row:
                self.mip.Add(first <= self.start[i])
                if self.span:
                    self.mip.Add(self.value >= self._end(i) - first)
                else:
                    self.mip.Add(self.value >= self._end(i) + self.problem.tails[i])
        self.mip.Minimize(self.value)

    def _hint(self, start: Mapping[int, int]) -> None:
        """Give the solver a schedule to begin with, renumbered into microbatch order [D1]."""
        rows: dict[tuple[int, Kind], list[int]] = {}
        for i, task in enumerate(self.graph.tasks):
            rows.setdefault((task.stage, task.kind), []).append(i)
        at: dict[int, int] = {}
        for tasks in rows.values():
            tasks.sort(key=self._microbatch)
            at |= dict(zip(tasks, sorted(start[i] for i in tasks), strict=True))
        variables = [self.start[i] for i in at] + list(self.before.values())
        values = [float(time) for time in at.values()] + [float(at[i] < at[k]) for i, k in self.before]
        self.mip.SetHint(variables, values)

    def solve(self, time_limit_s: float) -> MilpOutcome:
        self.mip.SetTimeLimit(max(1, round(time_limit_s * 1000)))
        status = self.mip.Solve()
        if status == pywraplp.Solver.INFEASIBLE:
            return MilpOutcome(None, 0, Status.INFEASIBLE)
        assert status in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE, pywraplp.Solver.NOT_SOLVED), (
            f"the MIP solver refused the program: status {status}"
        )
        proved = self.mip.Objective().BestBound()
        bound = max(0, math.ceil(proved - _TOLERANCE * max(1.0, abs(proved)))) if math.isfinite(proved) else 0
        if status == pywraplp.Solver.NOT_SOLVED:
            return MilpOutcome(None, bound, Status.UNKNOWN)
        starts = self._starts()
        value = _value(self.graph, starts)
        return MilpOutcome(starts, min(bound, value), Status.OPTIMAL if bound >= value else Status.FEASIBLE)

    def _starts(self) -> dict[int, int]:
        """Exact times for the order that the solver found; its own times are rounded floating point."""
        orders = [sorted(row, key=lambda i: self.start[i].solution_value()) for row in self.graph.resources]
        if self.span:
            return least_span_starts(self.graph, orders)
        return earliest_starts(self.graph, orders)


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
