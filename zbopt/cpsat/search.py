"""Search with CP-SAT for a better schedule and a better bound, until they meet or the budget ends.

Every move is a question: is there a schedule within so many ticks? Of the whole step, of a repeating one, of a
relaxation to a few stages, or in a neighbourhood of the best schedule. Questions are asked on one thread each, as many
side by side as the budget has workers; what one answers may make another moot. CP-SAT's own workers divide a question
without objective badly (bench/README.md, "Questions without objective").

The thread of ``CpSatSearch.run`` alone changes the search's state. A call on another thread hands over its reply, and a
bound that grows there what it has proved, by a future or a queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from typing import Any

from ortools.sat.python import cp_model

from zbopt.bounds.growing import GrowingBound, StageOrder, growing_bound
from zbopt.bounds.relax import keep_stages, may_relax, whole
from zbopt.cpsat.budget import Budget
from zbopt.cpsat.cuts import cuts_of
from zbopt.cpsat.fixed_orders import with_orders
from zbopt.cpsat.formulation import Formulation, Rules
from zbopt.cpsat.growth import Growth
from zbopt.cpsat.known_schedule import KnownSchedule
from zbopt.cpsat.neighbourhood import Neighbourhoods
from zbopt.cpsat.periodic import PeriodicFormulation, Shape, repeating_shape
from zbopt.cpsat.question import Answer, Question, Reply, ask
from zbopt.cpsat.strategy import NeighbourhoodStrategy, Strategy
from zbopt.engine.request import ParentMessage
from zbopt.graph import Key, TaskGraph
from zbopt.graph.memory import chooses
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Kind, Objective
from zbopt.timing import as_started, best_starts, link_orders, objective_value, stage_orders
from zbopt.timing.repeat import RepeatingRun, unrolled

_MOST_TASKS = 12_000
"""Tasks of a model that CP-SAT is asked to solve; larger ones take longer to build than they are worth.

Not measured; chosen.
"""

_LISTEN_S = 0.5
"""Seconds between two looks at what growing bounds have proved, and at what the caller says.

Less wakes the thread more often for nothing; more lets calls run on whose answer is known. Not measured; chosen.
"""

_FEW_TASKS = 1000
"""Tasks of a step that is found as soon whole as by way of a shorter one that repeats. Not measured; chosen."""

_NEIGHBOURHOOD_S = 2.0
"""Seconds for one neighbourhood: more goes deeper into one, less tries more of them. Not measured; chosen."""

_CROSSINGS_FILLINGS = 2
"""How often memory is filled before an order of the crossings repeats, and after: it takes so long to come to repeat.

More make the short step longer. Not measured; chosen. What the crossings prove: bench/README.md, "Little memory".
"""

_STAGE_COUNTS = (2, 3, 4, 6, 8, 12, 16)
"""Sizes of the sets of stages that relaxations keep; larger ones prove more and take longer. Not measured; chosen."""

_SLICE_S = (2.0, 15.0)
"""Least and most seconds of a strategy's first calls; between, a second for ``_TASKS_PER_S`` tasks.

A short slice leaves more questions open, a long one is wasted where a question is too hard. Not measured; chosen.
"""
_TASKS_PER_S = 50


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Represent a question that is being asked on a thread of its own."""

    strategy: Strategy
    question: Question
    horizon: int
    solver: cp_model.CpSolver
    stopped: Event = field(default_factory=Event)

    def stop(self) -> None:
        """End the call; one whose model is still being built does not begin to solve it."""
        self.stopped.set()
        self.solver.stop_search()


@dataclass
class CpSatSearch:
    """Search for a better schedule and a better bound, and hold the best ones.

    Attributes:
        graph: The task graph of the whole step.
        starts: Starts of the best schedule, in ticks, by task.
        value: Its objective value, in ticks.
        bound: The best bound, in ticks.
        budget: What may be spent.
        on_schedule: Called with the value and the starts of each better schedule.
        on_bound: Called with each better bound.
        on_activity: Called with what the search does now, in words.
        messages: Returns what the caller has said since it was last called.
        busy: How many of the budget's workers the caller uses itself.
        ticks: Ticks of the caller in one tick of the graph; only what is said in words counts in the caller's.
        calls: The questions that are being asked.
        growths: The bounds that are growing.
    """

    graph: TaskGraph
    starts: Mapping[int, int]
    value: int
    bound: Bound
    budget: Budget
    on_schedule: Callable[[int, Mapping[int, int]], None]
    on_bound: Callable[[Bound], None]
    on_activity: Callable[[str], None]
    messages: Callable[[], Iterable[ParentMessage]] = tuple
    busy: int = 0
    ticks: int = 1
    calls: dict[Future[Reply], Call] = field(default_factory=dict)
    growths: dict[Future[Bound], Growth] = field(default_factory=dict)
    _known: KnownSchedule | None = None

    def run(self) -> None:
        """Search until value and bound meet or the budget ends."""
        strategies = self.strategies()
        with ThreadPoolExecutor(self.budget.workers) as threads:
            self.start_growth(threads)
            try:
                while not self.over():
                    while self.idle_threads() and self.start_call(strategies, threads):
                        pass
                    if not self.calls and not self.growths:
                        return
                    self.wait()
                    self.receive_messages()
                    self.receive_bounds()
                    strategies[:0] = self.receive_grown()
                    self.receive_replies()
                    self.stop_moot_calls()
            finally:
                for growth in self.growths.values():
                    growth.stop()
                for call in self.calls.values():
                    call.stop()

    def over(self) -> bool:
        """Return whether nothing is left to do, or no time to do it."""
        return self.bound.value >= self.value or self.budget.spent()

    def idle_threads(self) -> int:
        """Return how many further questions may be asked; none on a long step while a bound grows that tells which."""
        if self.growths and len(self.graph.tasks) > _MOST_TASKS:
            return 0
        return max(1, self.budget.workers - self.busy) - len(self.calls) - len(self.growths)

    def wait(self) -> None:
        """Wait for an answer; by the clock no longer than until the next look at messages and growing bounds."""
        running: list[Future[Any]] = [*self.calls, *self.growths]
        wait(running, None if self.budget.deterministic else _LISTEN_S, FIRST_COMPLETED)

    def start_growth(self, threads: ThreadPoolExecutor) -> None:
        """Let a bound grow beside the first questions, where one applies."""
        if self.over():
            return
        growing = growing_bound(self.graph.instance, self.bound.value, self.value)
        if growing is not None:
            self.on_activity(f"proving a bound by {growing.title}")
            growth = Growth(growing, self.budget, self.bound.value)
            self.growths[threads.submit(growth.run)] = growth

    def receive_messages(self) -> None:
        """Take a better schedule, and the number of workers in use, from the caller; by the clock only."""
        if self.budget.deterministic:
            return
        for message in self.messages():
            if message.busy is not None:
                self.busy = message.busy
            if message.value is not None and message.starts is not None and message.value < self.value:
                self.keep(message.value, message.starts)

    def receive_bounds(self) -> None:
        """Take what growing bounds have proved so far; by the clock only."""
        if not self.budget.deterministic:
            for growth in self.growths.values():
                for bound in growth.bounds():
                    self.raise_bound(bound)

    def receive_grown(self) -> list[Strategy]:
        """Take the bounds that have done growing, and return what to ask now that their orders are known."""
        strategies = []
        for future in [future for future in self.growths if future.done()]:
            growing = self.growths.pop(future).growing
            if self.budget.deterministic:
                self.budget.spent_s += growing.cost_s
            self.raise_bound(future.result())
            strategies += [Strategy([question], self.slice_s()) for question in self.along_orders(growing)]
        return strategies

    def receive_replies(self) -> None:
        """Take what the calls that have ended have answered."""
        for future in [future for future in self.calls if future.done()]:
            self.receive(self.calls.pop(future), future.result())

    def strategies(self) -> list[Strategy]:
        """Return the strategies of the search.

        They are relaxations to a few stages, the whole step, shapes in which a schedule is found faster, and
        neighbourhoods of the best schedule.
        """
        slice_s = self.slice_s()
        sorts = (self.relaxations(), self.in_microbatch_order(), self.whole_step(), self.repeating())
        strategies = [Strategy(list(questions), slice_s) for questions in sorts]
        if len(self.graph.tasks) <= _MOST_TASKS and "D10" in cuts_of(self.graph.instance):
            strategies.append(
                NeighbourhoodStrategy(
                    [],
                    _NEIGHBOURHOOD_S,
                    share_s=slice_s,
                    # A few come first, on one thread: the others may take long before they say anything.
                    wasted_s=-slice_s / 4,
                    schedule=self.known_schedule,
                    neighbourhoods=Neighbourhoods(self.budget.seed),
                )
            )
        return strategies

    def known_schedule(self) -> KnownSchedule:
        """Return the best schedule with what neighbourhoods ask of it."""
        if self._known is None or self._known.starts is not self.starts:
            self._known = KnownSchedule(self.graph, self.starts)
        return self._known

    def slice_s(self) -> float:
        """Return the seconds of the first call of a strategy."""
        least, most = _SLICE_S
        return min(most, max(least, len(self.graph.tasks) / _TASKS_PER_S))

    def relaxations(self) -> Iterator[Question]:
        """Yield one question for each set of stages, from small to large; none where a relaxation is no bound."""
        if not may_relax(self.graph.instance):
            return
        for stages in stage_sets(self.graph):
            if len(stages) * len(self.graph.tasks) > _MOST_TASKS * self.graph.instance.stages:
                return
            names = list(map(str, stages))

            def formulate(horizon: int, stages: tuple[int, ...] = stages) -> Formulation:
                return Formulation(keep_stages(self.graph, stages), horizon, minimise=False)

            activity = f"proving a bound from stage{'s' * (len(stages) > 1)} {', '.join(names)}"
            yield Question(activity, formulate, None, f"cp-sat:stages-{'-'.join(names)}")

    def along_orders(self, growing: GrowingBound) -> Iterator[Question]:
        """Yield questions for schedules that keep the orders of a grown bound, from ever deeper stages on."""
        shape, graph = self.shape(_CROSSINGS_FILLINGS), self.graph
        if shape is not None and len(graph.tasks) > _FEW_TASKS:
            graph = shape.graph
        else:
            shape = None
        orders = growing.orders(graph.instance.microbatches)
        if orders is None or len(graph.tasks) > _MOST_TASKS:
            return
        formulate: Callable[[int], Formulation]
        to_whole: Callable[[dict[int, int]], dict[int, int]]
        if shape is None:
            formulate, to_whole = partial(Formulation, whole(graph), minimise=False), _unchanged
        else:
            formulate, to_whole = partial(PeriodicFormulation, shape), partial(self.long_starts, shape)
        stages = sorted(orders)
        for first in dict.fromkeys((stages[len(stages) > 1], stages[0], stages[len(stages) // 2])):
            deeper = {stage: orders[stage] for stage in stages if stage >= first}
            activity = f"looking for a schedule with the order of {growing.title} from stage {first} on"
            yield Question(activity, partial(_with_orders, formulate, deeper), to_whole, None)

    def whole_step(self) -> Iterator[Question]:
        """Yield the question for any schedule, of a step that is not too long."""
        if len(self.graph.tasks) <= _MOST_TASKS:
            problem = whole(self.graph)
            yield Question(
                "looking for a schedule",
                lambda horizon: Formulation(problem, horizon, minimise=False),
                _unchanged,
                "cp-sat",
            )

    def in_microbatch_order(self) -> Iterator[Question]:
        """Yield the question for a schedule in the one order of [D1] where that restricts: one is found much faster."""
        instance = self.graph.instance
        if chooses(instance) and "D1" in cuts_of(instance) and len(self.graph.tasks) <= _MOST_TASKS:
            problem, ordered = whole(self.graph), Rules(one_order=True)
            yield Question(
                "looking for a schedule in microbatch order",
                lambda horizon: Formulation(problem, horizon, minimise=False, rules=ordered),
                _unchanged,
                None,
            )

    def repeating(self) -> Iterator[Question]:
        """Yield the question for a schedule of a long step whose middle repeats."""
        shape = self.shape()
        if shape is not None:
            yield Question(
                "looking for a schedule whose middle repeats",
                partial(PeriodicFormulation, shape),
                partial(self.long_starts, shape),
                None,
            )

    def shape(self, fillings: int = 1) -> Shape | None:
        """Return how the step may repeat; ``None``: it does not, or would become no shorter."""
        instance = self.graph.instance
        shape = repeating_shape(instance, fillings) if instance.objective is Objective.MAKESPAN else None
        return shape if shape is not None and shape.inserted else None

    def long_starts(self, shape: Shape, starts: dict[int, int]) -> dict[int, int]:
        """Return starts of the whole step from those of a short one that repeats."""
        first = shape.graph.index[Key(Kind.F, 0, shape.first)]
        period = starts[shape.graph.index[Key(Kind.F, 0, shape.first + shape.stride)]] - starts[first]
        run = RepeatingRun(shape.first, shape.last, shape.stride, period)
        return unrolled(shape.graph, starts, run, self.graph)

    def start_call(self, strategies: list[Strategy], threads: ThreadPoolExecutor) -> bool:
        """Ask the next question of the strategy that has wasted least, and return whether there was one."""
        running = [call.strategy for call in self.calls.values()]
        for strategy in sorted(strategies, key=lambda strategy: strategy.charged_s(running.count(strategy))):
            chosen = strategy.next(self.bound.value, self.value)
            if chosen is None:
                continue
            question, horizon = chosen
            question.pending.append(horizon)
            self.on_activity(f"{question.name}; target {horizon * self.ticks:,} ticks")
            call = Call(strategy, question, horizon, cp_model.CpSolver())
            variant = strategy.round + running.count(strategy)
            self.calls[threads.submit(_answer, call, self.budget, strategy.slice_s, variant)] = call
            return True
        return False

    def receive(self, call: Call, reply: Reply) -> None:
        """Take what one call has answered."""
        question, gap = call.question, self.value - self.bound.value
        question.pending.remove(call.horizon)
        self.budget.charge(reply.cost_s)
        call.strategy.learn(question, reply)
        call.strategy.wasted_s += reply.cost_s
        if reply.starts is not None:
            if question.whole is not None:
                self.take(question.whole(reply.starts))
            question.roof = min(question.roof, call.horizon)
        elif reply.answer is Answer.REFUTED:
            question.floor = max(question.floor, call.horizon + 1)
            if question.proved_by is not None:
                self.raise_bound(Bound(call.horizon + 1, question.proved_by))
        elif not question.is_moot(call.horizon, self.bound.value, self.value):
            question.left_open.append(call.horizon)
        if gap > 0:  # else another call that ended meanwhile has closed it
            call.strategy.wasted_s *= (self.value - self.bound.value) / gap
        if question.whole is None and question in call.strategy.questions:
            call.strategy.postpone(self.bound.value, self.value)

    def stop_moot_calls(self) -> None:
        """End the calls whose answers are known by now."""
        for call in self.calls.values():
            if call.question.is_moot(call.horizon, self.bound.value, self.value):
                call.stop()

    def take(self, starts: Mapping[int, int]) -> None:
        """Keep a solution if it is better, after moving its ops as early as its order allows where that may help."""
        value = objective_value(self.graph, starts)
        if value > self.bound.value:
            value, starts = tightened(self.graph, starts)
        if value < self.value:
            self.keep(value, starts)
            self.on_schedule(value, starts)

    def keep(self, value: int, starts: Mapping[int, int]) -> None:
        """Make a schedule the best one."""
        self.value, self.starts = value, starts
        for growth in self.growths.values():
            growth.send_value(value)

    def raise_bound(self, bound: Bound) -> None:
        """Keep a bound if it is better."""
        if bound.value > self.bound.value:
            self.bound = bound
            self.on_bound(bound)


def _answer(call: Call, budget: Budget, slice_s: float, variant: int) -> Reply:
    """Build and solve the model of a call, on a thread of its own; it reads the budget and changes nothing."""
    started = time.monotonic()
    formulation = call.question.formulate(call.horizon)
    built_s = budget.build_s(formulation.model) if budget.deterministic else time.monotonic() - started
    if call.stopped.is_set():
        return Reply(Answer.OPEN, None, 0, 0.0)
    counted_s = built_s if budget.deterministic else 0.0  # by the clock, that time is gone already
    reply = ask(formulation, budget, slice_s, variant, call.solver, counted_s)
    return replace(reply, cost_s=reply.cost_s + built_s)


def _unchanged(starts: dict[int, int]) -> dict[int, int]:
    """Return ``starts``: those of a solution are of the whole step already."""
    return starts


def _with_orders(
    formulate: Callable[[int], Formulation], orders: Mapping[int, StageOrder], horizon: int
) -> Formulation:
    return with_orders(formulate(horizon), orders)


def tightened(graph: TaskGraph, starts: Mapping[int, int]) -> tuple[int, dict[int, int]]:
    """Return (objective value, starts) after giving the order of ``starts`` its best times [D7]."""
    best = best_starts(as_started(graph, starts), stage_orders(graph, starts), link_orders(graph, starts))
    return objective_value(graph, best), best


def stage_sets(graph: TaskGraph) -> Iterator[tuple[int, ...]]:
    """Yield sets of stages for the relaxation, from small to large; the set of all stages is left out."""
    stages = graph.instance.stages
    ends = tuple(sorted({0, stages - 1}))
    spread = [tuple(sorted({stages * k // count for k in range(count)})) for count in _STAGE_COUNTS]
    halved = [tuple(sorted({stages // 2 * k // count for k in range(count)})) for count in _STAGE_COUNTS]
    # The last stage of a V holds two virtual stages for nearly all of their way; in a linear pipeline it sees least.
    last = [] if graph.instance.is_linear else [(stages - 1,)]
    sets = [(0,), *last, ends, *(chosen for pair in zip(halved, spread, strict=True) for chosen in pair)]
    yield from (chosen for chosen in dict.fromkeys(sets) if len(chosen) < stages)
