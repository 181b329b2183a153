"""Search with CP-SAT for a better schedule and a better bound, until they meet or the budget ends.

Every move is a question: is there a schedule within so many ticks? Of the whole step, of a repeating one, of a
relaxation to a few stages, or in a neighbourhood of the best schedule. They are asked on one thread each, as many side
by side as the budget has workers; what one answers may make another moot. CP-SAT's own workers divide a question
without objective badly (bench/README.md).
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

from zbopt.bounds.crossings import Crossings, StageOrder
from zbopt.bounds.relax import keep_stages, whole
from zbopt.bounds.valley import Valley
from zbopt.cpsat.budget import Budget
from zbopt.cpsat.follow import follow
from zbopt.cpsat.formulation import Formulation, Rules
from zbopt.cpsat.incumbent import Incumbent
from zbopt.cpsat.neighbourhood import Neighbourhoods
from zbopt.cpsat.periodic import PeriodicFormulation, Shape, shape
from zbopt.cpsat.question import Answer, Question, Reply, ask
from zbopt.cpsat.topic import Improving, Topic
from zbopt.engine.request import ParentMessage
from zbopt.graph import Key, TaskGraph
from zbopt.graph.memory import chooses
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Kind, Objective
from zbopt.timing import as_started, best_starts, link_orders, objective_value, stage_orders
from zbopt.timing.repeat import Run, unrolled

_MOST_TASKS = 12_000
"""Tasks of a model that CP-SAT is asked to solve; larger ones take longer to build than they are worth."""

_CROSSINGS_SHARE, _VALLEY_SHARE = 0.4, 0.8
"""Of the time left: layers of states grow no longer, unless the bound has risen lately."""

_LATELY = 3.0
"""A bound that has risen after some time has risen lately until so many times as much is over."""

_LISTEN_S = 0.5
"""How often to look at what layers have proved so far, and at what the caller says."""

_FEW_TASKS = 1000
"""Tasks of a step that is as soon found whole as by way of a shorter one that repeats."""

_NEIGHBOURHOOD_S = 2.0
"""Seconds for one neighbourhood."""

_ROUNDS = 2
"""An order that repeats by itself takes so many fillings of memory to come to it, and to leave it."""

_PARTS = (2, 3, 4, 6, 8, 12, 16)
"""Sizes of the sets of stages that relaxations keep."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A question that is being asked."""

    topic: Topic
    question: Question
    horizon: int
    solver: cp_model.CpSolver
    stopped: Event = field(default_factory=Event)

    def stop(self) -> None:
        """End the call; one whose model is still being built does not begin to solve it."""
        self.stopped.set()
        self.solver.stop_search()


@dataclass
class Search:
    """The state of one search. ``found`` is told each better schedule, ``proved`` each better bound.

    ``value`` and ``bound`` are in ticks; ``starts`` belong to ``value``. ``heard`` gives what the caller says
    meanwhile, who uses ``busy`` of the budget's workers himself.
    """

    graph: TaskGraph
    starts: Mapping[int, int]
    value: int
    bound: Bound
    budget: Budget
    found: Callable[[int, Mapping[int, int]], None]
    proved: Callable[[Bound], None]
    doing: Callable[[str], None]
    heard: Callable[[], Iterable[ParentMessage]] = tuple
    busy: int = 0
    calls: dict[Future[Reply], Call] = field(default_factory=dict)
    growing: dict[Future[bool], Crossings | Valley] = field(default_factory=dict)
    ended: Event = field(default_factory=Event)
    best: Incumbent | None = None

    def run(self) -> None:
        """Search until value and bound meet or the budget ends."""
        topics = self.topics()
        with ThreadPoolExecutor(self.budget.workers) as threads:
            self.start_growing(threads)
            try:
                while not self.over():
                    while self.idle_threads() and self.start_call(topics, threads):
                        pass
                    if not self.calls and not self.growing:
                        return
                    running: list[Future[Any]] = [*self.calls, *self.growing]
                    wait(running, None if self.budget.deterministic else _LISTEN_S, FIRST_COMPLETED)
                    self.listen()
                    for grown in [future for future in self.growing if future.done()]:
                        grown.result()
                        topics[:0] = self.hear_grown(self.growing.pop(grown))
                    for future in [future for future in self.calls if future.done()]:
                        self.hear(self.calls.pop(future), future.result())
                    self.stop_moot_calls()
            finally:
                self.ended.set()
                for call in self.calls.values():
                    call.stop()

    def idle_threads(self) -> int:
        """Threads for further questions; none on a long step while layers grow: they tell what to ask."""
        if self.growing and len(self.graph.tasks) > _MOST_TASKS:
            return 0
        return max(1, self.budget.workers - self.busy) - len(self.calls) - len(self.growing)

    def start_growing(self, threads: ThreadPoolExecutor) -> None:
        """Let layers of states grow beside the first questions, where they say something."""
        if self.over():
            return
        instance = self.graph.instance
        growing = Crossings.of(instance) or Valley.of(instance, self.bound.value, self.value)
        if growing is None:
            return
        self.doing(f"bound from {'crossings' if isinstance(growing, Crossings) else 'the valley'}")
        self.growing[threads.submit(growing.grow, self._stop(growing))] = growing

    def _stop(self, growing: Crossings | Valley) -> Callable[[], bool]:
        """Whether ``growing`` has had its time: a share, and more while it still proves something."""
        all_s, rose_s, known = self.budget.left_s(), 0.0, self.bound.value
        share = _VALLEY_SHARE if isinstance(growing, Valley) else _CROSSINGS_SHARE

        def stop() -> bool:
            nonlocal rose_s, known
            counted_s = growing.expanded / growing.states_a_second if self.budget.deterministic else 0.0
            spent_s = all_s - self.budget.left_s() + counted_s
            if isinstance(growing, Valley) and growing.floor > known:
                rose_s, known = spent_s, growing.floor
            late = spent_s > max(share * all_s, min(all_s, _LATELY * rose_s))
            return self.ended.is_set() or self.over() or late

        return stop

    def listen(self) -> None:
        """Take what layers have proved so far, and what the caller says."""
        if self.budget.deterministic:
            return
        for word in self.heard():
            if word.busy is not None:
                self.busy = word.busy
            if word.value is not None and word.starts is not None and word.value < self.value:
                self.value, self.starts = word.value, word.starts
        for growing in self.growing.values():
            if isinstance(growing, Valley):
                growing.roof = min(growing.roof, self.value)
                self.raise_bound(growing.floor, growing.bound().proved_by)

    def hear_grown(self, growing: Crossings | Valley) -> list[Topic]:
        """Take what the layers prove; what to ask now that their order is known."""
        if self.budget.deterministic:
            self.budget.spent_s += growing.expanded / growing.states_a_second
        bound = growing.bound()
        self.raise_bound(bound.value, bound.proved_by)
        if isinstance(growing, Valley):
            return []
        slice_s = self.slice_s()
        return [Topic([question], slice_s) for question in self.crossing(growing)]

    def over(self) -> bool:
        """Whether nothing is left to do, or no time to do it."""
        return self.bound.value >= self.value or self.budget.spent()

    def topics(self) -> list[Topic]:
        """Relaxations to a few stages, the whole step, and shapes that are found faster than any schedule at all."""
        slice_s = self.slice_s()
        sorts = (self.relaxations(), self.in_microbatch_order(), self.whole_step(), self.repeating())
        topics = [Topic(list(questions), slice_s) for questions in sorts]
        if len(self.graph.tasks) <= _MOST_TASKS:
            drawn = Neighbourhoods(self.budget.seed)
            # A few come first, on one thread: the others may take long before they say anything.
            topics.append(
                Improving(
                    [],
                    _NEIGHBOURHOOD_S,
                    share_s=slice_s,
                    wasted_s=-slice_s / 4,
                    incumbent=self.incumbent,
                    neighbourhoods=drawn,
                )
            )
        return topics

    def incumbent(self) -> Incumbent:
        """The best schedule, with what neighbourhoods need to know of it."""
        if self.best is None or self.best.starts is not self.starts:
            self.best = Incumbent(self.graph, self.starts)
        return self.best

    def slice_s(self) -> float:
        """Seconds of the first call of a topic."""
        return min(15.0, max(2.0, len(self.graph.tasks) / 50))

    def relaxations(self) -> Iterator[Question]:
        """One question a set of stages, from small to large."""
        for stages in stage_sets(self.graph):
            if len(stages) * len(self.graph.tasks) > _MOST_TASKS * self.graph.instance.stages:
                return
            names = "-".join(map(str, stages))

            def formulate(horizon: int, kept: tuple[int, ...] = stages) -> Formulation:
                return Formulation(keep_stages(self.graph, kept), horizon, minimise=False)

            yield Question(f"bound from stages {names}", formulate, None, f"cp-sat:stages-{names}")

    def crossing(self, crossings: Crossings) -> Iterator[Question]:
        """Schedules that keep the order of a best step of the crossings, from ever deeper stages on."""
        of, graph = self.repeating_shape(_ROUNDS), self.graph
        if of is not None and len(graph.tasks) > _FEW_TASKS:
            graph = of.graph
        else:
            of = None
        rows = crossings.orders(graph.instance.microbatches)
        if rows is None or len(graph.tasks) > _MOST_TASKS:
            return
        formulate: Callable[[int], Formulation]
        to_whole: Callable[[dict[int, int]], dict[int, int]]
        if of is None:
            formulate, to_whole = partial(Formulation, whole(graph), minimise=False), _unchanged
        else:
            formulate, to_whole = partial(PeriodicFormulation, of), partial(self.long_starts, of)
        stages = sorted(rows)
        for first in dict.fromkeys((stages[len(stages) > 1], stages[0], stages[len(stages) // 2])):
            kept = {stage: rows[stage] for stage in stages if stage >= first}
            name = f"schedule that crosses alike from stage {first} on"
            yield Question(name, partial(_followed, formulate, kept), to_whole, None)

    def whole_step(self) -> Iterator[Question]:
        """Any schedule, of a step that is not too long."""
        if len(self.graph.tasks) <= _MOST_TASKS:
            problem = whole(self.graph)
            yield Question("schedule", lambda h: Formulation(problem, h, minimise=False), _unchanged, "cp-sat")

    def in_microbatch_order(self) -> Iterator[Question]:
        """A schedule in the one order that [D1] asks for where that is a restriction: it is found much faster."""
        if chooses(self.graph.instance) and len(self.graph.tasks) <= _MOST_TASKS:
            problem, ordered = whole(self.graph), Rules(one_order=True)
            yield Question(
                "schedule in microbatch order",
                lambda h: Formulation(problem, h, minimise=False, rules=ordered),
                _unchanged,
                None,
            )

    def repeating(self) -> Iterator[Question]:
        """A schedule of a long step whose middle repeats."""
        of = self.repeating_shape()
        if of is not None:
            yield Question(
                "repeating schedule",
                lambda horizon: PeriodicFormulation(of, horizon),
                lambda starts: self.long_starts(of, starts),
                None,
            )

    def repeating_shape(self, rounds: int = 1) -> Shape | None:
        """How the step may repeat; ``None``: it does not, or would become no shorter."""
        of = shape(self.graph.instance, rounds) if self.graph.instance.objective is Objective.MAKESPAN else None
        return of if of is not None and of.inserted else None

    def long_starts(self, repeating: Shape, starts: dict[int, int]) -> dict[int, int]:
        """Starts of the whole step from those of a short one that repeats."""
        first = repeating.graph.index[Key(Kind.F, 0, repeating.first)]
        period = starts[repeating.graph.index[Key(Kind.F, 0, repeating.first + repeating.stride)]] - starts[first]
        run = Run(repeating.first, repeating.last, repeating.stride, period)
        return unrolled(repeating.graph, starts, run, self.graph)

    def start_call(self, topics: list[Topic], threads: ThreadPoolExecutor) -> bool:
        """Ask the next question of the topic that has wasted least; whether there was one."""
        running = [call.topic for call in self.calls.values()]
        for topic in sorted(topics, key=lambda topic: topic.waits_behind(running.count(topic))):
            chosen = topic.next(self.bound.value, self.value)
            if chosen is None:
                continue
            question, horizon = chosen
            question.pending.append(horizon)
            self.doing(f"{question.name} within {horizon}")
            call = Call(topic, question, horizon, cp_model.CpSolver())
            way = topic.round + running.count(topic)
            self.calls[threads.submit(self.ask, call, way)] = call
            return True
        return False

    def ask(self, call: Call, way: int) -> Reply:
        """Runs on a thread of its own; the search's state is none of its business."""
        started = time.monotonic()
        formulation = call.question.formulate(call.horizon)
        built_s = time.monotonic() - started
        if call.stopped.is_set():
            return Reply(Answer.OPEN, None, 0, 0.0)
        if self.budget.deterministic:
            built_s = self.budget.charge_build(formulation.model)
        reply = ask(formulation, self.budget, call.topic.slice_s, way, call.solver)
        return replace(reply, cost_s=reply.cost_s + built_s)

    def hear(self, call: Call, reply: Reply) -> None:
        """Take what a call has answered."""
        question, gap = call.question, self.value - self.bound.value
        question.pending.remove(call.horizon)
        call.topic.learn(question, reply)
        call.topic.wasted_s += reply.cost_s
        if reply.starts is not None:
            if question.whole is not None:
                self.take(question.whole(reply.starts))
            question.roof = min(question.roof, call.horizon)
        elif reply.answer is Answer.REFUTED:
            question.floor = max(question.floor, call.horizon + 1)
            if question.proved_by is not None:
                self.raise_bound(call.horizon + 1, question.proved_by)
        elif not question.is_moot(call.horizon, self.bound.value, self.value):
            question.left_open.append(call.horizon)
        if gap > 0:  # else another call that ended meanwhile has closed it
            call.topic.wasted_s *= (self.value - self.bound.value) / gap
        if question.whole is None and question in call.topic.questions:
            call.topic.put_off(self.bound.value, self.value)

    def stop_moot_calls(self) -> None:
        """End the calls whose answer is known by now."""
        for call in self.calls.values():
            if call.question.is_moot(call.horizon, self.bound.value, self.value):
                call.stop()

    def take(self, starts: Mapping[int, int]) -> None:
        """Keep a solution if it is better, after moving its ops as early as its order allows where that may help."""
        value = objective_value(self.graph, starts)
        if value > self.bound.value:
            value, starts = tightened(self.graph, starts)
        if value < self.value:
            self.value, self.starts = value, starts
            self.found(value, starts)

    def raise_bound(self, value: int, proved_by: str) -> None:
        """Keep a bound if it is better."""
        if value > self.bound.value:
            self.bound = Bound(value, proved_by)
            self.proved(self.bound)


def _unchanged(starts: dict[int, int]) -> dict[int, int]:
    """What is found is a step whole already."""
    return starts


def _followed(formulate: Callable[[int], Formulation], rows: Mapping[int, StageOrder], horizon: int) -> Formulation:
    return follow(formulate(horizon), rows)


def tightened(graph: TaskGraph, starts: Mapping[int, int]) -> tuple[int, dict[int, int]]:
    """(objective value, starts) after giving the order of ``starts`` its best times."""
    best = best_starts(as_started(graph, starts), stage_orders(graph, starts), link_orders(graph, starts))
    return objective_value(graph, best), best


def stage_sets(graph: TaskGraph) -> Iterator[tuple[int, ...]]:
    """Sets of stages for the relaxation, from small to large, the whole left out."""
    stages = graph.instance.stages
    ends = tuple(sorted({0, stages - 1}))
    spread = [tuple(sorted({stages * k // parts for k in range(parts)})) for parts in _PARTS]
    halved = [tuple(sorted({stages // 2 * k // parts for k in range(parts)})) for parts in _PARTS]
    # The last stage of a V holds two virtual stages for nearly all of their way; in a row it sees least of all.
    last = [] if graph.instance.is_linear else [(stages - 1,)]
    sets = [(0,), *last, ends, *(chosen for pair in zip(halved, spread, strict=True) for chosen in pair)]
    yield from (chosen for chosen in dict.fromkeys(sets) if len(chosen) < stages)
