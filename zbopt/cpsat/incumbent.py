"""The best schedule of a search, and what its windows need to know of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from zbopt.graph import TaskGraph, Use
from zbopt.problem.instance import Kind
from zbopt.timing import as_started, link_orders, stage_orders
from zbopt.timing.arcs import Arcs

Place = tuple[int | None, int | None, int]
"""Virtual stage, microbatch and iteration of a task."""

_BACKWARD = (Kind.B, Kind.W, Kind.BW)


@dataclass(frozen=True)
class Incumbent:
    """A schedule of ``graph`` by ``starts`` of the tasks that run, each as early as the order of all allows."""

    graph: TaskGraph
    starts: Mapping[int, int]

    @cached_property
    def by_start(self) -> list[int]:
        """The tasks that run, in order of their starts."""
        return sorted(self.starts, key=lambda i: (self.starts[i], i))

    @cached_property
    def rows(self) -> list[list[int]]:
        """The order on each stage."""
        return stage_orders(self.graph, self.starts)

    @cached_property
    def links(self) -> list[list[Use]]:
        """The order on each link."""
        return link_orders(self.graph, self.starts)

    @cached_property
    def taken(self) -> tuple[int, ...]:
        """The option of each choice."""
        return self.graph.taken(self.starts)

    @cached_property
    def at(self) -> dict[Place, list[int]]:
        """The tasks that run, by place."""
        found: dict[Place, list[int]] = defaultdict(list)
        for i in self.by_start:
            found[self.place(i)].append(i)
        return found

    def place(self, task: int) -> Place:
        """Where a task belongs."""
        this = self.graph.tasks[task]
        return this.virtual_stage, this.microbatch, this.iteration

    @cached_property
    def concerned(self) -> list[list[int]]:
        """For each choice the tasks that run and lie at or between the ends of what it changes.

        Of a backward its ops; of an activation's way its F, what drops it and brings it back, and what takes it.
        """
        found: list[list[int]] = []
        ways = {choice: place for place, choice in self.graph.policy_of.items()}
        for choice, options in enumerate(self.graph.options):
            here = self.at[ways.get(choice) or self.place(next(i for row in options for i in row))]
            backward = [i for i in here if self.graph.tasks[i].kind in _BACKWARD]
            if choice in ways:
                others = (Kind.F, Kind.R, Kind.OUT, Kind.IN)
                backward = [*(i for i in here if self.graph.tasks[i].kind in others), *backward[:1]]
            found.append(backward)
        return found

    def end(self, task: int) -> int:
        """When a task ends."""
        return self.starts[task] + self.graph.tasks[task].duration_ticks

    @cached_property
    def arcs(self) -> Arcs:
        """What waits for what while all orders stay."""
        return Arcs(as_started(self.graph, self.starts), self.rows, self.links)

    @cached_property
    def to_end(self) -> dict[int, int]:
        """Least time from the start of each task to the last end of all while all orders stay; joins count below 0."""
        arcs = self.arcs
        least = {node: self.graph.tasks[node].duration_ticks if node >= 0 else 0 for node in arcs.waiting}
        nodes = sorted(least, key=lambda node: self.starts.get(node, -1), reverse=True)
        changed = True
        while changed:
            changed = False
            for node in nodes:
                ahead = max((weight + least[after] for after, weight in arcs.successors[node]), default=0)
                if ahead > least[node]:
                    least[node], changed = ahead, True
        return least

    @cached_property
    def in_microbatch_order(self) -> bool:
        """Whether every row of [D1] is in order."""
        rows: dict[tuple[Kind, int | None, int], list[tuple[int, int]]] = defaultdict(list)
        alike = {j: k for k, members in enumerate(self.graph.instance.classes()) for j in members}
        for i in self.by_start:
            task = self.graph.tasks[i]
            if task.microbatch is not None:
                kind = Kind.B if task.kind is Kind.BW else task.kind
                rows[kind, task.virtual_stage, alike[task.microbatch]].append(task.turn)
        return all(row == sorted(row) for row in rows.values())
