"""Orders and precedences as one graph of waits, whose longest paths are the earliest starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from zbopt.graph import TaskGraph, Use


class DeadlockError(ValueError):
    """The orders wait for each other in a circle; ``tasks`` are those that can never start."""

    def __init__(self, graph: TaskGraph, tasks: Sequence[int]) -> None:
        self.tasks = tuple(tasks)
        first = graph.tasks[self.tasks[0]]
        super().__init__(
            f"deadlock: {len(self.tasks)} ops wait for each other in a circle, the first of stage {first.stage} is "
            f"{first.kind.value} of microbatch {first.microbatch} on virtual stage {first.virtual_stage}; "
            "change the order of that stage"
        )


def running(graph: TaskGraph, orders: Sequence[Sequence[int]], links: Sequence[Sequence[Use]] = ()) -> list[int]:
    """The ops in ``orders``, and the tasks beside the stages' compute that run with them.

    Of those that a choice decides, the ones that ``links`` name.
    """
    ordered = [task for order in orders for task in order]
    on_compute = {task for row in graph.resources for task in row}
    named = {use.task for row in links for use in row}
    beside = (i for i in range(len(graph.tasks)) if i not in on_compute)
    return [*ordered, *(i for i in beside if graph.tasks[i].choice is None or i in named)]


class Arcs:
    """What each running task waits for. A join is a node of its own, of no length, with a negative number.

    An arc's weight counts from start to start. ``ready_at`` is what a node has to wait for at least.
    """

    def __init__(self, graph: TaskGraph, orders: Sequence[Sequence[int]], links: Sequence[Sequence[Use]]) -> None:
        self.graph = graph
        self.windows = any(use.ticks != graph.tasks[use.task].duration_ticks for row in links for use in row)
        tasks = running(graph, orders, links)
        runs = set(tasks)
        nodes = [*tasks, *(-1 - j for j in range(len(graph.joins)))]
        self.ready_at = {node: graph.tasks[node].release_ticks if node >= 0 else 0 for node in nodes}
        self.waiting = dict.fromkeys(nodes, 0)
        self.successors: dict[int, list[tuple[int, int]]] = {node: [] for node in nodes}
        for edge in graph.precedences:
            if edge.before in runs and edge.after in runs:
                self._follow(edge.before, edge.after, edge.lag_ticks)
        for order in orders:
            for before, after in pairwise(order):
                self._follow(before, after, 0)
        for row in links:
            for use, later in pairwise([use for use in row if use.task in runs]):
                if use.task != later.task:
                    self._add(use.task, later.task, use.offset_ticks + use.ticks - later.offset_ticks)
        self._joins(runs)

    def _joins(self, runs: set[int]) -> None:
        for j, join in enumerate(self.graph.joins):
            for before in runs.intersection(join.before):
                self._follow(before, -1 - j, join.lag_ticks)
            for after in runs.intersection(join.after):
                self._add(-1 - j, after, 0)

    def _follow(self, before: int, after: int, lag: int) -> None:
        self._add(before, after, self.graph.tasks[before].duration_ticks + lag)

    def _add(self, before: int, after: int, weight: int) -> None:
        self.successors[before].append((after, weight))
        self.waiting[after] += 1

    def starts(self) -> dict[int, int]:
        """Earliest start of every node, in ticks.

        Raises:
            DeadlockError: Some wait for each other in a circle.
        """
        starts = dict(self.ready_at)
        for node in self._in_order():
            here = starts[node]
            for after, weight in self.successors[node]:
                if starts[after] < here + weight:
                    starts[after] = here + weight
        if self.windows:
            reach = {node: np.array([start]) for node, start in starts.items()}
            self._settle(reach)
            return {node: int(start[0]) for node, start in reach.items()}
        return starts

    def longest_paths(self, reach: dict[int, NDArray[np.int64]]) -> None:
        """Raise the vectors of ``reach``, one a node, to what arrives over the arcs."""
        for node in self._in_order():
            self._pass_on(node, reach)
        if self.windows:
            self._settle(reach)

    def _pass_on(self, node: int, reach: dict[int, NDArray[np.int64]]) -> bool:
        changed = False
        for after, weight in self.successors[node]:
            arrives = reach[node] + weight
            if (arrives > reach[after]).any():
                np.maximum(reach[after], arrives, out=reach[after])
                changed = True
        return changed

    def _in_order(self) -> Iterable[int]:
        """Nodes, each after what it waits for.

        Where windows inside an op let others in between, there may be circles that hold nobody up: their nodes follow
        in any order, and ``_settle`` decides.
        """
        waiting = dict(self.waiting)
        ready = [node for node, count in waiting.items() if count == 0]
        seen = 0
        while ready:
            node = ready.pop()
            seen += 1
            yield node
            for after, _ in self.successors[node]:
                waiting[after] -= 1
                if waiting[after] == 0:
                    ready.append(after)
        stuck = [node for node, count in waiting.items() if count]
        if stuck and not self.windows:
            raise DeadlockError(self.graph, [node for node in stuck if node >= 0])
        yield from stuck

    def _settle(self, reach: dict[int, NDArray[np.int64]]) -> None:
        """Pass on along all arcs until nothing changes; what never ends is a circle."""
        for _ in range(len(reach) + 1):
            changed = [node for node in reach if self._pass_on(node, reach)]
            if not changed:
                return
        raise DeadlockError(self.graph, [node for node in changed if node >= 0])
