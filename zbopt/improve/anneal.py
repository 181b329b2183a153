"""Annealing of the orders of a whole step: windows of time, ever colder, from several schedules at once.

The ends of a step decide what its middle cannot: how many microbatches go down before the first comes back, when W are
put off. Which of these a schedule has, single moves hardly change; so several schedules have turns, the best ones more.
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
from zbopt.heuristics.tools.patience import OutOfTimeError, check
from zbopt.improve.step_ops import Rows, StepOps, Timed
from zbopt.improve.window import Window
from zbopt.problem.instance import COMPUTE, Kind, Objective
from zbopt.problem.schedule import Schedule
from zbopt.timing import best_starts, stage_orders, starts_of

_MOVES = 8_000
"""Moves of a round."""
_HOT, _COLD = (0.013, 0.3), 0.0013
"""Temperatures at the begin of a round, at its end; in loads of one microbatch."""
_WINDOW = (5.0, 18.0)
"""Lengths of a window, in loads of one microbatch."""
_LEAST_OPS = 50
"""Ops of a window; fewer have few orders."""
_CRITICAL, _TRIES = 0.8, 20
"""Share of moves of an op on a longest path, and how often one is looked for."""
_FAR, _FAR_ELSEWHERE = 24, 8
"""Most steps of such a move, and of others."""
_BEHIND = 40
"""Rounds that a schedule has less than the best one, for each load that its value is above."""
_MOVES_A_CHECK = 96


def annealed(schedules: Sequence[Schedule], graph: TaskGraph, seed: int) -> Iterator[Schedule | None]:
    """After each round the schedule that it found, if it is the best of all so far, else ``None``; never ends.

    Args:
        schedules: Where to begin, all of ``graph``'s instance; those that are added later are taken from then on.
        graph: The task graph.
        seed: Of the windows and moves.

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
    search = _Search.of(schedules[0], graph, Random(seed))
    best = search.best()
    while True:
        for schedule in schedules[len(search.starts) :]:
            search.add(schedule)
            best = min(best, search.starts[-1].timed.value)
        found = search.round()
        if found.value < best:
            best = found.value
            yield fitted_schedule("anneal", instance, search.steps(found))
        else:
            yield None


@dataclass(slots=True)
class _Start:
    """A schedule that is annealed: the best that came of it, and the rounds that it had."""

    timed: Timed
    rounds: int = 0


@dataclass
class _Search:
    """``load``, in ticks, is the work of one microbatch on the busiest stage."""

    graph: TaskGraph
    step: StepOps
    starts: list[_Start]
    load: float
    random: Random

    @classmethod
    def of(cls, schedule: Schedule, graph: TaskGraph, random: Random) -> _Search:
        """Annealing of one schedule."""
        rows = _orders(graph, schedule)
        step = StepOps(graph, [i for row in rows for i in row])
        work = max(sum(graph.tasks[i].duration_ticks for i in row) for row in rows)
        search = cls(graph, step, [], work / graph.instance.microbatches, random)
        search.add(schedule)
        return search

    def add(self, schedule: Schedule) -> None:
        """Anneal a further schedule."""
        self.starts.append(_Start(self.timed(self.step.numbered(_orders(self.graph, schedule)))))

    def timed(self, rows: Rows) -> Timed:
        """The times of an order; under the largest span each stage counts from where that is best for this order."""
        if self.graph.instance.objective is not Objective.MAX_STAGE_SPAN:
            return self.step.timed(rows)
        steps = [self.graph.index.get(Key(Kind.O, stage, None)) for stage in range(len(rows))]
        orders = [[self.step.tasks[i] for i in row] for row in rows]
        starts = best_starts(
            self.graph, [row if o is None else [*row, o] for row, o in zip(orders, steps, strict=True)]
        )
        return self.step.timed(rows, [starts[self.step.tasks[row[0]]] if row else 0 for row in rows])

    def best(self) -> int:
        """The least value of all."""
        return min(start.timed.value for start in self.starts)

    def steps(self, timed: Timed) -> list[list[OrderedOp]]:
        """The ops of each stage."""
        ops = [[self.graph.tasks[self.step.tasks[i]] for i in row] for row in timed.rows]
        return [[(task.kind, task.virtual_stage or 0, task.microbatch or 0) for task in row] for row in ops]

    def round(self) -> Timed:
        """Anneal a window of the schedule whose turn it is; what became of that."""
        best = self.best()
        start = min(self.starts, key=lambda start: start.rounds + _BEHIND * (start.timed.value - best) / self.load)
        start.rounds += 1
        window = self.window(start.timed)
        with suppress(OutOfTimeError):
            rows = self.anneal(window)
            start.timed = self.timed(window.whole(start.timed, rows))
        return start.timed

    def window(self, timed: Timed) -> Window:
        """Some time of a schedule, long enough for several orders."""
        random, length = self.random, self.random.uniform(*_WINDOW) * self.load
        while True:
            first = random.uniform(-length, timed.end)
            window = Window(self.step, timed, first, first + length)
            if window.count >= min(_LEAST_OPS, len(timed.head)):
                return window
            length *= 1.5

    def anneal(self, window: Window) -> Rows:
        """Move ops of the window; the last orders if they are as good as the best on the way, else those."""
        random = self.random
        best, rows = window.end, window.rows()
        hot, cold = _HOT[0] * (_HOT[1] / _HOT[0]) ** random.random() * self.load, _COLD * self.load
        for n in range(_MOVES):
            if n % _MOVES_A_CHECK == 0:
                check()
            heat = hot * (cold / hot) ** (n / _MOVES)
            limit = window.end - int(heat * log(1 - random.random()))
            if window.try_move(*self.draw(window), limit) and window.end < best:
                best, rows = window.end, window.rows()
        return window.rows() if window.end <= best else rows

    def draw(self, window: Window) -> tuple[int, int]:
        """An op, and how far to move it."""
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
    """The ops of microbatches on each stage, in order."""
    ops = {i: at for i, at in starts_of(graph, schedule).items() if graph.tasks[i].kind in COMPUTE - {Kind.O}}
    return stage_orders(graph, ops)
