"""The CP-SAT model of a task graph. One method a constraint family; tags refer to models/formulation.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod

from ortools.sat.python import cp_model
from ortools.sat.python.cp_model_helper import Literal

from zbopt.bounds.relax import Relaxed
from zbopt.cpsat.cuts import cuts_of
from zbopt.cpsat.horizon import latest_ends
from zbopt.cpsat.releases import Releases
from zbopt.graph import Link, Option, Residence, Sent
from zbopt.graph.memory import chooses, policies
from zbopt.problem.instance import COMPUTE, Kind, Objective

_GRADIENT = "gradient"
"""Name of B and BW together: exactly one of them runs for each microbatch."""
_OPTIONAL = (Kind.W, Kind.R, Kind.OUT, Kind.IN)
"""Kinds of which a microbatch may run none."""
_MOST_POLICIES = 2**40
"""Combinations of activation policies over all virtual stages that [D9] may number.

CP-SAT adds up a microbatch's number from 64-bit terms. Not measured; chosen far below 2**62, where they overflow.
"""


@dataclass(frozen=True, slots=True)
class Rules:
    """Say which rules that remove solutions apply. Each cut can be switched off, to check the model without it.

    Attributes:
        without: Tags of cuts that are left out even where they apply.
        one_order: Ask for [D1] even where the schedule chooses activation policies. It may lose all optima there, so
            that a refutation proves nothing.
    """

    without: frozenset[str] = frozenset()
    one_order: bool = False


class Formulation:
    """Hold a CP-SAT ``model`` that asks for a schedule of ``problem`` with objective value at most ``horizon`` ticks.

    Args:
        problem: A task graph with heads and tails, whole or relaxed.
        horizon: Largest objective value allowed [D2], in ticks.
        minimise: Ask for the least value; otherwise any within ``horizon`` will do.
        rules: Which rules that remove solutions apply; ``None``: all that understand the instance.

    Raises:
        ValueError: The instance gives ``overlapped_ticks``.
    """

    def __init__(self, problem: Relaxed, horizon: int, *, minimise: bool, rules: Rules | None = None) -> None:
        if problem.graph.instance.overlapped_ticks is not None:
            raise ValueError("overlapped_ticks: CP-SAT does not choose which F and BW run as one op; take a heuristic")
        self.graph = problem.graph
        self.problem = problem
        self.horizon = horizon
        self.rules = rules or Rules()
        self.cuts = cuts_of(self.graph.instance) - self.rules.without
        self.objective_kind = self.graph.instance.objective
        self.latest_ends = latest_ends(problem, horizon, windows_join="D2" in self.cuts)
        self.latest_end = max(self.latest_ends)
        self.model = cp_model.CpModel()
        self.start: list[cp_model.IntVar] = []
        self.present: list[Literal | None] = []
        self.interval: list[cp_model.IntervalVar] = []
        self.option: list[list[Literal]] = []
        self.in_order = "D1" in self.cuts and (self.rules.one_order or not chooses(self.graph.instance))
        self.classes = self.graph.instance.classes()
        self.both: dict[tuple[int, ...], cp_model.IntVar] = {}
        self.value: cp_model.IntVar | None = None
        self._tasks()
        self._inputs_arrive_before_start()
        self._stages_run_one_at_a_time()
        self._links_carry_one_at_a_time()
        self._channels_keep_order()
        self._memory_stays_within_cap()
        self._optimizer_waits_for_gradients()
        if self.in_order:
            self._microbatches_in_order(None)
        elif "D9" in self.cuts and chooses(self.graph.instance):
            self._equal_policies_in_order()
        self._objective(minimise)

    def _tasks(self) -> None:
        """[C1, M1] Make each task an interval within its head and tail; options of a choice exclude each other."""
        self.option = [self._options(c, size) for c, size in enumerate(self.graph.choices)]
        for i, task in enumerate(self.graph.tasks):
            last = self.latest_ends[task.stage] if task.kind in COMPUTE else self.latest_end
            latest = min(last, self.latest_end - self.problem.tails[i]) - task.duration_ticks
            earliest = self.problem.heads[i]
            start = self.model.new_int_var(earliest, max(earliest, latest), f"s{i}")
            present: Literal | None = None
            if task.choice is not None:
                present = self.option[task.choice][task.option]
            if earliest > latest:
                # It cannot run in time: then the other option must, or there is no schedule.
                self.model.add_bool_or([] if present is None else [~present])
            self.start.append(start)
            self.present.append(present)
            self.interval.append(self._interval(i, start, task.duration_ticks, present))

    def _options(self, choice: int, size: int) -> list[Literal]:
        """[M1, M3] Return a literal for each option of a choice, exactly one of them true."""
        first = self.model.new_bool_var(f"option{choice}_0")
        if size == 2:
            return [first, first.negated()]
        others = [self.model.new_bool_var(f"option{choice}_{k}") for k in range(1, size)]
        self.model.add_exactly_one(first, *others)
        return [first, *others]

    def _interval(self, i: int, start: cp_model.IntVar, ticks: int, present: Literal | None) -> cp_model.IntervalVar:
        if present is None:
            return self.model.new_fixed_size_interval_var(start, ticks, f"i{i}")
        return self.model.new_optional_fixed_size_interval_var(start, ticks, present, f"i{i}")

    def _end(self, i: int) -> cp_model.LinearExpr:
        return self.start[i] + self.graph.tasks[i].duration_ticks

    def _presence(self, *tasks: int) -> list[Literal]:
        return [literal for i in tasks if (literal := self.present[i]) is not None]

    def _inputs_arrive_before_start(self) -> None:
        """[C2] Let a task start after its inputs have arrived."""
        for edge in self.graph.precedences:
            constraint = self.model.add(self.start[edge.after] >= self._end(edge.before) + edge.lag_ticks)
            literals = self._presence(edge.before, edge.after)
            if literals:
                constraint.only_enforce_if(literals)

    def _stages_run_one_at_a_time(self) -> None:
        """[C3] Let a stage run one op at a time."""
        for ops in self.graph.resources:
            if len(ops) > 1:
                self.model.add_no_overlap(self.interval[i] for i in ops)

    def _links_carry_one_at_a_time(self) -> None:
        """[T1, T3] Let one task at a time use a link, a port or a blocked stage."""
        for link in self.graph.links:
            self.model.add_no_overlap(self._use(link, n) for n in range(len(link.uses)))

    def _use(self, link: Link, n: int) -> cp_model.IntervalVar:
        use = link.uses[n]
        if use.ticks == self.graph.tasks[use.task].duration_ticks:
            return self.interval[use.task]
        start, name = self.start[use.task] + use.offset_ticks, f"{link.name} {n}"
        present = self.present[use.task]
        if present is None:
            return self.model.new_fixed_size_interval_var(start, use.ticks, name)
        return self.model.new_optional_fixed_size_interval_var(start, use.ticks, present, name)

    def _channels_keep_order(self) -> None:
        """[T2] Send the transfers of a channel in the order in which their contents are produced."""
        for channel in self.graph.channels:
            for n, later in enumerate(channel.sent):
                for earlier in channel.sent[:n]:
                    if not self._order_is_known(earlier.send, later.send):
                        self._same_order(earlier, later)

    def _order_is_known(self, send: int, other: int) -> bool:
        """[D1] Return whether two transfers are of one kind, virtual stage and class: these go in microbatch order."""
        first, second = self.graph.tasks[send], self.graph.tasks[other]
        alike = (first.kind, first.virtual_stage) == (second.kind, second.virtual_stage) and any(
            {first.microbatch, second.microbatch} <= set(members) for members in self.classes
        )
        return self.in_order and alike

    def _same_order(self, one: Sent, other: Sent) -> None:
        literal = self.model.new_bool_var(f"{one.send}<{other.send}")
        for first, second, holds in ((one, other, literal), (other, one, literal.negated())):
            self.model.add(self.start[second.send] >= self._end(first.send)).only_enforce_if(holds)
            for before in first.producers:
                for after in second.producers:
                    constraint = self.model.add(self.start[after] >= self._end(before))
                    constraint.only_enforce_if([holds, *self._presence(before, after)])

    def _memory_stays_within_cap(self) -> None:
        """[C4] Keep the live memory of each stage within its cap: as orders of ops where [D5] applies."""
        if self.graph.caps is None:
            return
        by_stage: dict[int, list[Residence]] = defaultdict(list)
        for residence in self.graph.residences:
            by_stage[residence.stage].append(residence)
        for stage, residences in by_stage.items():
            cap = self.graph.caps[stage]
            # Where all fit at once there is nothing to ask.
            if sum(r.amount for r in residences) <= cap:
                continue
            ordered = self.in_order and "D5" in self.cuts
            releases = Releases.of(self.graph, residences, cap) if ordered else None
            if releases is None:
                self._cumulative(residences, cap)
            else:
                self._release_before_forward(releases)

    def _release_before_forward(self, releases: Releases) -> None:
        """[D5] Let each forward follow the releases that make room for it; of some, one of two is enough."""
        before: dict[tuple[int, int], cp_model.IntVar] = {}
        for n, forward in enumerate(releases.forwards):
            for options in releases.before(n):
                if len(options) == 1:
                    self.model.add(self.start[forward] >= self._end(options[0]))
                    continue
                for op in options:
                    if (op, forward) not in before:
                        before[op, forward] = self._ends_before(op, forward)
                self.model.add_bool_or(before[op, forward] for op in options)

    def _ends_before(self, first: int, second: int) -> cp_model.IntVar:
        """Return a literal that is true where the first of two ops of one stage ends before the second starts."""
        literal = self.model.new_bool_var(f"{first}<{second}")
        self.model.add(self.start[second] >= self._end(first)).only_enforce_if(literal)
        self.model.add(self.start[first] >= self._end(second)).only_enforce_if(literal.negated())
        return literal

    def _cumulative(self, residences: list[Residence], cap: int) -> None:
        lives = [
            self._live(self.start[r.first], self._end(r.last), self._there((r.first, r.last), r.when))
            for r in residences
        ]
        self._within(lives, [r.amount for r in residences], cap)

    def _within(self, lives: Sequence[cp_model.IntervalVar], amounts: Sequence[int], cap: int) -> None:
        unit = gcd(*amounts)
        self.model.add_cumulative(lives, [amount // unit for amount in amounts], cap // unit)

    def _live(
        self, first: cp_model.LinearExprT, last: cp_model.LinearExprT, present: Literal | None
    ) -> cp_model.IntervalVar:
        """Return the interval of memory from one time to another, where ``present``; ``None``: always."""
        size = self.model.new_int_var(0, self.latest_end, "size")
        if present is None:
            return self.model.new_interval_var(first, size, last, "live")
        return self.model.new_optional_interval_var(first, size, last, present, "live")

    def _there(self, tasks: Sequence[int], when: Option | None) -> Literal | None:
        """Return a literal that is true where all of ``tasks`` run and ``when`` is chosen; ``None``: always true."""
        literals = self._presence(*tasks)
        if when is not None:
            choice, option = when
            literals.append(self.option[choice][option])
        by_index = {literal.index: literal for literal in literals}
        if len(by_index) <= 1:
            return next(iter(by_index.values()), None)
        key = tuple(sorted(by_index))
        if key not in self.both:
            self.both[key] = self.model.new_bool_var(f"both{key}")
            self.model.add_bool_and(by_index.values()).only_enforce_if(self.both[key])
            self.model.add_bool_or([self.both[key], *(~literal for literal in by_index.values())])
        return self.both[key]

    def _optimizer_waits_for_gradients(self) -> None:
        """[C5] Let O start after the gradients that its barrier names."""
        for n, join in enumerate(self.graph.joins):
            time = self.model.new_int_var(0, self.latest_end, f"join{n}")
            for i in join.before:
                constraint = self.model.add(time >= self._end(i) + join.lag_ticks)
                if literals := self._presence(i):
                    constraint.only_enforce_if(literals)
            for i in join.after:
                self.model.add(self.start[i] >= time)

    def _equal_policies_in_order(self) -> None:
        """[D9] Number microbatches by their activation policies; run those with equal policies in order."""
        instance = self.graph.instance
        sizes = [len(policies(instance, v)) for v in range(instance.virtual_stages)]
        if prod(sizes) > _MOST_POLICIES:
            return
        weights = [prod(sizes[:v]) for v in range(len(sizes))]
        terms: list[list[cp_model.LinearExprT]] = [[] for _ in range(instance.microbatches)]
        for (v, j, _), choice in self.graph.policy_of.items():
            terms[j] += [literal * (weights[v] * k) for k, literal in enumerate(self.option[choice]) if k]
        number = [cp_model.LinearExpr.sum(of_microbatch) for of_microbatch in terms]
        apart: dict[int, cp_model.IntVar] = {}
        for j, k in (pair for members in instance.classes() for pair in pairwise(members)):
            apart[j] = self.model.new_bool_var(f"apart{j}")
            self.model.add(number[j] == number[k]).only_enforce_if(~apart[j])
            self.model.add(number[j] + 1 <= number[k]).only_enforce_if(apart[j])
        self._microbatches_in_order(apart)

    def _microbatches_in_order(self, apart: Mapping[int, cp_model.IntVar] | None) -> None:
        """[D1] Let each virtual stage run F, R, OUT, IN, gradient ops (B or BW) and W of like microbatches in order.

        Args:
            apart: [D9] For each microbatch, whether the next one like it need not follow it; ``None``: it must.
        """
        alike = {j: k for k, members in enumerate(self.classes) for j in members}
        sequences: dict[tuple[int, str, int], dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
        for i, task in enumerate(self.graph.tasks):
            if task.virtual_stage is None or task.microbatch is None:
                continue
            name = _GRADIENT if task.kind in (Kind.B, Kind.BW) else task.kind.value
            sequences[task.virtual_stage, name, alike[task.microbatch]][task.turn].append(i)
        for by_turn in sequences.values():
            for j, k in pairwise(sorted(by_turn)):
                for before in by_turn[j]:
                    for after in by_turn[k]:
                        self._start_after(before, after, [] if apart is None else [~apart[j[1]]])

    def _start_after(self, before: int, after: int, where: list[Literal]) -> None:
        """[D1] Let one task of a sequence start after another, where both run and all of ``where`` hold."""
        task = self.graph.tasks[before]
        if task.choice is not None and task.kind in _OPTIONAL:
            # The start of such an op that does not run is free, so the chain may pass through it.
            constraint = self.model.add(self.start[after] >= self.start[before])
            literals = where
        else:
            constraint = self.model.add(self.start[after] >= self._end(before))
            literals = [*where, *self._presence(before, after)]
        if literals:
            constraint.only_enforce_if(literals)

    def _objective(self, minimise: bool) -> None:
        """[O1, O2, T6] Keep the objective value within the horizon; minimise it where that is asked."""
        if self.objective_kind is Objective.MAX_STAGE_SPAN:
            value = self._largest_span()
        elif self.objective_kind is Objective.PERIOD:
            value = self._longest_period()
        elif minimise:
            value = self._makespan()
        else:
            return
        self.value = value
        if minimise:
            self.model.minimize(value)

    def _makespan(self) -> cp_model.IntVar:
        """[O1] Return the last end of all; the first start is 0."""
        makespan = self.model.new_int_var(0, self.horizon, "makespan")
        for i, tail in enumerate(self.problem.tails):
            constraint = self.model.add(makespan >= self._end(i) + tail)
            if literals := self._presence(i):
                constraint.only_enforce_if(literals)
        return makespan

    def _largest_span(self) -> cp_model.IntVar:
        """[O2] Return the largest time from a stage's first start to its last end."""
        span = self.model.new_int_var(0, self.horizon, "span")
        for stage, ops in enumerate(self.graph.resources):
            if not ops:
                continue
            first = self.model.new_int_var(0, self.latest_end, f"first{stage}")
            for i in ops:
                if self.graph.tasks[i].kind is Kind.F:
                    self.model.add(first <= self.start[i])
                constraint = self.model.add(span >= self._end(i) - first)
                if literals := self._presence(i):
                    constraint.only_enforce_if(literals)
        return span

    def _longest_period(self) -> cp_model.IntVar:
        """[T6] Return the largest time between the first starts of two consecutive iterations on a stage."""
        period = self.model.new_int_var(0, self.horizon, "period")
        for stage, ops in enumerate(self.graph.resources):
            forwards: dict[int, list[cp_model.IntVar]] = defaultdict(list)
            for i in ops:
                if self.graph.tasks[i].kind is Kind.F:
                    forwards[self.graph.tasks[i].iteration].append(self.start[i])
            firsts = [self.model.new_int_var(0, self.latest_end, f"first{stage}_{n}") for n in range(len(forwards))]
            for first, starts in zip(firsts, forwards.values(), strict=True):
                self.model.add_min_equality(first, starts)
            for before, after in pairwise(firsts):
                self.model.add(period >= after - before)
        return period

    def runs(self, solver: cp_model.CpSolver | cp_model.CpSolverSolutionCallback) -> dict[int, int]:
        """Return the start of each task that runs in the solver's solution, in ticks."""
        return {
            i: solver.value(self.start[i])
            for i in range(len(self.graph.tasks))
            if (literal := self.present[i]) is None or solver.boolean_value(literal)
        }
