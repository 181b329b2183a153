"""A window of a schedule as a problem of its own: what runs before it stays, what runs after it keeps its order.

What lies before starts when it does; what lies after becomes the least time to the end of the step, over the orders
that it has. So the model grows with the window and not with the step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from zbopt.bounds.relax import Relaxed, whole
from zbopt.cpsat.incumbent import Incumbent
from zbopt.graph import Channel, Join, Link, Option, Precedence, Residence, Sent, Task, TaskGraph, Use


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that a task outside the window takes or gives back.

    It is held from the start of ``first``, a task of the window, or where that is ``None`` from ``since``; to the end
    of ``last``, or where that is ``None`` to ``until``, or where that is ``None`` too past the window.
    """

    stage: int
    amount: int
    first: int | None
    since: int
    last: int | None
    until: int | None
    when: Option | None


@dataclass(frozen=True)
class Window:
    """The tasks of ``of`` that start from ``begin`` on and before ``stop``; ``free`` of them may change their order.

    ``None`` for ``begin`` or ``stop``: from the first, to the last. A choice is made anew where all that it concerns
    lies inside and some of it is free.
    """

    of: Incumbent
    free: Collection[int]
    begin: int | None = None
    stop: int | None = None

    def _side(self, task: int) -> int:
        """-1: runs before the window; 0: in it; 1: after."""
        start = self.of.starts[task]
        if self.begin is not None and start < self.begin:
            return -1
        return 0 if self.stop is None or start < self.stop else 1

    @cached_property
    def sides(self) -> dict[int, int]:
        """The side of each task that runs."""
        return {i: self._side(i) for i in self.of.starts}

    @cached_property
    def choices(self) -> dict[int, int]:
        """The choices that are made anew, each with its number in the window."""
        free = set(self.free)
        made = (
            choice
            for choice, concerned in enumerate(self.of.concerned)
            if not free.isdisjoint(concerned) and all(self.sides[i] == 0 for i in concerned)
        )
        return {choice: n for n, choice in enumerate(made)}

    @cached_property
    def kept(self) -> list[int]:
        """The tasks of the window in the numbers of the whole graph: those that run, and what may run instead."""
        graph = self.of.graph
        instead = (i for choice in self.choices for option in graph.options[choice] for i in option)
        return sorted({*(i for i, side in self.sides.items() if side == 0), *instead})

    @cached_property
    def number(self) -> dict[int, int]:
        """The number in the window of each kept task."""
        return {i: n for n, i in enumerate(self.kept)}

    def moves(self, task: int) -> bool:
        """Whether a task of the whole graph may change its place in the order."""
        return task in self.free or self.of.graph.tasks[task].choice in self.choices

    @cached_property
    def problem(self) -> Relaxed:
        """The window's tasks with the least time before and after each."""
        delays = whole(self._graph())
        heads, tails = list(delays.heads), list(delays.tails)
        for i, tick in self._earliest():
            heads[self.number[i]] = max(heads[self.number[i]], tick)
        for i, ticks in self._ahead():
            tails[self.number[i]] = max(tails[self.number[i]], ticks)
        return Relaxed(delays.graph, tuple(heads), tuple(tails))

    def _graph(self) -> TaskGraph:
        graph, number = self.of.graph, self.number
        joins = (Join(self._numbers(j.before), self._numbers(j.after), j.lag_ticks) for j in graph.joins)
        return replace(
            graph,
            tasks=tuple(self._task(graph.tasks[i]) for i in self.kept),
            resources=tuple(self._numbers(row) for row in graph.resources),
            links=tuple(self._link(link) for link in graph.links),
            channels=tuple(self._channel(channel) for channel in graph.channels),
            precedences=tuple(
                Precedence(number[e.before], number[e.after], e.lag_ticks)
                for e in graph.precedences
                if e.before in number and e.after in number
            ),
            joins=tuple(j for j in joins if j.before and j.after),
            residences=tuple(r for r in self._residences() if isinstance(r, Residence)),
            choices=tuple(graph.choices[choice] for choice in self.choices),
            index={key: number[i] for key, i in graph.index.items() if i in number},
            policy_of={key: self.choices[c] for key, c in graph.policy_of.items() if c in self.choices},
        )

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
        """Transfers that lie in the window with what produces them; ``orders`` has the others."""
        sent = (s for s in channel.sent if s.send in self.number and self._numbers(s.producers))
        return replace(channel, sent=tuple(Sent(self.number[s.send], self._numbers(s.producers)) for s in sent))

    @cached_property
    def held(self) -> list[Held]:
        """Memory that tasks outside take or give back."""
        return [r for r in self._residences() if isinstance(r, Held)]

    def _residences(self) -> Iterator[Residence | Held]:
        taken = self.of.taken
        for r in self.of.graph.residences:
            when = r.when
            if when is not None and when[0] in self.choices:
                when = self.choices[when[0]], when[1]
            elif when is not None:
                if taken[when[0]] != when[1]:
                    continue
                when = None
            first, last = self.number.get(r.first), self.number.get(r.last)
            if first is not None and last is not None:
                yield replace(r, first=first, last=last, when=when)
            elif (first is not None or r.first in self.sides) and (last is not None or r.last in self.sides):
                yield from self._beyond(r, first, last, when)

    def _beyond(self, r: Residence, first: int | None, last: int | None, when: Option | None) -> Iterator[Held]:
        if first is None and self.sides[r.first] > 0:
            return
        since = self.of.starts[r.first] if first is None else 0
        until = self.of.end(r.last) if last is None and self.sides[r.last] < 0 else None
        yield Held(r.stage, r.amount, first, since, last, until, when)

    def _earliest(self) -> Iterator[tuple[int, int]]:
        """(kept task, tick before which what lies before the window does not let it start)."""
        graph, of = self.of.graph, self.of
        for e in graph.precedences:
            if e.after in self.number and self.sides.get(e.before) == -1:
                yield e.after, of.end(e.before) + e.lag_ticks
        for row, ops in zip(of.rows, graph.resources, strict=True):
            last = max((of.end(i) for i in row if self.sides[i] < 0), default=0)
            yield from ((i, last) for i in ops if i in self.number)
        for uses, link in zip(of.links, graph.links, strict=True):
            before = (of.starts[u.task] + u.offset_ticks + u.ticks for u in uses if self.sides[u.task] < 0)
            last = max(before, default=0)
            yield from ((use.task, last - use.offset_ticks) for use in link.uses if use.task in self.number)
        for join in graph.joins:
            ends = (of.end(i) + join.lag_ticks for i in join.before if self.sides.get(i) == -1)
            if (last := max(ends, default=0)) > 0:
                yield from ((i, last) for i in join.after if i in self.number)

    def _ahead(self) -> Iterator[tuple[int, int]]:
        """(kept task, least ticks from its end to the last end over what lies after the window)."""
        graph, of = self.of.graph, self.of
        for e in graph.precedences:
            if e.before in self.number and self.sides.get(e.after) == 1:
                yield e.before, e.lag_ticks + of.to_end[e.after]
        for row, ops in zip(of.rows, graph.resources, strict=True):
            if (after := next((i for i in row if self.sides[i] > 0), None)) is not None:
                yield from ((i, of.to_end[after]) for i in ops if i in self.number)
        for uses, link in zip(of.links, graph.links, strict=True):
            if (use := next((u for u in uses if self.sides[u.task] > 0), None)) is not None:
                yield from self._until_use(use, link)
        for j, join in enumerate(graph.joins):
            if any(self.sides.get(i) == 1 for i in join.after):
                yield from ((i, join.lag_ticks + of.to_end[-1 - j]) for i in join.before if i in self.number)
        yield from self._until_taken()

    def _until_use(self, later: Use, link: Link) -> Iterator[tuple[int, int]]:
        graph = self.of.graph
        for use in link.uses:
            if use.task in self.number:
                beyond_end = use.offset_ticks + use.ticks - graph.tasks[use.task].duration_ticks
                yield use.task, beyond_end - later.offset_ticks + self.of.to_end[later.task]

    def _until_taken(self) -> Iterator[tuple[int, int]]:
        """Memory after the window is taken after all that takes some in it.

        It waits for all that gives some back in it, but for what has done so too late to count.
        """
        graph, of = self.of.graph, self.of
        takers = {r.first for r in graph.residences}
        first: dict[int, int] = {}
        for i in of.by_start:
            if i in takers and self.sides[i] > 0:
                first.setdefault(graph.tasks[i].stage, i)
        for r in graph.residences:
            if r.stage in first and r.first in self.number:
                yield r.first, of.to_end[first[r.stage]] - graph.tasks[r.first].duration_ticks
            if r.stage in first and r.last in self.number:
                taker = first[r.stage]
                if r.last not in self.sides or of.end(r.last) <= of.starts[taker]:
                    yield r.last, of.to_end[taker]
        for i in self.kept:
            for after, ticks in of.arcs.successors.get(i, ()):
                if self.sides.get(after) == 1:
                    yield i, ticks + of.to_end[after] - graph.tasks[i].duration_ticks

    @cached_property
    def past(self) -> int:
        """The longest way from the first start to the last end past the window, in ticks: no less can be reached."""
        of = self.of
        behind = {-1 - j for j, join in enumerate(of.graph.joins) if any(self.sides.get(i, 0) > 0 for i in join.after)}
        behind.update(i for i, side in self.sides.items() if side > 0)
        ways = (
            of.starts[before] + ticks + of.to_end[after]
            for before, side in self.sides.items()
            if side < 0
            for after, ticks in of.arcs.successors[before]
            if after in behind
        )
        return max(ways, default=0)

    def starts(self, found: Mapping[int, int]) -> dict[int, int]:
        """Starts of the whole step from those of the window: what lies after is put off until all of it has ended."""
        graph = self.of.graph
        inside = {self.kept[n]: start for n, start in found.items()}
        after = {i: self.of.starts[i] for i, side in self.sides.items() if side > 0}
        ends = max((start + graph.tasks[i].duration_ticks for i, start in inside.items()), default=0)
        late = max(0, ends - min(after.values(), default=ends))
        before = {i: self.of.starts[i] for i, side in self.sides.items() if side < 0}
        return before | inside | {i: start + late for i, start in after.items()}
