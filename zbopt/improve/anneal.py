"""Simulated annealing of the orders of a whole step, in windows of time, from several schedules in turn.

The ends of a step decide what its middle cannot: how many microbatches go down before the first comes back, and when W
are put off. Single moves hardly change which of these a schedule has. So several schedules are annealed in turn, the
best ones more often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log
from random import Random

from zbopt.graph import Key, TaskGraph
from zbopt.heuristics.tools.build import (
    NotApplicableError,
    OrderedOp,
    fitted_schedule,
    require_plain_step,
)
from zbopt.heuristics.tools.patience import OutOfTimeError, check_time
from zbopt.improve.order_window import OrderWindow
from zbopt.improve.step_ops import StageOrders, StepOps, Timed
from zbopt.problem.instance import COMPUTE, Kind, Objective
from zbopt.problem.schedule import Schedule
from zbopt.timing import best_starts, stage_orders, starts_of

_MOVES = 8_000
"""Moves of a round: fewer, and a round ends before it has cooled; more, and other schedules wait. Not measured."""
_HOT, _COLD = (0.013, 0.3), 0.0013
"""Temperatures at the beginning of a round, drawn between these two, and at its end; in loads of one microbatch.
bench/README.md, "Windows of the whole step", measured temperatures at the beginning."""
_WINDOW = (5.0, 18.0)
"""Lengths of a window, in loads of one microbatch. bench/README.md, "Windows of the whole step", has half and twice."""
_LEAST_OPS = 50
"""Least ops of a window: fewer have few orders. Not measured."""
_CRITICAL, _TRIES = 0.8, 20
"""Share of moves that move an op on a longest path, and how often such an op is looked for. Other moves shorten
nothing at once, but some have to come first. Not measured."""
_FAR, _FAR_ELSEWHERE = 24, 8
"""Most steps of such a move, and of other moves. Not measured."""
_BEHIND = 40
"""Rounds that a schedule has less than the best one, for each load that its value is above the best. Not measured."""
_MOVES_A_CHECK = 96
"""Moves between two questions whether time is over: a few milliseconds."""


def annealed(schedules: Sequence[Schedule], graph: TaskGraph, seed: int) -> Iterator[Schedule | None]:
    """Yield after each round its schedule if that is the best of all so far, else ``None``, without end.

    Args:
        schedules: Where to begin, all of ``graph``'s instance; those that are added later are annealed from then on.
        graph: The task graph.
        seed: Seed of the windows and moves.

    Raises:
        NotApplicableError: The objective is the period, more than the ops of one step has to be placed, activations
            are dropped, or a backward may be one op or two.
    """
    instance = graph.instance
    require_plain_step("anneal", instance)
    if instance.objective is Objective.PERIOD or graph.choices:
        raise NotApplicableError(
            "anneal: it shortens one step of ops that are given; take makespan or span, and B and W or BW alone"
        )
    annealing = _Annealing.of(schedules[0], graph, Random(seed))
    best = annealing.best()
    while True:
        for schedule in schedules[len(annealing.starts) :]:
            annealing.add(schedule)
            best = min(best, annealing.starts[-1].timed.value)
        found = annealing.round()
        if found.value < best:
            best = found.value
            yield fitted_schedule("anneal", instance, annealing.ordered_ops(found))
        else:
            yield None


@dataclass(slots=True)
class _Start:
    """Hold a schedule that is annealed: the best that came of it, and the rounds that it had."""

    timed: Timed
    rounds: int = 0


@dataclass
class _Annealing:
    """Anneal several schedules of a step.

    ``load`` is the work of one microbatch on the busiest stage, in ticks.
    """

    graph: TaskGraph
    step: StepOps
    starts: list[_Start]
    load: float
    random: Random

    @classmethod
    def of(cls, schedule: Schedule, graph: TaskGraph, random: Random) -> _Annealing:
        """Return the annealing of one schedule."""
        orders = _orders(graph, schedule)
        step = StepOps(graph, [i for order in orders for i in order])
        work = max(sum(graph.tasks[i].duration_ticks for i in order) for order in orders)
        annealing = cls(graph, step, [], work / graph.instance.microbatches, random)
        annealing.add(schedule)
        return annealing

    def add(self, schedule: Schedule) -> None:
        """Anneal a further schedule."""
        self.starts.append(_Start(self.timed(self.step.numbered(_orders(self.graph, schedule)))))

    def timed(self, orders: StageOrders) -> Timed:
        """Return the times of orders; under the largest span each stage counts from where that is best for them."""
        if self.graph.instance.objective is not Objective.MAX_STAGE_SPAN:
            return self.step.timed(orders)
        steps = [self.graph.index.get(Key(Kind.O, stage, None)) for stage in range(len(orders))]
        tasks = [[self.step.tasks[i] for i in order] for order in orders]
        starts = best_starts(
            self.graph, [order if o is None else [*order, o] for order, o in zip(tasks, steps, strict=True)]
        )
        return self.step.timed(orders, [starts[self.step.tasks[order[0]]] if order else 0 for order in orders])

    def best(self) -> int:
        """Return the least value of all schedules."""
        return min(start.timed.value for start in self.starts)

    def ordered_ops(self, timed: Timed) -> list[list[OrderedOp]]:
        """Return the ops of each stage in order."""
        orders = [[self.graph.tasks[self.step.tasks[i]] for i in order] for order in timed.orders]
        return [[(task.kind, task.virtual_stage or 0, task.microbatch or 0) for task in order] for order in orders]

    def round(self) -> Timed:
        """Anneal a window of the schedule whose turn it is, and return what became of that schedule."""
        best = self.best()
        start = min(self.starts, key=lambda start: start.rounds + _BEHIND * (start.timed.value - best) / self.load)
        start.rounds += 1
        window = self.window(start.timed)
        with suppress(OutOfTimeError):
            start.timed = self.timed(window.whole(start.timed, self.anneal(window)))
        return start.timed

    def window(self, timed: Timed) -> OrderWindow:
        """Draw a window of a schedule that is long enough for several orders."""
        random, length = self.random, self.random.uniform(*_WINDOW) * self.load
        while True:
            first = random.uniform(-length, timed.end)
            window = OrderWindow(self.step, timed, first, first + length)
            if window.count >= min(_LEAST_OPS, len(timed.head)):
                return window
            length *= 1.5

    def anneal(self, window: OrderWindow) -> StageOrders:
        """Move ops of the window, and return its last orders if none before were better, else the best."""
        random = self.random
        best, orders = window.end, window.orders()
        hot, cold = _HOT[0] * (_HOT[1] / _HOT[0]) ** random.random() * self.load, _COLD * self.load
        for n in range(_MOVES):
            if n % _MOVES_A_CHECK == 0:
                check_time()
            heat = hot * (cold / hot) ** (n / _MOVES)
            limit = window.end - int(heat * log(1 - random.random()))
            if window.try_move(*self.draw(window), limit) and window.end < best:
                best, orders = window.end, window.orders()
        return window.orders() if window.end <= best else orders

    def draw(self, window: OrderWindow) -> tuple[int, int]:
        """Draw an op, and how many steps to move it."""
        draw, count = self.random.random, window.count
        if draw() < _CRITICAL:
            for _ in range(_TRIES):
                op = int(draw() * count)
                if window.is_critical(op):
                    steps = 1
                    while steps < _FAR and draw() < 0.5:
                        steps += 1
                    return (window.before[op], steps) if draw() < 0.5 else (op, -steps)
        steps = 1 + int(draw() * _FAR_ELSEWHERE)
        return int(draw() * count), steps if draw() < 0.5 else -steps


def _orders(graph: TaskGraph, schedule: Schedule) -> list[list[int]]:
    """Return the ops of microbatches on each stage, in order."""
    ops = {i: at for i, at in starts_of(graph, schedule).items() if graph.tasks[i].kind in COMPUTE - {Kind.O}}
    return stage_orders(graph, ops)
