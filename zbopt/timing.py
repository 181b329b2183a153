"""An order of tasks on each stage -> earliest starts. Finds deadlock: an order that waits for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from zbopt.graph import TaskGraph, expand
from zbopt.instance import Instance, Kind, Objective
from zbopt.schedule import Event, Provenance, Schedule


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


def earliest_starts(
    graph: TaskGraph, orders: Sequence[Sequence[int]], release: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Earliest start of every task in ``orders``, in ticks; tasks in no order do not run.

    Args:
        graph: The task graph.
        orders: For each stage, its tasks in the order in which they run.
        release: Ticks before which a task must not start; ``None`` or absent: 0.

    Raises:
        DeadlockError: The orders contradict the precedences.
    """
    arcs = _Arcs(graph, orders)
    arcs.ready_at.update(release or {})
    starts: dict[int, int] = {}
    while arcs.ready:
        task = arcs.ready.pop()
        starts[task] = arcs.ready_at[task]
        end = starts[task] + (graph.tasks[task].duration_ticks if task >= 0 else 0)
        for after, lag in arcs.successors[task]:
            arcs.arrive(after, end + lag)
    stuck = [task for order in orders for task in order if task not in starts]
    if stuck:
        raise DeadlockError(graph, stuck)
    return {task: start for task, start in starts.items() if task >= 0}


class _Arcs:
    """What each running task waits for. A join is a node of its own, of no length, with a negative number."""

    def __init__(self, graph: TaskGraph, orders: Sequence[Sequence[int]]) -> None:
        runs = {task for order in orders for task in order}
        nodes = [*runs, *(-1 - j for j in range(len(graph.joins)))]
        self.ready_at = dict.fromkeys(nodes, 0)
        self.waiting = dict.fromkeys(nodes, 0)
        self.successors: dict[int, list[tuple[int, int]]] = {node: [] for node in nodes}
        for edge in graph.precedences:
            if edge.before in runs and edge.after in runs:
                self._add(edge.before, edge.after, edge.lag_ticks)
        for order in orders:
            for before, after in pairwise(order):
                self._add(before, after, 0)
        for j, join in enumerate(graph.joins):
            for before in runs.intersection(join.before):
                self._add(before, -1 - j, 0)
            for after in runs.intersection(join.after):
                self._add(-1 - j, after, 0)
        self.ready = [node for node, count in self.waiting.items() if count == 0]

    def _add(self, before: int, after: int, lag: int) -> None:
        self.successors[before].append((after, lag))
        self.waiting[after] += 1

    def arrive(self, task: int, time: int) -> None:
        """One of the things that ``task`` waits for is there at ``time``."""
        self.ready_at[task] = max(self.ready_at[task], time)
        self.waiting[task] -= 1
        if self.waiting[task] == 0:
            self.ready.append(task)


def least_span_starts(graph: TaskGraph, orders: Sequence[Sequence[int]]) -> dict[int, int]:
    """Starts that give ``orders`` the least largest stage span, each as early as that span allows.

    A stage's first start may have to wait for its own last end less the span. Between stages these waits form a
    small graph whose arc from a to b weighs the longest path from a's first start to b's last end; the least span is
    the largest mean weight of its cycles.

    Args:
        graph: The task graph.
        orders: For each stage, its tasks in the order in which they run.

    Raises:
        DeadlockError: The orders contradict the precedences.
    """
    earliest = earliest_starts(graph, orders)
    rows = [row for row in orders if row]
    paths = _first_to_last(graph, rows, orders)
    span = _least_cycle_free(paths)
    firsts = np.array([earliest[row[0]] for row in rows])
    while True:
        later = np.maximum(firsts, (firsts[:, None] + paths - span).max(axis=0))
        if (later == firsts).all():
            break
        firsts = later
    return earliest_starts(graph, orders, {row[0]: int(first) for row, first in zip(rows, firsts, strict=True)})


_NO_PATH = -(2**61)


def _first_to_last(
    graph: TaskGraph, rows: Sequence[Sequence[int]], orders: Sequence[Sequence[int]]
) -> NDArray[np.int64]:
    """[a, b]: longest path from the first start of row a to the last end of row b, in ticks."""
    arcs = _Arcs(graph, orders)
    reach = {node: np.full(len(rows), _NO_PATH, dtype=np.int64) for node in arcs.waiting}
    for a, row in enumerate(rows):
        reach[row[0]][a] = 0
    while arcs.ready:
        node = arcs.ready.pop()
        here = reach[node] + (graph.tasks[node].duration_ticks if node >= 0 else 0)
        for after, lag in arcs.successors[node]:
            np.maximum(reach[after], here + lag, out=reach[after])
            arcs.arrive(after, 0)
    ends = [reach[row[-1]] + graph.tasks[row[-1]].duration_ticks for row in rows]
    return np.stack(ends, axis=1)


def _least_cycle_free(paths: NDArray[np.int64]) -> int:
    """Least integer that, taken from every arc, leaves no cycle of positive weight."""
    low, high = int(paths.diagonal().max()), int(paths.max())
    while low < high:
        middle = (low + high) // 2
        if _has_positive_cycle(np.maximum(paths - middle, _NO_PATH)):
            low = middle + 1
        else:
            high = middle
    return low


def _has_positive_cycle(weights: NDArray[np.int64]) -> bool:
    longest = weights.copy()
    for k in range(len(longest)):
        np.maximum(longest, np.maximum(longest[:, k, None] + longest[None, k, :], _NO_PATH), out=longest)
        if (longest.diagonal() > 0).any():
            return True
    return False


def schedule_of(graph: TaskGraph, starts: Mapping[int, int], provenance: Provenance) -> Schedule:
    """The schedule in which the tasks of ``starts`` begin at the given ticks, by stage and time."""
    order = sorted(starts, key=lambda i: (graph.tasks[i].stage, starts[i], graph.tasks[i].duration_ticks))
    return Schedule(
        instance=graph.instance,
        provenance=provenance,
        events=tuple(
            Event(
                kind=(task := graph.tasks[i]).kind,
                stage=task.stage,
                virtual_stage=task.virtual_stage,
                microbatch=task.microbatch,
                start=starts[i],
                end=starts[i] + task.duration_ticks,
            )
            for i in order
        ),
    )


def schedule_in_order(
    instance: Instance, rows: Sequence[Sequence[tuple[Kind, int, int]]], provenance: Provenance
) -> Schedule:
    """The schedule that runs an order at the earliest starts, each stage's O last.

    Args:
        instance: The problem; its memory cap is not looked at.
        rows: For each stage (kind, virtual stage, microbatch), in the order in which they run.
        provenance: Where the order comes from.

    Raises:
        DeadlockError: The order contradicts the precedences.
    """
    graph = expand(instance)
    orders = [[graph.index[step] for step in row] for row in rows]
    for stage, order in enumerate(orders):
        step = graph.index.get((Kind.O, stage, None))
        if step is not None:
            order.append(step)
    place = least_span_starts if instance.objective is Objective.MAX_STAGE_SPAN else earliest_starts
    return schedule_of(graph, place(graph, orders), provenance)


def starts_of(graph: TaskGraph, schedule: Schedule) -> dict[int, int]:
    """Start of each task that ``schedule`` runs: the inverse of ``schedule_of``."""
    return {
        graph.index[e.kind, e.stage if e.virtual_stage is None else e.virtual_stage, e.microbatch]: e.start
        for e in schedule.events
    }
