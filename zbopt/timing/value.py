"""The objective value of a schedule, by the starts of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from zbopt.graph import TaskGraph
from zbopt.problem.instance import Objective


def objective_value(graph: TaskGraph, starts: Mapping[int, int]) -> int:
    """Return the value of the instance's objective at ``starts``, in ticks."""
    if graph.instance.objective is Objective.PERIOD:
        return _period(graph, starts)
    ends = {i: start + graph.tasks[i].duration_ticks for i, start in starts.items()}
    if graph.instance.objective is Objective.MAX_STAGE_SPAN:
        stages = [[i for i in ops if i in starts] for ops in graph.resources]
        return max(max(ends[i] for i in ops) - min(starts[i] for i in ops) for ops in stages if ops)
    return max(ends.values()) - (min(starts.values()) if graph.instance.input_ready_ticks is None else 0)


def _period(graph: TaskGraph, starts: Mapping[int, int]) -> int:
    """[T6] Return the largest time between the first starts of two consecutive iterations on a stage, in ticks."""
    longest = 0
    for ops in graph.resources:
        firsts: dict[int, int] = {}
        for i in ops:
            if i in starts:
                iteration = graph.tasks[i].iteration
                firsts[iteration] = min(starts[i], firsts.get(iteration, starts[i]))
        times = [firsts[iteration] for iteration in sorted(firsts)]
        longest = max([longest, *(after - before for before, after in pairwise(times))])
    return longest
