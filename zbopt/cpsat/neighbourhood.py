"""Neighbourhoods of a schedule: CP-SAT looks for a better one that keeps the order of all but some tasks.

Which tasks may move is drawn anew each time: those of a span of time, of a few microbatches, of a few stages, or the
W, R, OUT and IN of a few stages, which may be put off. How many may move is learned: more where the last neighbourhood
was answered early, fewer where it was not answered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from ortools.sat.python import cp_model

from zbopt.cpsat.formulation import Formulation, Rules
from zbopt.cpsat.known_schedule import KnownSchedule
from zbopt.cpsat.window import OutsideMemory, ScheduleWindow
from zbopt.graph import Sent
from zbopt.problem.instance import Kind, Objective

_DEFERRABLE = (Kind.W, Kind.R, Kind.OUT, Kind.IN)

_MOST_STAGES = 3
"""Stages of a neighbourhood: more have too many orders for the time of one. Not measured; chosen."""

_FIRST_FREE, _LEAST_FREE = 100, 20
"""Tasks that may move in the first neighbourhood of a sort, and in the smallest one.

Fewer are answered sooner and improve less often. Not measured; chosen, and corrected by what is learned.
"""

_GROW, _SHRINK = 1.25, 0.8
"""By how much the next neighbourhood is larger after an early answer, and smaller after none. Not measured; chosen."""

_MOST_TASKS = 2_000
"""Tasks of a model; more take longer to build than to solve. Not measured; chosen."""


class Neighbourhood(Formulation):
    """Ask for the best schedule within ``horizon`` ticks in which all but the free tasks of a window keep their order.

    Args:
        window: What may change.
        horizon: Largest objective value allowed, in ticks.
        bound: Least value that is worth looking for: no schedule is below it.
    """

    def __init__(self, window: ScheduleWindow, horizon: int, bound: int) -> None:
        self.window = window
        rules = Rules(one_order=True) if window.of.in_microbatch_order else Rules(without=frozenset({"D1", "D9"}))
        super().__init__(window.problem, horizon, minimise=True, rules=rules)
        assert self.value is not None, "it minimises"
        self.model.add(self.value >= max(bound, window.longest_bypass))
        self._others_keep_order()
        self._transfers_keep_order()

    def _others_keep_order(self) -> None:
        """[D10] Keep the order of tasks that are not free on each stage and link."""
        of, number = self.window.of, self.window.number
        for order in of.orders:
            for before, after in pairwise(number[i] for i in order if self._stays(i)):
                self.model.add(self.start[after] >= self._end(before))
        for uses in of.links:
            for one, other in pairwise(use for use in uses if self._stays(use.task)):
                ends = self.start[number[one.task]] + one.offset_ticks + one.ticks
                self.model.add(self.start[number[other.task]] + other.offset_ticks >= ends)

    def _stays(self, task: int) -> bool:
        return task in self.window.number and not self.window.moves(task)

    def _transfers_keep_order(self) -> None:
        """[T2] Keep the order of transfers that are on another side of the window's edge than what produces them."""
        for channel in self.window.of.graph.channels:
            by_sides: dict[tuple[int, int], list[Sent]] = defaultdict(list)
            for sent in sorted(channel.sent, key=lambda s: self.window.of.starts[s.send]):
                by_sides[self._sides(sent)].append(sent)
            produced, inner, to_send = by_sides[-1, 0], by_sides[0, 0], by_sides[0, 1]
            for one, other in (*pairwise(produced), *((produced[-1], s) for s in inner if produced)):
                self._keep_order((one.send,), (other.send,))
            for one, other in (*pairwise(to_send), *((s, to_send[0]) for s in inner if to_send)):
                self._keep_order(one.producers, other.producers)

    def _sides(self, sent: Sent) -> tuple[int, int]:
        """Return on which sides of the window the content of a transfer is produced and sent."""
        sides = self.window.sides
        return next(sides[i] for i in sent.producers if i in sides), sides[sent.send]

    def _keep_order(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Let all of ``after`` that are in the window start after all of ``before`` that are."""
        number = self.window.number
        for one in (number[i] for i in before if i in number):
            for other in (number[i] for i in after if i in number):
                constraint = self.model.add(self.start[other] >= self._end(one))
                if literals := self._presence(one, other):
                    constraint.only_enforce_if(literals)

    def _memory_stays_within_cap(self) -> None:
        """[C4] Keep live memory within its cap in the window, together with what tasks outside it hold."""
        if self.graph.caps is None:
            return
        lives: dict[int, list[tuple[cp_model.IntervalVar, int]]] = defaultdict(list)
        caps = list(self.graph.caps)
        for r in self.graph.residences:
            there = self._there((r.first, r.last), r.when)
            lives[r.stage].append((self._live(self.start[r.first], self._end(r.last), there), r.amount))
        begins = self._begins()
        for memory in self.window.outside_memory:
            always = memory.first is None and memory.last is None and memory.until is None
            if always and memory.since <= begins[memory.stage]:
                caps[memory.stage] -= memory.amount
            elif memory.until is None or memory.until > begins[memory.stage]:
                lives[memory.stage].append((self._live_beyond(memory), memory.amount))
        for stage, of_stage in lives.items():
            if sum(amount for _, amount in of_stage) > caps[stage]:
                self._within([live for live, _ in of_stage], [amount for _, amount in of_stage], caps[stage])

    def _begins(self) -> list[int]:
        """Return by stage the least start of its tasks in the window."""
        begins = [self.latest_end] * self.graph.instance.stages
        for task, head in zip(self.graph.tasks, self.problem.heads, strict=True):
            begins[task.stage] = min(begins[task.stage], head)
        return begins

    def _live_beyond(self, memory: OutsideMemory) -> cp_model.IntervalVar:
        """Return the interval of memory that a task outside the window takes or gives back."""
        tasks = tuple(i for i in (memory.first, memory.last) if i is not None)
        first = memory.since if memory.first is None else self.start[memory.first]
        until = self.latest_end if memory.until is None else memory.until
        last = until if memory.last is None else self._end(memory.last)
        return self._live(first, last, self._there(tasks, memory.when))


@dataclass
class Neighbourhoods:
    """Draw windows, and learn how large they should be.

    Attributes:
        seed: Of all random choices.
        sizes: For each sort of neighbourhood, how many tasks the next one lets move.
    """

    seed: int
    sizes: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.sorts: dict[str, Callable[[KnownSchedule, int], ScheduleWindow]] = {
            "a span of time": self._span_of_time,
            "a few microbatches": self._few_microbatches,
            "a few stages": self._few_stages,
            "ops that may be put off": self._deferrable_ops,
        }
        self.sizes = dict.fromkeys(self.sorts, float(_FIRST_FREE))

    def draw(self, schedule: KnownSchedule) -> tuple[str, ScheduleWindow]:
        """Return a sort of neighbourhood, and a window of that sort."""
        sort = self.random.choice(list(self.sorts))
        return sort, self.sorts[sort](schedule, int(self.sizes[sort]))

    def learn(self, sort: str, most: int, *, answered: bool, early: bool) -> None:
        """Set the size of the next window of a sort by how the last one was answered.

        Args:
            sort: Of the last one.
            most: Tasks of the whole step, and the largest size.
            answered: It was answered in its time.
            early: It was answered in less than half of its time.
        """
        factor = _GROW if early else 1.0 if answered else _SHRINK
        self.sizes[sort] = min(float(most), max(_LEAST_FREE, self.sizes[sort] * factor))

    def _window(self, of: KnownSchedule, free: Sequence[int], within: Sequence[int] | None = None) -> ScheduleWindow:
        """Return the window from the first to the last of ``within``, by default of ``free``.

        It is the whole step where the makespan is not the objective, since heads and tails speak of the makespan only.
        """
        if of.graph.instance.objective is not Objective.MAKESPAN:
            return ScheduleWindow(of, set(free))
        starts = [of.starts[i] for i in within or free]
        begin, stop = min(starts), max(starts) + 1
        inside = [i for i in of.by_start if begin <= of.starts[i] < stop]
        if len(inside) > _MOST_TASKS:
            first = self.random.randrange(len(inside) - _MOST_TASKS)
            begin, stop = of.starts[inside[first]], of.starts[inside[first + _MOST_TASKS]]
        return ScheduleWindow(of, {i for i in free if begin <= of.starts[i] < stop}, begin, stop)

    def _stretch(self, tasks: Sequence[int], size: int) -> Sequence[int]:
        """Return ``size`` tasks in a row, drawn at random."""
        first = self.random.randrange(max(1, len(tasks) - size + 1))
        return tasks[first : first + size]

    def _span_of_time(self, of: KnownSchedule, size: int) -> ScheduleWindow:
        return self._window(of, self._stretch(of.by_start, size))

    def _few_microbatches(self, of: KnownSchedule, size: int) -> ScheduleWindow:
        turns = sorted({(it, j) for _, j, it in of.at if j is not None})
        count = min(len(turns), max(1, size * len(turns) // len(of.starts)))
        first = self.random.randrange(len(turns) - count + 1)
        chosen = set(turns[first : first + count])
        return self._window(of, [i for i in of.by_start if of.place(i)[2:0:-1] in chosen])

    def _of_stages(self, of: KnownSchedule) -> Iterator[int]:
        """Yield the tasks of a few neighbouring stages, drawn at random, in the order of their starts."""
        stages = of.graph.instance.stages
        count = self.random.randint(1, min(_MOST_STAGES, stages))
        first = self.random.randrange(stages - count + 1)
        return (i for i in of.by_start if first <= of.graph.tasks[i].stage < first + count)

    def _few_stages(self, of: KnownSchedule, size: int) -> ScheduleWindow:
        return self._window(of, self._stretch(list(self._of_stages(of)), size))

    def _deferrable_ops(self, of: KnownSchedule, size: int) -> ScheduleWindow:
        """Return a window in which W, R, OUT and IN may move, and backwards that may be one op or two."""
        kinds = (*_DEFERRABLE, Kind.BW) if of.graph.instance.may_split else _DEFERRABLE
        tasks = [i for i in self._of_stages(of) if of.graph.tasks[i].kind in kinds]
        if not tasks:
            return self._span_of_time(of, size)
        free = self._stretch(tasks, size)
        places = {of.place(i) for i in free}
        return self._window(of, free, [i for place in places for i in of.at[place]])
