"""The best schedule of a search, with its orders, places and longest paths, which neighbourhoods ask for."""

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
_ACTIVATION = (Kind.F, Kind.R, Kind.OUT, Kind.IN)


@dataclass(frozen=True)
class KnownSchedule:
    """Hold a schedule of ``graph``: ``starts`` of the tasks that run, each as early as the order of all allows."""

    graph: TaskGraph
    starts: Mapping[int, int]

    @cached_property
    def by_start(self) -> list[int]:
        """Return the tasks that run, in the order of their starts."""
        return sorted(self.starts, key=lambda i: (self.starts[i], i))

    @cached_property
    def orders(self) -> list[list[int]]:
        """Return for each stage its ops in the order in which they run."""
        return stage_orders(self.graph, self.starts)

    @cached_property
    def links(self) -> list[list[Use]]:
        """Return for each link its uses in their order."""
        return link_orders(self.graph, self.starts)

    @cached_property
    def taken(self) -> tuple[int, ...]:
        """Return the option that the schedule takes of each choice."""
        return self.graph.taken(self.starts)

    @cached_property
    def at(self) -> dict[Place, list[int]]:
        """Return the tasks that run, by place."""
        found: dict[Place, list[int]] = defaultdict(list)
        for i in self.by_start:
            found[self.place(i)].append(i)
        return found

    def place(self, task: int) -> Place:
        """Return the place to which a task belongs."""
        this = self.graph.tasks[task]
        return this.virtual_stage, this.microbatch, this.iteration

    @cached_property
    def concerned(self) -> list[list[int]]:
        """Return for each choice the tasks that run and lie at or between the ends of what it changes.

        For a backward these are its ops; for an activation policy its F, what drops the activation and brings it back,
        and the op that needs it.
        """
        found: list[list[int]] = []
        place_of = {choice: place for place, choice in self.graph.policy_of.items()}
        for choice, options in enumerate(self.graph.options):
            place = place_of.get(choice) or self.place(next(i for option in options for i in option))
            backward = [i for i in self.at[place] if self.graph.tasks[i].kind in _BACKWARD]
            if choice in place_of:
                others = [i for i in self.at[place] if self.graph.tasks[i].kind in _ACTIVATION]
                found.append([*others, *backward[:1]])
            else:
                found.append(backward)
        return found

    def end(self, task: int) -> int:
        """Return when a task ends, in ticks."""
        return self.starts[task] + self.graph.tasks[task].duration_ticks

    @cached_property
    def arcs(self) -> Arcs:
        """Return the graph of what waits for what while all orders stay."""
        return Arcs(as_started(self.graph, self.starts), self.orders, self.links)

    @cached_property
    def to_end(self) -> dict[int, int]:
        """Return the least ticks from each task's start to the last end of all while all orders stay.

        Joins are nodes of their own, with negative numbers.
        """
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
        """Return whether the schedule runs all that [D1] names in microbatch order."""
        turns: dict[tuple[Kind, int | None, int], list[tuple[int, int]]] = defaultdict(list)
        alike = {j: k for k, members in enumerate(self.graph.instance.classes()) for j in members}
        for i in self.by_start:
            task = self.graph.tasks[i]
            if task.microbatch is not None:
                kind = Kind.B if task.kind is Kind.BW else task.kind
                turns[kind, task.virtual_stage, alike[task.microbatch]].append(task.turn)
        return all(of_kind == sorted(of_kind) for of_kind in turns.values())
