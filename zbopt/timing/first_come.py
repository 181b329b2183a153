"""Starts for an order of the stages' ops where links have no order yet: whoever can go first does."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from zbopt.graph import TaskGraph, Use
from zbopt.timing.arcs import DeadlockError, running


def first_come(graph: TaskGraph, orders: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return starts that respect ``orders`` and every link.

    Tasks are placed one after another, each as early as those before it allow.

    Raises:
        DeadlockError: The orders contradict the precedences.
    """
    return _FirstCome(graph, orders).starts()


class _FirstCome:
    """Place tasks one after another.

    Attributes:
        waits: For each node (a task, or a join by a negative number), how many predecessors are not placed yet.
        after: For each node (node after it, lag in ticks from its end).
        arrival: For each node, the earliest start that those placed so far allow.
        uses: For each task (number of a link, its use of it).
        busy: For each link (start, end) of what has it so far, in order.
    """

    def __init__(self, graph: TaskGraph, orders: Sequence[Sequence[int]]) -> None:
        self.graph = graph
        self.tasks = running(graph, orders)
        self.waits: dict[int, int] = dict.fromkeys(self.tasks, 0)
        self.after: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.arrival = {i: graph.tasks[i].release_ticks for i in self.tasks}
        self.uses: dict[int, list[tuple[int, Use]]] = defaultdict(list)
        self.busy: list[list[tuple[int, int]]] = [[] for _ in graph.links]
        for place, link in enumerate(graph.links):
            for use in link.uses:
                self.uses[use.task].append((place, use))
        self._arcs(orders)

    def _arcs(self, orders: Sequence[Sequence[int]]) -> None:
        """Let each node wait for precedences, orders, joins, and the order of contents on channels [T2]."""
        graph = self.graph
        for before in self.tasks:
            for after, lag_ticks in graph.successors[before]:
                self._arc(before, after, lag_ticks)
        for order in orders:
            for before, after in pairwise(order):
                self._arc(before, after, 0)
        for j, join in enumerate(graph.joins):
            self.waits[-1 - j] = self.arrival[-1 - j] = 0
            for before in join.before:
                self._arc(before, -1 - j, join.lag_ticks)
            for after in join.after:
                self._arc(-1 - j, after, 0)
        place = {task: n for order in orders for n, task in enumerate(order)}
        for channel in graph.channels:
            by_producer = [(place[p], s.send) for s in channel.sent for p in s.producers if p in place]
            for (_, before), (_, after) in pairwise(sorted(by_producer)):
                self._arc(before, after, 0)

    def _arc(self, before: int, after: int, lag: int) -> None:
        if before in self.waits and after in self.waits:
            self.after[before].append((after, lag))
            self.waits[after] += 1

    def starts(self) -> dict[int, int]:
        """Return the start of each task, in ticks."""
        ready = [(self.arrival[node], node) for node, count in self.waits.items() if count == 0]
        heapq.heapify(ready)
        starts: dict[int, int] = {}
        while ready:
            known, node = heapq.heappop(ready)
            start = self._start(node)
            if start > known:
                heapq.heappush(ready, (start, node))
                continue
            starts[node] = start
            end = start + (self.graph.tasks[node].duration_ticks if node >= 0 else 0)
            for place, use in self.uses.get(node, ()):
                first = start + use.offset_ticks
                insort(self.busy[place], (first, first + use.ticks))
            for after, lag in self.after[node]:
                self.arrival[after] = max(self.arrival[after], end + lag)
                self.waits[after] -= 1
                if self.waits[after] == 0:
                    heapq.heappush(ready, (self.arrival[after], after))
        stuck = [task for task in self.tasks if task not in starts]
        if stuck:
            raise DeadlockError(self.graph, stuck)
        return {node: start for node, start in starts.items() if node >= 0}

    def _start(self, node: int) -> int:
        """Return the earliest start at which everything that a node uses is free: in a gap, or at the end."""
        start = self.arrival[node]
        uses = self.uses.get(node, ())
        while (later := max([start, *(self._free(place, use, start) for place, use in uses)])) > start:
            start = later
        return start

    def _free(self, place: int, use: Use, start: int) -> int:
        """Return the earliest start from ``start`` on at which one use does not meet what has its link already."""
        busy = self.busy[place]
        first = start + use.offset_ticks
        n = max(0, bisect_right(busy, (first, first)) - 1)
        while n < len(busy) and busy[n][0] < first + use.ticks:
            first = max(first, busy[n][1])
            n += 1
        return first - use.offset_ticks
