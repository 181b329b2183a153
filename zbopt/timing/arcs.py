"""Orders and precedences as one graph of waits, whose longest paths are the earliest starts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from zbopt.graph import TaskGraph, Use

_NO_PATH = -(2**61)


class DeadlockError(ValueError):
    """Say that orders wait for each other in a circle; ``tasks`` are those that can never start."""

    def __init__(self, graph: TaskGraph, tasks: Sequence[int]) -> None:
        self.tasks = tuple(tasks)
        first = graph.tasks[self.tasks[0]]
        super().__init__(
            f"deadlock: {len(self.tasks)} ops wait for each other in a circle, the first of stage {first.stage} is "
            f"{first.kind.value} of microbatch {first.microbatch} on virtual stage {first.virtual_stage}; "
            "change the order of that stage"
        )


def running(graph: TaskGraph, orders: Sequence[Sequence[int]], links: Sequence[Sequence[Use]] = ()) -> list[int]:
    """Return the ops in ``orders``, and the tasks beside the stages' compute that run with them.

    Of tasks that a choice decides, those run that ``links`` name.
    """
    ordered = [task for order in orders for task in order]
    on_compute = {task for ops in graph.resources for task in ops}
    named = {use.task for uses in links for use in uses}
    beside = (i for i in range(len(graph.tasks)) if i not in on_compute)
    return [*ordered, *(i for i in beside if graph.tasks[i].choice is None or i in named)]


class Arcs:
    """Hold what each running task waits for. A join is a node of its own, of no length, with a negative number.

    Attributes:
        ready_at: For each node, ticks before which it cannot start.
        waiting: For each node, the number of its predecessors.
        successors: For each node (node after it, ticks from its start to the other's at least).
        windows: Some link is used by a part of an op, so that others may come in between.
    """

    def __init__(self, graph: TaskGraph, orders: Sequence[Sequence[int]], links: Sequence[Sequence[Use]]) -> None:
        self.graph = graph
        self.windows = any(use.ticks != graph.tasks[use.task].duration_ticks for uses in links for use in uses)
        tasks = running(graph, orders, links)
        runs = set(tasks)
        nodes = [*tasks, *(-1 - j for j in range(len(graph.joins)))]
        self.ready_at = {node: graph.tasks[node].release_ticks if node >= 0 else 0 for node in nodes}
        self.waiting = dict.fromkeys(nodes, 0)
        self.successors: dict[int, list[tuple[int, int]]] = {node: [] for node in nodes}
        self._precedences(runs)
        self._orders(orders)
        self._links(links, runs)
        self._joins(runs)

    def _precedences(self, runs: set[int]) -> None:
        for before in runs:
            for after, lag_ticks in self.graph.successors[before]:
                if after in runs:
                    self._let_wait(after, before, lag_ticks)

    def _orders(self, orders: Sequence[Sequence[int]]) -> None:
        for order in orders:
            for before, after in pairwise(order):
                self._let_wait(after, before, 0)

    def _links(self, links: Sequence[Sequence[Use]], runs: set[int]) -> None:
        for uses in links:
            for use, later in pairwise([use for use in uses if use.task in runs]):
                if use.task != later.task:
                    self._add(use.task, later.task, use.offset_ticks + use.ticks - later.offset_ticks)

    def ticks(self, task: int) -> int:
        """Return how long a task takes, in ticks."""
        return self.graph.tasks[task].duration_ticks

    def _joins(self, runs: set[int]) -> None:
        for j, join in enumerate(self.graph.joins):
            for before in runs.intersection(join.before):
                self._let_wait(-1 - j, before, join.lag_ticks)
            for after in runs.intersection(join.after):
                self._add(-1 - j, after, 0)

    def _let_wait(self, after: int, before: int, lag_ticks: int) -> None:
        """Let a node start no earlier than ``lag_ticks`` after the end of the task ``before``."""
        self._add(before, after, self.graph.tasks[before].duration_ticks + lag_ticks)

    def _add(self, before: int, after: int, weight: int) -> None:
        """Add an arc whose weight counts from start to start."""
        self.successors[before].append((after, weight))
        self.waiting[after] += 1

    def starts(self) -> dict[int, int]:
        """Return the earliest start of every node, in ticks.

        Raises:
            DeadlockError: Some nodes wait for each other in a circle.
        """
        starts = dict(self.ready_at)
        for node in self._order:
            start = starts[node]
            for after, weight in self.successors[node]:
                if starts[after] < start + weight:
                    starts[after] = start + weight
        if self.windows:
            reach = {node: [start] for node, start in starts.items()}
            self._settle(reach)
            return {node: start for node, (start,) in reach.items()}
        return starts

    def longest_paths(self, sources: Sequence[int]) -> dict[int, list[int]]:
        """Return for each node the longest path from each of ``sources``, in ticks; far below 0: there is none."""
        reach = {node: [_NO_PATH] * len(sources) for node in self.waiting}
        for n, source in enumerate(sources):
            reach[source][n] = 0
        for node in self._order:
            self._pass_on(node, reach)
        if self.windows:
            self._settle(reach)
        return reach

    def _pass_on(self, node: int, reach: dict[int, list[int]]) -> bool:
        """Raise the vectors of a node's successors to what arrives from it; return whether any was lower."""
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
        """Return the nodes, each after all that it waits for.

        Where links are used by parts of ops, there may be circles that hold nobody up: their nodes come last, in any
        order, and ``_settle`` decides.
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
        """Pass vectors on along all arcs until nothing changes; a circle that holds somebody up never ends."""
        for _ in range(len(reach) + 1):
            changed = [node for node in reach if self._pass_on(node, reach)]
            if not changed:
                return
        raise DeadlockError(self.graph, [node for node in changed if node >= 0])
