"""A window of a schedule as a problem of its own: tasks before it keep their starts, tasks after it keep their order.

What lies after it becomes, for each task of the window, the least time to the end of the step, over the orders that the
schedule has. So the model grows with the window and not with the step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from zbopt.bounds.relax import Relaxed, whole
from zbopt.cpsat.known_schedule import KnownSchedule
from zbopt.graph import Channel, Join, Link, Option, Precedence, Residence, Sent, Task, TaskGraph, Use


@dataclass(frozen=True, slots=True)
class OutsideMemory:
    """Hold ``amount`` of memory that a task outside the window takes or gives back.

    It is live from the start of ``first``, a task of the window, or where that is ``None`` from tick ``since``; to the
    end of ``last``, or where that is ``None`` to tick ``until``, or where that is ``None`` too past the window. With
    ``when`` it is there only under that option of a choice.
    """

    stage: int
    amount: int
    first: int | None
    since: int
    last: int | None
    until: int | None
    when: Option | None


@dataclass(frozen=True)
class ScheduleWindow:
    """Represent the tasks of ``of`` that start from ``begin`` on and before ``stop``.

    Of these, ``free`` ones may change their order. ``begin`` is ``None`` where the window begins with the first task of
    all, ``stop`` where it ends with the last. A choice is made anew where all that it concerns lies inside and some of
    it is free.
    """

    of: KnownSchedule
    free: Collection[int]
    begin: int | None = None
    stop: int | None = None

    def _side(self, task: int) -> int:
        """Return -1 for a task that runs before the window, 0 in it, 1 after it."""
        start = self.of.starts[task]
        if self.begin is not None and start < self.begin:
            return -1
        return 0 if self.stop is None or start < self.stop else 1

    @cached_property
    def sides(self) -> dict[int, int]:
        """Return the side of each task that runs."""
        return {i: self._side(i) for i in self.of.starts}

    @cached_property
    def choices(self) -> dict[int, int]:
        """Return the choices that are made anew, each with its number in the window."""
        free = set(self.free)
        made = (
            choice
            for choice, concerned in enumerate(self.of.concerned)
            if not free.isdisjoint(concerned) and all(self.sides[i] == 0 for i in concerned)
        )
        return {choice: n for n, choice in enumerate(made)}

    @cached_property
    def tasks(self) -> list[int]:
        """Return the tasks of the window by their numbers in the whole graph: those that run or may run instead."""
        graph = self.of.graph
        instead = (i for choice in self.choices for option in graph.options[choice] for i in option)
        return sorted({*(i for i, side in self.sides.items() if side == 0), *instead})

    @cached_property
    def number(self) -> dict[int, int]:
        """Return the number in the window of each of its tasks."""
        return {i: n for n, i in enumerate(self.tasks)}

    def moves(self, task: int) -> bool:
        """Return whether a task of the whole graph may change its place in the order."""
        return task in self.free or self.of.graph.tasks[task].choice in self.choices

    @cached_property
    def problem(self) -> Relaxed:
        """Return the window's tasks with the least time before and after each."""
        delays = whole(self._graph())
        heads, tails = list(delays.heads), list(delays.tails)
        for before in (self._after_precedences(), self._after_stages(), self._after_links(), self._after_joins()):
            for i, tick in before:
                heads[self.number[i]] = max(heads[self.number[i]], tick)
        ahead = (self._to_precedences(), self._to_stages(), self._to_links(), self._to_joins(), self._to_memory())
        for after in ahead:
            for i, ticks in after:
                tails[self.number[i]] = max(tails[self.number[i]], ticks)
        return Relaxed(delays.graph, tuple(heads), tuple(tails))

    def _graph(self) -> TaskGraph:
        graph, number = self.of.graph, self.number
        return replace(
            graph,
            tasks=tuple(self._task(graph.tasks[i]) for i in self.tasks),
            resources=tuple(self._numbers(ops) for ops in graph.resources),
            links=tuple(self._link(link) for link in graph.links),
            channels=tuple(self._channel(channel) for channel in graph.channels),
            precedences=tuple(self._precedences()),
            joins=tuple(self._joins()),
            residences=tuple(self.residences),
            choices=tuple(graph.choices[choice] for choice in self.choices),
            index={key: number[i] for key, i in graph.index.items() if i in number},
            policy_of={key: self.choices[c] for key, c in graph.policy_of.items() if c in self.choices},
        )

    def _precedences(self) -> Iterator[Precedence]:
        """Yield the precedences between tasks of the window."""
        for before in self.tasks:
            for after, lag_ticks in self.of.graph.successors[before]:
                if after in self.number:
                    yield Precedence(self.number[before], self.number[after], lag_ticks)

    def _joins(self) -> Iterator[Join]:
        """Yield the joins with tasks of the window on both sides."""
        for join in self.of.graph.joins:
            before, after = self._numbers(join.before), self._numbers(join.after)
            if before and after:
                yield Join(before, after, join.lag_ticks)

    def _numbers(self, tasks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.number[i] for i in tasks if i in self.number)

    def _task(self, task: Task) -> Task:
        if task.choice is None:
            return task
        number = self.choices.get(task.choice)
        return replace(task, choice=number, option=0 if number is None else task.option)

    def _link(self, link: Link) -> Link:
        uses = (replace(use, task=self.number[use.task]) for use in link.uses if use.task in self.number)
        return replace(link, uses=tuple(uses))

    def _channel(self, channel: Channel) -> Channel:
        """Return the transfers that lie in the window together with what produces them.

        Of the others ``Neighbourhood`` keeps the order.
        """
        sent = (s for s in channel.sent if s.send in self.number and self._numbers(s.producers))
        return replace(channel, sent=tuple(Sent(self.number[s.send], self._numbers(s.producers)) for s in sent))

    @cached_property
    def residences(self) -> list[Residence]:
        """Return the memory that tasks of the window take and give back, by their numbers in it."""
        found = []
        for r, when in self._residences():
            first, last = self.number.get(r.first), self.number.get(r.last)
            if first is not None and last is not None:
                found.append(replace(r, first=first, last=last, when=when))
        return found

    @cached_property
    def outside_memory(self) -> list[OutsideMemory]:
        """Return the memory that is taken before the window, or given back outside it, and may be live in it."""
        found = []
        for r, when in self._residences():
            first, last = self.number.get(r.first), self.number.get(r.last)
            if (first is not None and last is not None) or not self._reaches_in(r):
                continue
            since = self.of.starts[r.first] if first is None else 0
            until = self.of.end(r.last) if last is None and self.sides[r.last] < 0 else None
            found.append(OutsideMemory(r.stage, r.amount, first, since, last, until, when))
        return found

    def _reaches_in(self, r: Residence) -> bool:
        """Return whether both ends of a residence run or may run, and it begins in the window or before it."""
        may_run = all(i in self.number or i in self.sides for i in (r.first, r.last))
        return may_run and (r.first in self.number or self.sides[r.first] <= 0)

    def _residences(self) -> Iterator[tuple[Residence, Option | None]]:
        """Yield what is there under the schedule's options, or under those of a choice that is made anew.

        Each comes with its option by the choice's number in the window; ``None``: it is there in any case.
        """
        for r in self.of.graph.residences:
            if r.when is None:
                yield r, None
            elif r.when[0] in self.choices:
                yield r, (self.choices[r.when[0]], r.when[1])
            elif self.of.taken[r.when[0]] == r.when[1]:
                yield r, None

    # Each of the next methods yields (task of the window, tick): what lies before the window in one kind of constraint
    # does not let the task start before that tick.

    def _after_precedences(self) -> Iterator[tuple[int, int]]:
        of, graph = self.of, self.of.graph
        for i in self.tasks:
            for before, lag_ticks in graph.predecessors[i]:
                if self.sides.get(before) == -1:
                    yield i, of.end(before) + lag_ticks

    def _after_stages(self) -> Iterator[tuple[int, int]]:
        of = self.of
        for order, ops in zip(of.orders, of.graph.resources, strict=True):
            last = max((of.end(i) for i in order if self.sides[i] < 0), default=0)
            yield from ((i, last) for i in ops if i in self.number)

    def _after_links(self) -> Iterator[tuple[int, int]]:
        of = self.of
        for uses, link in zip(of.links, of.graph.links, strict=True):
            before = (of.starts[u.task] + u.offset_ticks + u.ticks for u in uses if self.sides[u.task] < 0)
            last = max(before, default=0)
            yield from ((use.task, last - use.offset_ticks) for use in link.uses if use.task in self.number)

    def _after_joins(self) -> Iterator[tuple[int, int]]:
        of = self.of
        for join in of.graph.joins:
            ends = (of.end(i) + join.lag_ticks for i in join.before if self.sides.get(i) == -1)
            if (last := max(ends, default=0)) > 0:
                yield from ((i, last) for i in join.after if i in self.number)

    # Each of the next methods yields (task of the window, ticks): over what lies after the window in one kind of
    # constraint, no less time passes from the task's end to the last end of all.

    def _to_precedences(self) -> Iterator[tuple[int, int]]:
        of, graph = self.of, self.of.graph
        for i in self.tasks:
            for after, lag_ticks in graph.successors[i]:
                if self.sides.get(after) == 1:
                    yield i, lag_ticks + of.to_end[after]

    def _to_stages(self) -> Iterator[tuple[int, int]]:
        of = self.of
        for order, ops in zip(of.orders, of.graph.resources, strict=True):
            if (after := next((i for i in order if self.sides[i] > 0), None)) is not None:
                yield from ((i, of.to_end[after]) for i in ops if i in self.number)

    def _to_links(self) -> Iterator[tuple[int, int]]:
        for uses, link in zip(self.of.links, self.of.graph.links, strict=True):
            if (use := next((u for u in uses if self.sides[u.task] > 0), None)) is not None:
                yield from self._to_use(use, link)

    def _to_joins(self) -> Iterator[tuple[int, int]]:
        of = self.of
        for j, join in enumerate(of.graph.joins):
            if any(self.sides.get(i) == 1 for i in join.after):
                yield from ((i, join.lag_ticks + of.to_end[-1 - j]) for i in join.before if i in self.number)

    def _to_use(self, later: Use, link: Link) -> Iterator[tuple[int, int]]:
        graph = self.of.graph
        for use in link.uses:
            if use.task in self.number:
                beyond_end = use.offset_ticks + use.ticks - graph.tasks[use.task].duration_ticks
                yield use.task, beyond_end - later.offset_ticks + self.of.to_end[later.task]

    def _to_memory(self) -> Iterator[tuple[int, int]]:
        """Yield the ticks from each task that takes memory, or gives it back, to the next that takes some after it.

        What takes memory after the window does so after all that takes some in it, and after all that gives some back
        in it, except what had given it back too late to count.
        """
        graph, of = self.of.graph, self.of
        first_takers = self._first_takers_after()
        for r in graph.residences:
            if (taker := first_takers.get(r.stage)) is not None:
                yield from self._to_taker(r, taker)
        for i in self.tasks:
            for after, ticks in of.arcs.successors.get(i, ()):
                if self.sides.get(after) == 1:
                    yield i, ticks + of.to_end[after] - graph.tasks[i].duration_ticks

    def _first_takers_after(self) -> dict[int, int]:
        """Return by stage the first task after the window that takes memory; a stage without one is left out."""
        graph = self.of.graph
        takers = {r.first for r in graph.residences}
        first: dict[int, int] = {}
        for i in self.of.by_start:
            if i in takers and self.sides[i] > 0:
                first.setdefault(graph.tasks[i].stage, i)
        return first

    def _to_taker(self, r: Residence, taker: int) -> Iterator[tuple[int, int]]:
        """Yield the ticks from the ends of a residence that lie in the window; ``taker`` takes memory after it."""
        of = self.of
        if r.first in self.number:
            yield r.first, of.to_end[taker] - of.graph.tasks[r.first].duration_ticks
        if r.last in self.number and (r.last not in self.sides or of.end(r.last) <= of.starts[taker]):
            yield r.last, of.to_end[taker]

    @cached_property
    def longest_bypass(self) -> int:
        """Return the longest path from the first start to the last end past the window: no value is below it."""
        of = self.of
        behind = {-1 - j for j, join in enumerate(of.graph.joins) if any(self.sides.get(i, 0) > 0 for i in join.after)}
        behind.update(i for i, side in self.sides.items() if side > 0)
        paths = (
            of.starts[before] + ticks + of.to_end[after]
            for before, side in self.sides.items()
            if side < 0
            for after, ticks in of.arcs.successors[before]
            if after in behind
        )
        return max(paths, default=0)

    def starts(self, found: Mapping[int, int]) -> dict[int, int]:
        """Return starts of the whole step from those of the window: what lies after waits until all of it has ended."""
        graph = self.of.graph
        inside = {self.tasks[n]: start for n, start in found.items()}
        after = {i: self.of.starts[i] for i, side in self.sides.items() if side > 0}
        ends = max((start + graph.tasks[i].duration_ticks for i, start in inside.items()), default=0)
        late = max(0, ends - min(after.values(), default=ends))
        before = {i: self.of.starts[i] for i, side in self.sides.items() if side < 0}
        return before | inside | {i: start + late for i, start in after.items()}
