"""Last gradient: a stage that has sent it has little left to do, but the stages before it still have their way to go.

models/bounds.md, "last gradient". What is left are W, and memory limits how many may wait; so the rest of the stage's
work comes before its last gradient op, and after that the gradient's way to the first virtual stage and the step's end.
"""

from __future__ import annotations

from fractions import Fraction

from zbopt.bounds import round_trip, turns
from zbopt.bounds.stage import Slices, Waiting, held_for_weight, most_work, optimizer_tail, over_stages
from zbopt.graph.memory import added_by_b, static_memory, whole_memory
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective


def last_gradient(instance: Instance) -> Bound | None:
    """The largest over the stages that send gradients on and have a cap; ``None`` without one, or for spans."""
    stated = instance.objective is Objective.MAKESPAN and instance.overlapped_ticks is None
    value = over_stages(instance, _of_stage) if stated and instance.memory_cap is not None else None
    return None if value is None else Bound(value, "bound:last-gradient")


def _of_stage(slices: Slices, stage: int) -> int | None:
    instance = slices.instance
    if instance.objective is not Objective.MAKESPAN:
        return slices.work(stage) + optimizer_tail(instance, stage)
    first, *others = instance.virtual_stages_of(stage)
    before = instance.previous_of(first)
    if before is None or (others and not (instance.alike and instance.routes is None)):
        return None
    idle = turns.idle_ticks(slices, stage) if others else round_trip.idle_ticks(slices, first)
    done = slices.heads[first] + slices.work(stage) + idle - _most_left(slices, stage)
    return done + instance.lag_ticks(first, before) + slices.gradient_tails[before]


def _most_left(slices: Slices, stage: int) -> int:
    """Most work that may follow the last gradient op of the stage's first virtual stage."""
    instance = slices.instance
    first = instance.virtual_stages_of(stage)[0]
    left = [0]
    if instance.fused_backward_ticks is not None:
        left.append(_most_waiting(slices, stage, Fraction(0)))
    if instance.may_split:
        left.append(_most_waiting(slices, stage, added_by_b(instance, first)) + slices.weight(first))
    return max(left)


def _most_waiting(slices: Slices, stage: int, added: Fraction) -> int:
    """Most work of W that wait beside the last gradient op, which itself adds ``added``."""
    instance = slices.instance
    assert instance.memory_cap is not None, "asked only where memory limits"
    held_here = instance.virtual_stages_of(stage)
    taken = static_memory(instance, stage) + whole_memory(instance, held_here[0]) + added
    kinds = [
        Waiting(held_for_weight(instance, v), slices.weight(v), len(instance.microbatches_of(v)) - (v == held_here[0]))
        for v in held_here
    ]
    return most_work(instance.memory_cap[stage] - taken, kinds)
