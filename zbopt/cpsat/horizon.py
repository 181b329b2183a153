"""[D2] The latest end of a task in some schedule within the horizon."""

from __future__ import annotations

from zbopt.bounds.relax import Relaxed
from zbopt.bounds.stage import LeastTimes
from zbopt.graph import TaskGraph
from zbopt.problem.instance import Objective


def latest_ends(problem: Relaxed, horizon: int, *, windows_join: bool) -> tuple[int, ...]:
    """Return by stage the latest end of its tasks in some schedule whose objective value is at most ``horizon`` ticks.

    Under ``max_stage_span`` each stage has a window of that length. A stage's first op comes before the last gradient
    that it sends to the stage before, which has to use it within its own window [D2]; so the windows overlap.

    Args:
        problem: The task graph.
        horizon: Largest objective value allowed, in ticks.
        windows_join: Use the argument of [D2] that the windows of all stages form one interval; else the ends are later
            than any that are needed.
    """
    instance = problem.graph.instance
    if instance.objective is Objective.MAKESPAN:
        return (horizon,) * instance.stages
    # What lies outside all windows: waiting for the last input, reductions that no O waits for.
    outside = max(instance.input_ready_ticks or (0,)) + instance.iterations * sum(instance.reduction_ticks or ())
    if instance.objective is Objective.PERIOD:
        # One window a stage from its first start to that of the last iteration, and the last iteration itself.
        outside += (instance.iterations - 1) * horizon + one_by_one(problem.graph)
    if not windows_join:
        outside += instance.iterations * one_by_one(problem.graph)
    if not windows_join or not instance.is_linear or not instance.is_simple or instance.objective is Objective.PERIOD:
        return (horizon * instance.stages + outside,) * instance.stages
    slices = LeastTimes(instance)
    ends = [horizon + outside]
    for stage in range(1, instance.stages):
        before_last_gradient = slices.passing_work(stage)
        delay = horizon - before_last_gradient - instance.lag_ticks(stage - 1, stage) - slices.backward_work(stage - 1)
        ends.append(ends[-1] + max(0, delay))
    return tuple(ends)


def one_by_one(graph: TaskGraph) -> int:
    """Return the ticks in which one iteration can always be run: every op and transfer after the other."""
    first = [task.duration_ticks for task in graph.tasks if task.iteration == 0]
    return sum(first) + sum(edge.lag_ticks for edge in graph.precedences) + sum(j.lag_ticks for j in graph.joins)
