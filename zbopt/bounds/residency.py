"""Residency: memory has so many slots, and each microbatch holds one for a whole round trip.

models/bounds.md, "residency". With k slots the forward of microbatch j + k waits for the release of microbatch j, so
the microbatches j, j + k, j + 2k, ... follow each other.
"""

from __future__ import annotations

from zbopt.bounds.stage import LeastTimes, held_for_weight, optimizer_tail, over_stages, slots
from zbopt.bounds.understood import EVERYTHING, understands
from zbopt.graph.memory import least_left
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective


# Overlapped ops too: the proof is a chain of waits, and no op becomes shorter by having another one beside it.
@understands(EVERYTHING)
def residency(instance: Instance) -> Bound | None:
    """Return the largest bound over the stages of one virtual stage; ``None`` if none is short of memory."""
    value = over_stages(instance, of_stage)
    return None if value is None else Bound(value, "bound:residency")


def of_stage(times: LeastTimes, stage: int) -> int | None:
    """Return what the residency of ``stage`` says of one iteration, in ticks; ``None``: nothing."""
    instance = times.instance
    virtual_stage, *others = instance.virtual_stages_of(stage)
    if others:
        return None
    count = slots(instance, virtual_stage)
    if count is None or count == 0:
        return None
    full_rounds, rest = divmod(len(instance.microbatches_of(virtual_stage)) - 1, count)
    slot_ticks = times.round_trips[virtual_stage] + _least_hold_after_gradient(times, virtual_stage)
    span = instance.objective is Objective.MAX_STAGE_SPAN
    head = 0 if span else times.heads[virtual_stage]
    own = times.backward_work(virtual_stage) + optimizer_tail(instance, stage)
    last = times.round_trips[virtual_stage] + (own if span else times.gradient_tails[virtual_stage])
    # The last round begins with the forward that waits for a slot; `rest` more forwards precede the last one.
    return head + full_rounds * slot_ticks + rest * times.forward(virtual_stage) + last


def _least_hold_after_gradient(times: LeastTimes, virtual_stage: int) -> int:
    """Return the least time from the gradient's arrival until another whole activation fits: B, or all the backward.

    Where less than a slot waits for W, one slot of k is free enough at the earliest when B has ended: k whole
    activations and the new one are more than k.
    """
    instance = times.instance
    until_w = held_for_weight(instance, virtual_stage) >= least_left(instance, virtual_stage)
    if until_w or instance.has_lone_w(virtual_stage):
        return times.backward_work(virtual_stage)
    return times.gradient(virtual_stage)
