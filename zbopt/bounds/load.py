"""Load: a stage starts after its first input and then has all its work to do (models/bounds.md, "load")."""

from __future__ import annotations

from zbopt.bounds.stage import LeastTimes, optimizer_step, optimizer_tail, over_stages
from zbopt.bounds.understood import EVERYTHING, ONE_KIND, is_understood, understands
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Communication, Instance, Objective


@understands(EVERYTHING)
def load(instance: Instance) -> Bound:
    """Return the largest bound over the stages: head (makespan only), work of all microbatches, optimizer step."""
    value = over_stages(instance, _of_stage)
    assert value is not None, "every stage has work"
    after_inputs = [_after_inputs(instance, stage) for stage in range(instance.stages)]
    return Bound(max([value, *after_inputs]), "bound:load")


def _of_stage(times: LeastTimes, stage: int) -> int:
    instance = times.instance
    work, virtual_stages = times.work(stage) - times.overlap(stage), instance.virtual_stages_of(stage)
    if instance.objective is not Objective.MAKESPAN:
        return work + optimizer_tail(instance, stage)
    loaded = min(times.heads[v] for v in virtual_stages) + work + optimizer_tail(instance, stage)
    if instance.communication is not Communication.BLOCKING:
        return loaded
    first = min(times.heads[v] - _lag_in(instance, v) for v in virtual_stages)
    # A transfer may go on while gradients are reduced and stages joined, but not during O.
    return max(loaded, first + work + _blocked(instance, stage) + optimizer_step(instance, stage))


def _lag_in(instance: Instance, virtual_stage: int) -> int:
    """Return the time of the transfer that brings the input of a virtual stage."""
    before = instance.previous_of(virtual_stage)
    return 0 if before is None else instance.lag_ticks(before, virtual_stage)


def _blocked(instance: Instance, stage: int) -> int:
    """Return the time of all transfers that hold a stage; the first one may come before its first op."""
    blocked = 0
    for v, stage_of_v in enumerate(instance.stage_of):
        before = instance.previous_of(v)
        if before is not None and stage in (stage_of_v, instance.stage_of[before]):
            each = instance.lag_ticks(before, v) + instance.lag_ticks(v, before)
            blocked += len(instance.microbatches_of(v)) * each
    return blocked


def _after_inputs(instance: Instance, stage: int) -> int:
    """Return the least value by what is left to do on a stage when the input of some microbatch is ready at last.

    It counts on microbatches that are alike: those that come late have as much work as any.
    """
    ready = instance.input_ready_ticks
    if ready is None or instance.objective is not Objective.MAKESPAN or not is_understood(instance, ONE_KIND):
        return 0
    times = LeastTimes(instance)
    head, work = min(times.heads[v] for v in instance.virtual_stages_of(stage)), times.work(stage)
    each = work // instance.microbatches
    remaining = max(time + (len(ready) - j) * each for j, time in enumerate(ready))
    return head + remaining + optimizer_tail(instance, stage)
