"""Orders and precedences as one graph of waits, whose longest paths are the earliest starts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from zbopt.graph import TaskGraph, Use

_NO_PATH = -(2**61)


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

    def ticks(self, task: int) -> int:
        """How long a task takes."""
        return self.graph.tasks[task].duration_ticks

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
        for node in self._order:
            here = starts[node]
            for after, weight in self.successors[node]:
                if starts[after] < here + weight:
                    starts[after] = here + weight
        if self.windows:
            reach = {node: [start] for node, start in starts.items()}
            self._settle(reach)
            return {node: start for node, (start,) in reach.items()}
        return starts

    def longest_paths(self, sources: Sequence[int]) -> dict[int, list[int]]:
        """For each node the longest path from each of ``sources``, in ticks; far below 0: there is none."""
        reach = {node: [_NO_PATH] * len(sources) for node in self.waiting}
        for n, source in enumerate(sources):
            reach[source][n] = 0
        for node in self._order:
            self._pass_on(node, reach)
        if self.windows:
            self._settle(reach)
        return reach

    def _pass_on(self, node: int, reach: dict[int, list[int]]) -> bool:
        """Raise the vectors of what follows a node to what arrives from it; whether any was lower."""
        changed = False
        for after, weight in self.successors[node]:
            old = reach[after]
            new = [b if b > a + weight else a + weight for a, b in zip(reach[node], old, strict=True)]
            if new != old:
                reach[after] = new
                changed = True
        return changed

    @cached_property
    def _order(self) -> tuple[int, ...]:
        """Nodes, each after what it waits for.

        Where windows inside an op let others in between, there may be circles that hold nobody up: their nodes follow
        in any order, and ``_settle`` decides.
        """
        waiting = dict(self.waiting)
        ready = [node for node, count in waiting.items() if count == 0]
        order = []
        while ready:
            node = ready.pop()
            order.append(node)
            for after, _ in self.successors[node]:
                waiting[after] -= 1
                if waiting[after] == 0:
                    ready.append(after)
        stuck = [node for node, count in waiting.items() if count]
        if stuck and not self.windows:
            raise DeadlockError(self.graph, [node for node in stuck if node >= 0])
        return (*order, *stuck)

    def _settle(self, reach: dict[int, list[int]]) -> None:
        """Pass on along all arcs until nothing changes; what never ends is a circle."""
        for _ in range(len(reach) + 1):
            changed = [node for node in reach if self._pass_on(node, reach)]
            if not changed:
                return
        raise DeadlockError(self.graph, [node for node in changed if node >= 0])
