"""Last forward: from it on a stage can only finish what is live, but its gradient still has the whole way to go.

models/bounds.md, "last forward". What is live is within memory, and so is the work that it leaves to the stage until
the step ends. Before the first gradient the same holds of forwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from zbopt.bounds.stage import LeastTimes, Waiting, held_for_weight, most_work, optimizer_tail, over_stages
from zbopt.bounds.turns import before_first_gradient
from zbopt.bounds.understood import ONE_KIND, understands
from zbopt.graph.memory import least_left, static_memory, whole_memory
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective


# Not unlike microbatches: the last F of a stage is on its last virtual stage only if all pass all of them. Not
# overlapped ops: a pair does more work after the last F than the load counts.
@understands(ONE_KIND)
def last_forward(instance: Instance) -> Bound | None:
    """Return the largest bound over the stages; every stage has one."""
    value = over_stages(instance, _of_stage)
    return None if value is None else Bound(value, "bound:last-forward")


def _of_stage(times: LeastTimes, stage: int) -> int:
    instance = times.instance
    if instance.objective is Objective.MAKESPAN or stage != instance.stage_of[0]:
        return _of_itself(times, stage)
    return max(_of_itself(times, stage), *(_of_first_stage(times, other) for other in range(instance.stages)))


def _of_itself(times: LeastTimes, stage: int) -> int:
    """Return the bound by what ``stage`` itself has left to do after its last F."""
    instance = times.instance
    head = times.heads[instance.virtual_stages_of(stage)[0]] if instance.objective is Objective.MAKESPAN else 0
    step = optimizer_tail(instance, stage)
    if instance.objective is Objective.MAKESPAN:
        left = times.gradient_tails[instance.virtual_stages_of(stage)[-1]]
    else:
        left = _own_tail(times, stage) + optimizer_tail(instance, stage)
    before, after = before_first_gradient(times, stage), max(0, _after_last_forward(times, stage, left))
    idle = before + max(step, after) if _are_apart(instance, stage) else max(before + step, after)
    return head + times.work(stage) + idle


def _of_first_stage(times: LeastTimes, stage: int) -> int:
    """Return the least span of the stage of the first virtual stage, by what ``stage`` has to do in between."""
    virtual_stages = times.instance.virtual_stages_of(stage)
    before = before_first_gradient(times, stage) if _are_apart(times.instance, stage) else 0
    after = _after_last_forward(times, stage, times.tails_on_first[virtual_stages[-1]])
    return times.heads[virtual_stages[0]] + times.work(stage) + before + after


def _are_apart(instance: Instance, stage: int) -> bool:
    """Return whether the last F of ``stage`` starts only after its first gradient op."""
    forwards = instance.microbatches * len(instance.virtual_stages_of(stage))
    return _most_before_gradient(instance, stage) < forwards


def _after_last_forward(times: LeastTimes, stage: int, left: int) -> int:
    """Return the least time from the start of the stage's last F to the end that counts, less the most work in it.

    Args:
        times: Least times of the instance.
        stage: The stage.
        left: Least time from the arrival of that F's gradient to the end that counts.
    """
    instance = times.instance
    last = instance.virtual_stages_of(stage)[-1]
    own = times.forward(last) + times.again(last) + times.backward_work(last)
    kinds = list(_live(times, stage))
    room = Fraction(0)
    if instance.memory_cap is None:
        room = sum((kind.memory * kind.most for kind in kinds), room)
    else:
        room = instance.memory_cap[stage] - static_memory(instance, stage) - whole_memory(instance, last)
    return times.round_trips[last] + left - own - most_work(room, kinds)


def _own_tail(times: LeastTimes, stage: int) -> int:
    """Return the least time from a gradient's arrival on the last virtual stage of stage to the stage's last end."""
    virtual_stages = times.instance.virtual_stages_of(stage)
    longest = way = 0
    for v in range(virtual_stages[-1], virtual_stages[0] - 1, -1):
        if v in virtual_stages:
            longest = max(longest, way + times.backward_work(v))
        if v > 0:
            way += times.gradient(v) + times.instance.lag_ticks(v, v - 1)
    return longest


def _live(times: LeastTimes, stage: int) -> Iterator[Waiting]:
    """Yield what can be live beside the last F: microbatches before their gradient op, and those that wait for a W."""
    instance = times.instance
    virtual_stages = instance.virtual_stages_of(stage)
    for v in virtual_stages:
        most = instance.microbatches - (v == virtual_stages[-1])
        yield Waiting(least_left(instance, v), times.again(v) + times.backward_work(v), most)
        if instance.has_b(v):
            yield Waiting(held_for_weight(instance, v), times.weight(v), most)


def _most_before_gradient(instance: Instance, stage: int) -> int:
    """Return the most forwards that a stage can start before its first gradient op."""
    virtual_stages = instance.virtual_stages_of(stage)
    most = instance.microbatches * len(virtual_stages)
    least = min(least_left(instance, v) for v in virtual_stages)
    if instance.memory_cap is None or least == 0:
        return most
    room = (
        instance.memory_cap[stage]
        - static_memory(instance, stage)
        - min(whole_memory(instance, v) for v in virtual_stages)
    )
    return min(most, 1 + int(room / least))
