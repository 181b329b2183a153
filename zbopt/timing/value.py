"""What a schedule is worth, by the starts of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from zbopt.graph import TaskGraph
from zbopt.problem.instance import Objective


def objective_value(graph: TaskGraph, starts: Mapping[int, int]) -> int:
    """Value of the instance's objective at ``starts``, in ticks."""
    if graph.instance.objective is Objective.PERIOD:
        return _period(graph, starts)
    ends = {i: start + graph.tasks[i].duration_ticks for i, start in starts.items()}
    if graph.instance.objective is Objective.MAX_STAGE_SPAN:
        rows = [[i for i in row if i in starts] for row in graph.resources]
        return max(max(ends[i] for i in row) - min(starts[i] for i in row) for row in rows if row)
    return max(ends.values()) - (min(starts.values()) if graph.instance.input_ready_ticks is None else 0)


def _period(graph: TaskGraph, starts: Mapping[int, int]) -> int:
    """[T6] The most that an iteration starts after the one before, on any stage."""
    longest = 0
    for row in graph.resources:
        firsts: dict[int, int] = {}
        for i in row:
            if i in starts:
                iteration = graph.tasks[i].iteration
                firsts[iteration] = min(starts[i], firsts.get(iteration, starts[i]))
        times = [firsts[iteration] for iteration in sorted(firsts)]
        longest = max([longest, *(after - before for before, after in pairwise(times))])
    return longest
