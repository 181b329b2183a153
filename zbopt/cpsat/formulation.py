"""The CP-SAT model of a task graph. One method a constraint family; tags refer to models/formulation.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from ortools.sat.python import cp_model

from zbopt.bounds.relax import Relaxed
from zbopt.bounds.stage import Slices
from zbopt.graph import FUSED, SPLIT, Residence, TaskGraph
from zbopt.instance import Kind, Objective

Literal = cp_model.LiteralT

_GRADIENT = "gradient"
"""Class of B and BW together: exactly one of them runs for each microbatch."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that remove solutions but keep an optimal one; each can be switched off, to check the model against it."""

    microbatch_order: bool = True


@dataclass(frozen=True, slots=True)
class Stairs:
    """[D5] The cap of a stage of one virtual stage, as releases that each forward has to wait for.

    With ops in microbatch order, x activations whole and y in all are live at the start of a forward, x <= y. There is
    room for the new one exactly if ``x * by_input + y * by_weight`` is at most ``room``: a staircase in (x, y).
    ``inputs`` (B) is empty where nothing is released before ``weights`` (W, or BW).
    """

    forwards: tuple[int, ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    by_input: int
    by_weight: int
    room: int

    @classmethod
    def of(cls, graph: TaskGraph, residences: Sequence[Residence], cap: int) -> Self | None:
        """The stairs of one stage; ``None`` where several virtual stages or a choice share its memory."""
        groups: dict[Kind, list[Residence]] = defaultdict(list)
        for residence in sorted(residences, key=lambda r: graph.tasks[r.first].microbatch or 0):
            groups[graph.tasks[residence.last].kind].append(residence)
        shared = len({graph.tasks[r.first].virtual_stage for r in residences}) > 1
        if shared or any(graph.tasks[r.last].choice is not None for r in residences):
            return None
        *earlier, last = (groups[kind] for kind in (Kind.B, Kind.W, Kind.BW) if kind in groups)
        by_input = earlier[0][0].amount if earlier else 0
        return cls(
            tuple(r.first for r in last),
            tuple(r.last for rows in earlier for r in rows),
            tuple(r.last for r in last),
            by_input,
            last[0].amount,
            cap - by_input - last[0].amount,
        )

    def releases(self, n: int) -> Iterator[tuple[int, ...]]:
        """For the n-th forward: tuples of ops of which at least one has to end before it starts."""
        for whole in range(n + 1 if self.inputs else 1):
            most = (self.room - whole * self.by_input) // self.by_weight
            inputs = self.inputs[n - whole : n - whole + 1] if whole else ()
            if most < whole:
                # Not even these alone fit: fewer must be whole.
                yield inputs
                return
            if most < n:
                yield (*inputs, self.weights[n - most - 1])


class Formulation:
    """``model`` asks for a schedule of ``problem`` with objective value at most ``horizon`` ticks.

    Args:
        problem: A task graph with heads and tails, whole or relaxed.
        horizon: Largest objective value allowed [D2], in ticks.
        minimise: Ask for the least value; otherwise any within ``horizon`` will do.
        rules: Which solution-removing rules apply.
    """

    def __init__(self, problem: Relaxed, horizon: int, *, minimise: bool, rules: Rules | None = None) -> None:
        self.graph = problem.graph
        self.problem = problem
        self.horizon = horizon
        self.rules = rules or Rules()
        self.objective_kind = self.graph.instance.objective
        self.latest_ends = latest_ends(problem, horizon)
        self.latest_end = max(self.latest_ends)
        self.model = cp_model.CpModel()
        self.start: list[cp_model.IntVar] = []
        self.present: list[Literal | None] = []
        self.interval: list[cp_model.IntervalVar] = []
        self.fused: list[cp_model.IntVar] = []
        self.value: cp_model.IntVar | None = None
        self._tasks()
        self._inputs_arrive_before_start()
        self._stages_run_one_at_a_time()
        self._memory_stays_within_cap()
        self._optimizer_waits_for_gradients()
        if self.rules.microbatch_order:
            self._microbatches_in_order()
        self._objective(minimise)

    def _tasks(self) -> None:
        """[C1, M1] Each task is an interval within its head and tail; the options of a choice exclude each other."""
        self.fused = [self.model.new_bool_var(f"fused{c}") for c in range(self.graph.choices)]
        for i, task in enumerate(self.graph.tasks):
            latest = min(self.latest_ends[task.stage], self.latest_end - self.problem.tails[i]) - task.duration_ticks
            earliest = self.problem.heads[i]
            start = self.model.new_int_var(earliest, max(earliest, latest), f"s{i}")
            present: Literal | None = None
            if task.choice is not None:
                fused = self.fused[task.choice]
                present = fused if task.option == FUSED else fused.negated()
            if earliest > latest:
                # It cannot run in time: then the other option must, or there is no schedule.
                self.model.add_bool_or([] if present is None else [~present])
            self.start.append(start)
            self.present.append(present)
            self.interval.append(self._interval(i, start, task.duration_ticks, present))

    def _interval(self, i: int, start: cp_model.IntVar, ticks: int, present: Literal | None) -> cp_model.IntervalVar:
        if present is None:
            return self.model.new_fixed_size_interval_var(start, ticks, f"i{i}")
        return self.model.new_optional_fixed_size_interval_var(start, ticks, present, f"i{i}")

    def _end(self, i: int) -> cp_model.LinearExpr:
        return self.start[i] + self.graph.tasks[i].duration_ticks

    def _presence(self, *tasks: int) -> list[Literal]:
        return [literal for i in tasks if (literal := self.present[i]) is not None]

    def _inputs_arrive_before_start(self) -> None:
        """[C2] A task starts after its inputs have arrived."""
        for edge in self.graph.precedences:
            constraint = self.model.add(self.start[edge.after] >= self._end(edge.before) + edge.lag_ticks)
            literals = self._presence(edge.before, edge.after)
            if literals:
                constraint.only_enforce_if(literals)

    def _stages_run_one_at_a_time(self) -> None:
        """[C3] A stage runs one op at a time."""
        for row in self.graph.resources:
            if len(row) > 1:
                self.model.add_no_overlap(self.interval[i] for i in row)

    def _memory_stays_within_cap(self) -> None:
        """[C4] Live memory of each stage stays within its cap: as orders of ops where [D5] applies."""
        if self.graph.caps is None:
            return
        by_stage: dict[int, list[Residence]] = defaultdict(list)
        for residence in self.graph.residences:
            by_stage[residence.stage].append(residence)
        for stage, residences in by_stage.items():
            cap = self.graph.caps[stage]
            if sum(r.amount for r in residences) <= cap:
                continue
            stairs = Stairs.of(self.graph, residences, cap) if self.rules.microbatch_order else None
            if stairs is None:
                self._cumulative(residences, cap)
            else:
                self._release_before_forward(stairs)

    def _release_before_forward(self, stairs: Stairs) -> None:
        """[D5] Each forward follows the releases that make room for it; some are one or the other."""
        before: dict[tuple[int, int], cp_model.IntVar] = {}
        for n, forward in enumerate(stairs.forwards):
            for options in stairs.releases(n):
                if len(options) == 1:
                    self.model.add(self.start[forward] >= self._end(options[0]))
                    continue
                for op in options:
                    if (op, forward) not in before:
                        before[op, forward] = self._ends_before(op, forward)
                self.model.add_bool_or(before[op, forward] for op in options)

    def _ends_before(self, first: int, second: int) -> cp_model.IntVar:
        """A literal for the order of two ops of one stage."""
        literal = self.model.new_bool_var(f"{first}<{second}")
        self.model.add(self.start[second] >= self._end(first)).only_enforce_if(literal)
        self.model.add(self.start[first] >= self._end(second)).only_enforce_if(literal.negated())
        return literal

    def _cumulative(self, residences: list[Residence], cap: int) -> None:
        intervals = []
        for n, r in enumerate(residences):
            first, last = self.start[r.first], self._end(r.last)
            size = self.model.new_int_var(0, self.latest_end, f"life{r.stage}_{n}")
            literals = self._presence(r.first, r.last)
            if not literals:
                intervals.append(self.model.new_interval_var(first, size, last, f"live{r.stage}_{n}"))
            else:
                # A residence hangs on one choice at most: F always runs.
                intervals.append(
                    self.model.new_optional_interval_var(first, size, last, literals[0], f"live{r.stage}_{n}")
                )
        self.model.add_cumulative(intervals, [r.amount for r in residences], cap)

    def _optimizer_waits_for_gradients(self) -> None:
        """[C5] O starts after the gradients that its barrier names."""
        for n, join in enumerate(self.graph.joins):
            time = self.model.new_int_var(0, self.latest_end, f"join{n}")
            for i in join.before:
                constraint = self.model.add(time >= self._end(i))
                if literals := self._presence(i):
                    constraint.only_enforce_if(literals)
            for i in join.after:
                self.model.add(self.start[i] >= time)

    def _microbatches_in_order(self) -> None:
        """[D1] Each virtual stage runs F, the gradients (B or BW) and W in microbatch order."""
        classes: dict[tuple[int, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for i, task in enumerate(self.graph.tasks):
            if task.virtual_stage is None or task.microbatch is None:
                continue
            name = _GRADIENT if task.kind in (Kind.B, Kind.BW) else task.kind.value
            classes[task.virtual_stage, name][task.microbatch].append(i)
        for rows in classes.values():
            for j, k in pairwise(sorted(rows)):
                for before in rows[j]:
                    for after in rows[k]:
                        self._in_order(before, after)

    def _in_order(self, before: int, after: int) -> None:
        literals = self._presence(before, after)
        if not literals:
            self.model.add(self.start[after] >= self._end(before))
        elif self.graph.tasks[before].kind is Kind.W:
            # The start of a W that does not run is free, so the chain may pass through it.
            self.model.add(self.start[after] >= self.start[before])
        else:
            self.model.add(self.start[after] >= self._end(before)).only_enforce_if(literals)

    def _objective(self, minimise: bool) -> None:
        """[O1, O2] The value stays within the horizon; where asked, it is least."""
        if self.objective_kind is Objective.MAX_STAGE_SPAN:
            value = self._largest_span()
        elif minimise:
            value = self._makespan()
        else:
            return
        self.value = value
        if minimise:
            self.model.minimize(value)

    def _makespan(self) -> cp_model.IntVar:
        """[O1] The last end of all; the first start is 0."""
        makespan = self.model.new_int_var(0, self.horizon, "makespan")
        for i, tail in enumerate(self.problem.tails):
            constraint = self.model.add(makespan >= self._end(i) + tail)
            if literals := self._presence(i):
                constraint.only_enforce_if(literals)
        return makespan

    def at_least(self, bound: int) -> None:
        """Tell the solver a lower bound on the value that it is to minimise, in ticks."""
        assert self.value is not None, "there is a value only where it is minimised"
        self.model.add(self.value >= bound)

    def _largest_span(self) -> cp_model.IntVar:
        """[O2] The largest time from a stage's first start to its last end."""
        span = self.model.new_int_var(0, self.horizon, "span")
        for stage, row in enumerate(self.graph.resources):
            if not row:
                continue
            first = self.model.new_int_var(0, self.latest_end, f"first{stage}")
            for i in row:
                if self.graph.tasks[i].kind is Kind.F:
                    self.model.add(first <= self.start[i])
                constraint = self.model.add(span >= self._end(i) - first)
                if literals := self._presence(i):
                    constraint.only_enforce_if(literals)
        return span

    def hint(self, starts: Mapping[int, int]) -> None:
        """Give the solver a complete solution to start from: start of each task that runs."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]  # OR-Tools 9.15 leaves it untyped
        for i, start in starts.items():
            self.model.add_hint(self.start[i], start)
        for choice, options in enumerate(self.graph.options):
            self.model.add_hint(self.fused[choice], any(i in starts for i in options[FUSED]))

    def runs(self, solver: cp_model.CpSolver | cp_model.CpSolverSolutionCallback) -> dict[int, int]:
        """Start of each task that runs in the solver's solution."""
        chosen = [FUSED if solver.boolean_value(literal) else SPLIT for literal in self.fused]
        return {
            i: solver.value(self.start[i])
            for i, task in enumerate(self.graph.tasks)
            if task.choice is None or chosen[task.choice] == task.option
        }


def latest_ends(problem: Relaxed, horizon: int) -> tuple[int, ...]:
    """Latest end of each stage's tasks in some schedule whose objective value is at most ``horizon`` ticks.

    Under ``max_stage_span`` each stage has a window of that length. A stage's first op comes before the last gradient
    that it sends to the stage before, which has to use it within its own window [D2]; so the windows overlap.
    """
    instance = problem.graph.instance
    if instance.objective is Objective.MAKESPAN:
        return (horizon,) * instance.stages
    if not instance.is_linear:
        return (horizon * instance.stages,) * instance.stages
    slices = Slices(instance)
    ends = [horizon]
    for stage in range(1, instance.stages):
        before_last_gradient = instance.microbatches * (slices.forward(stage) + slices.gradient(stage))
        delay = horizon - before_last_gradient - instance.comm_ticks - slices.backward_work(stage - 1)
        ends.append(ends[-1] + max(0, delay))
    return tuple(ends)
