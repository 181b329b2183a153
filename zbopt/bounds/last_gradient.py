"""Last gradient: a stage that has sent it has little left to do, but the stages before it still have their way to go.

models/bounds.md, "last gradient". What is left are W, and memory limits how many may wait; so the rest of the stage's
work comes before its last gradient op, and after that the gradient's way to the first virtual stage and the step's end.
"""

from __future__ import annotations

from fractions import Fraction

from zbopt.bounds.round_trip import idle_ticks as idle_in_round_trip
from zbopt.bounds.stage import LeastTimes, Waiting, held_for_weight, most_work, optimizer_tail, over_stages
from zbopt.bounds.turns import idle_ticks as idle_in_turns
from zbopt.bounds.understood import ONE_KIND, UNLIKE, is_understood, understands
from zbopt.graph.memory import added_by_b, static_memory, whole_memory
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective


# Not overlapped ops: the idle time of the round trip and of turns does not hold for them.
@understands(ONE_KIND | UNLIKE)
def last_gradient(instance: Instance) -> Bound | None:
    """Return the largest bound over the stages that send gradients on; ``None`` without a cap, or for spans."""
    has_say = instance.objective is Objective.MAKESPAN and instance.memory_cap is not None
    value = over_stages(instance, _of_stage) if has_say else None
    return None if value is None else Bound(value, "bound:last-gradient")


def _of_stage(times: LeastTimes, stage: int) -> int | None:
    instance = times.instance
    if instance.objective is not Objective.MAKESPAN:
        return times.work(stage) + optimizer_tail(instance, stage)
    first, *others = instance.virtual_stages_of(stage)
    before = instance.previous_of(first)
    # Of several virtual stages it takes the idle time of turns, which does not understand unlike microbatches.
    if before is None or (others and not is_understood(instance, ONE_KIND)):
        return None
    idle = idle_in_turns(times, stage) if others else idle_in_round_trip(times, first)
    done = times.heads[first] + times.work(stage) + idle - _most_work_left(times, stage)
    return done + instance.lag_ticks(first, before) + times.gradient_tails[before]


def _most_work_left(times: LeastTimes, stage: int) -> int:
    """Return the most work that may follow the last gradient op of the stage's first virtual stage."""
    instance = times.instance
    first = instance.virtual_stages_of(stage)[0]
    left = [0]
    if instance.may_fuse:
        left.append(_most_waiting(times, stage, Fraction(0)))
    if instance.may_split:
        left.append(_most_waiting(times, stage, added_by_b(instance, first)) + times.weight(first))
    return max(left)


def _most_waiting(times: LeastTimes, stage: int, added: Fraction) -> int:
    """Return the most work of W that wait beside the last gradient op, which itself adds ``added``."""
    instance = times.instance
    assert instance.memory_cap is not None, "asked only where memory limits"
    virtual_stages = instance.virtual_stages_of(stage)
    first = virtual_stages[0]
    taken = static_memory(instance, stage) + whole_memory(instance, first) + added
    kinds = [
        Waiting(held_for_weight(instance, v), times.weight(v), len(instance.microbatches_of(v)) - (v == first))
        for v in virtual_stages
    ]
    return most_work(instance.memory_cap[stage] - taken, kinds)
