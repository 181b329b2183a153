"""Neighbourhoods of a schedule: CP-SAT looks for a better one that keeps the order of all but some tasks.

Which tasks may move is drawn anew each time: those of a span of time, of a few microbatches, of a few stages, or what a
few stages may put off or drop. How many is learned: more where the last one was answered early, fewer where not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from ortools.sat.python import cp_model

from zbopt.cpsat.formulation import Formulation, Rules
from zbopt.cpsat.incumbent import Incumbent
from zbopt.cpsat.window import Held, Window
from zbopt.graph import Sent
from zbopt.problem.instance import Kind, Objective

_PUT_OFF = (Kind.W, Kind.R, Kind.OUT, Kind.IN)
_MOST_STAGES = 3
_FIRST_FREE, _LEAST_FREE = 100, 20
_MOST_KEPT = 2_000
"""Tasks of a model; more take longer to build than to solve."""


class Neighbourhood(Formulation):
    """``model`` asks for the best schedule within ``horizon`` ticks that differs from the window's in free tasks alone.

    Args:
        window: What may change.
        horizon: Largest objective value allowed, in ticks.
        bound: Least value that is worth looking for: no schedule is below it.
    """

    def __init__(self, window: Window, horizon: int, bound: int) -> None:
        self.window = window
        ordered = window.of.in_microbatch_order
        super().__init__(
            window.problem, horizon, minimise=True, rules=Rules(microbatch_order=ordered, one_order=ordered)
        )
        assert self.value is not None, "it minimises"
        self.model.add(self.value >= max(bound, window.past))
        self._others_keep_order()
        self._transfers_keep_order()

    def _others_keep_order(self) -> None:
        """[D10] Tasks that are not free keep their order on each stage and link."""
        of, number = self.window.of, self.window.number
        for row in of.rows:
            for before, after in pairwise(number[i] for i in row if self._stays(i)):
                self.model.add(self.start[after] >= self._end(before))
        for uses in of.links:
            for one, other in pairwise(use for use in uses if self._stays(use.task)):
                ends = self.start[number[one.task]] + one.offset_ticks + one.ticks
                self.model.add(self.start[number[other.task]] + other.offset_ticks >= ends)

    def _stays(self, task: int) -> bool:
        return task in self.window.number and not self.window.moves(task)

    def _transfers_keep_order(self) -> None:
        """[T2] Where a transfer and what produces it are on two sides of the window's edge, the order stays."""
        for channel in self.window.of.graph.channels:
            rows: dict[tuple[int, int], list[Sent]] = defaultdict(list)
            for sent in sorted(channel.sent, key=lambda s: self.window.of.starts[s.send]):
                rows[self._sides(sent)].append(sent)
            produced, inner, to_send = rows[-1, 0], rows[0, 0], rows[0, 1]
            for one, other in (*pairwise(produced), *((produced[-1], s) for s in inner if produced)):
                self._follow((one.send,), (other.send,))
            for one, other in (*pairwise(to_send), *((s, to_send[0]) for s in inner if to_send)):
                self._follow(one.producers, other.producers)

    def _sides(self, sent: Sent) -> tuple[int, int]:
        """On which side of the window the content is produced, and sent."""
        sides = self.window.sides
        return next(sides[i] for i in sent.producers if i in sides), sides[sent.send]

    def _follow(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        number = self.window.number
        for one in (number[i] for i in before if i in number):
            for other in (number[i] for i in after if i in number):
                constraint = self.model.add(self.start[other] >= self._end(one))
                if literals := self._presence(one, other):
                    constraint.only_enforce_if(literals)

    def _memory_stays_within_cap(self) -> None:
        """[C4] Within the window, beside what lasts beyond it."""
        if self.graph.caps is None:
            return
        lives: dict[int, list[tuple[cp_model.IntervalVar, int]]] = defaultdict(list)
        caps = list(self.graph.caps)
        for r in self.graph.residences:
            there = self._there((r.first, r.last), r.when)
            lives[r.stage].append((self._live(self.start[r.first], self._end(r.last), there), r.amount))
        begins = self._begins()
        for held in self.window.held:
            always = held.first is None and held.last is None and held.until is None
            if always and held.since <= begins[held.stage]:
                caps[held.stage] -= held.amount
            elif held.until is None or held.until > begins[held.stage]:
                lives[held.stage].append((self._beyond(held), held.amount))
        for stage, row in lives.items():
            if sum(amount for _, amount in row) > caps[stage]:
                self._within([live for live, _ in row], [amount for _, amount in row], caps[stage])

    def _begins(self) -> list[int]:
        """By stage, the least start of its tasks."""
        begins = [self.latest_end] * self.graph.instance.stages
        for task, head in zip(self.graph.tasks, self.problem.heads, strict=True):
            begins[task.stage] = min(begins[task.stage], head)
        return begins

    def _beyond(self, held: Held) -> cp_model.IntervalVar:
        tasks = tuple(i for i in (held.first, held.last) if i is not None)
        first = held.since if held.first is None else self.start[held.first]
        until = self.latest_end if held.until is None else held.until
        last = until if held.last is None else self._end(held.last)
        return self._live(first, last, self._there(tasks, held.when))


@dataclass
class Neighbourhoods:
    """Draws windows, and learns how large they should be."""

    seed: int
    sizes: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.sorts: dict[str, Callable[[Incumbent, int], Window]] = {
            "time": self._time,
            "microbatches": self._microbatches,
            "stages": self._stages,
            "what is put off": self._put_off,
        }
        self.sizes = dict.fromkeys(self.sorts, float(_FIRST_FREE))

    def draw(self, incumbent: Incumbent) -> tuple[str, Window]:
        """A sort of neighbourhood, and a window of that sort."""
        sort = self.random.choice(list(self.sorts))
        return sort, self.sorts[sort](incumbent, int(self.sizes[sort]))

    def learn(self, sort: str, most: int, *, answered: bool, early: bool) -> None:
        """Draw larger ones of ``most`` tasks at most where one was answered early, smaller ones where it was not."""
        factor = 1.25 if early else 1.0 if answered else 0.8
        self.sizes[sort] = min(float(most), max(_LEAST_FREE, self.sizes[sort] * factor))

    def _window(self, of: Incumbent, free: Sequence[int], within: Sequence[int] | None = None) -> Window:
        """The window from the first to the last of ``within``, by default of ``free``.

        The whole step where its last end is not the objective: only for that do heads and tails speak.
        """
        if of.graph.instance.objective is not Objective.MAKESPAN:
            return Window(of, set(free))
        starts = [of.starts[i] for i in within or free]
        begin, stop = min(starts), max(starts) + 1
        inside = [i for i in of.by_start if begin <= of.starts[i] < stop]
        if len(inside) > _MOST_KEPT:
            first = self.random.randrange(len(inside) - _MOST_KEPT)
            begin, stop = of.starts[inside[first]], of.starts[inside[first + _MOST_KEPT]]
        return Window(of, {i for i in free if begin <= of.starts[i] < stop}, begin, stop)

    def _part(self, tasks: Sequence[int], size: int) -> Sequence[int]:
        """So many tasks in a row."""
        first = self.random.randrange(max(1, len(tasks) - size + 1))
        return tasks[first : first + size]

    def _time(self, of: Incumbent, size: int) -> Window:
        return self._window(of, self._part(of.by_start, size))

    def _microbatches(self, of: Incumbent, size: int) -> Window:
        turns = sorted({(it, j) for _, j, it in of.at if j is not None})
        count = min(len(turns), max(1, size * len(turns) // len(of.starts)))
        first = self.random.randrange(len(turns) - count + 1)
        chosen = set(turns[first : first + count])
        return self._window(of, [i for i in of.by_start if of.place(i)[2:0:-1] in chosen])

    def _of_stages(self, of: Incumbent) -> Iterator[int]:
        stages = of.graph.instance.stages
        count = self.random.randint(1, min(_MOST_STAGES, stages))
        first = self.random.randrange(stages - count + 1)
        return (i for i in of.by_start if first <= of.graph.tasks[i].stage < first + count)

    def _stages(self, of: Incumbent, size: int) -> Window:
        return self._window(of, self._part(list(self._of_stages(of)), size))

    def _put_off(self, of: Incumbent, size: int) -> Window:
        """W, R, OUT and IN, and backwards that may be one op or two."""
        choosing = (*_PUT_OFF, Kind.BW) if of.graph.instance.may_split else _PUT_OFF
        tasks = [i for i in self._of_stages(of) if of.graph.tasks[i].kind in choosing]
        if not tasks:
            return self._time(of, size)
        free = self._part(tasks, size)
        places = {of.place(i) for i in free}
        return self._window(of, free, [i for place in places for i in of.at[place]])
