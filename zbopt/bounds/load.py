"""Load: a stage starts after its first input and then has all its work to do (models/bounds.md, "load")."""

from __future__ import annotations

from zbopt.bounds.stage import Slices, optimizer_tail, over_stages
from zbopt.instance import Communication, Instance, Objective
from zbopt.result import Bound


def load(instance: Instance) -> Bound:
    """The largest over the stages of head (makespan only), work of all microbatches, and optimizer step."""
    value = over_stages(instance, _of_stage)
    assert value is not None, "every stage has work"
    late = [_after_input(instance, stage) for stage in range(instance.stages)]
    return Bound(max([value, *late]), "bound:load")


def _of_stage(slices: Slices, stage: int) -> int:
    instance = slices.instance
    work = instance.microbatches * slices.work(stage) + optimizer_tail(instance, stage)
    if instance.objective is not Objective.MAKESPAN:
        return work
    first = instance.virtual_stages_of(stage)[0]
    return slices.heads[first] + work + _blocked(instance, stage, first)


def _blocked(instance: Instance, stage: int, first: int) -> int:
    """Time of the transfers that hold a stage, where they do; the first one may come before its first op."""
    if instance.communication is not Communication.BLOCKING:
        return 0
    ends = [v for v in range(1, instance.virtual_stages) if stage in (instance.stage_of[v - 1], instance.stage_of[v])]
    each = sum(instance.lag_ticks(v - 1, v) + instance.lag_ticks(v, v - 1) for v in ends)
    return instance.microbatches * each - (instance.lag_ticks(first - 1, first) if first else 0)


def _after_input(instance: Instance, stage: int) -> int:
    """What is left to do on a stage when the input of some microbatch is ready at last."""
    ready = instance.input_ready_ticks
    if ready is None or instance.objective is not Objective.MAKESPAN:
        return 0
    slices = Slices(instance)
    head, work = slices.heads[instance.virtual_stages_of(stage)[0]], slices.work(stage)
    left = max(time + (len(ready) - j) * work for j, time in enumerate(ready))
    return head + left + optimizer_tail(instance, stage)
