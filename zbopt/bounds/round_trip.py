"""Round trip: before the first gradient only forwards can run, after the last forward only what is live.

models/bounds.md, "round trip". Both windows are as long as the way to the last virtual stage and back, and memory
limits the work that fits into them.
"""

from __future__ import annotations

from collections.abc import Iterator

from zbopt.bounds.stage import (
    LeastTimes,
    held_for_weight,
    optimizer_tail,
    over_stages,
    room_beside_forward,
    slots,
)
from zbopt.bounds.understood import ONE_KIND, UNLIKE, understands
from zbopt.graph.memory import least_left
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective


# Not overlapped ops: a pair fits more work into both windows than the load counts.
@understands(ONE_KIND | UNLIKE)
def round_trip(instance: Instance) -> Bound | None:
    """Return the largest bound over the stages that hold one virtual stage; ``None`` if none does."""
    value = over_stages(instance, _of_stage)
    return None if value is None else Bound(value, "bound:round-trip")


def _of_stage(times: LeastTimes, stage: int) -> int | None:
    instance = times.instance
    virtual_stage, *others = instance.virtual_stages_of(stage)
    if others:
        return None
    head = times.heads[virtual_stage] if instance.objective is Objective.MAKESPAN else 0
    return head + times.work(stage) + idle_ticks(times, virtual_stage) + optimizer_tail(instance, stage)


def idle_ticks(times: LeastTimes, virtual_stage: int) -> int:
    """Return the least idle time of a stage of one virtual stage, between its first start and its last gradient op."""
    instance = times.instance
    m, trip = len(instance.microbatches_of(virtual_stage)), times.round_trips[virtual_stage]
    forward = times.forward(virtual_stage, most=True) + times.again(virtual_stage, most=True)
    count = slots(instance, virtual_stage)
    if count is None:
        # All forwards may come before the first gradient: the two windows may be one.
        return max(0, trip - m * forward)
    before_first = max(0, trip - count * forward)
    after_last = max(0, trip - forward - _most_live_work(times, virtual_stage))
    return before_first + after_last


def _most_live_work(times: LeastTimes, virtual_stage: int) -> int:
    """Return the most backward work of other microbatches that can be live at the start of an F."""
    backward, weight = times.backward_work(virtual_stage, most=True), times.weight(virtual_stage)
    backward += times.again(virtual_stage, most=True)
    counts = _most_live(times.instance, virtual_stage)
    return max((backward * begun + weight * waiting for begun, waiting in counts), default=0)


def _most_live(instance: Instance, virtual_stage: int) -> Iterator[tuple[int, int]]:
    """Yield each number of microbatches that may be before their backward beside one F, and the most that await W."""
    each, held = least_left(instance, virtual_stage), held_for_weight(instance, virtual_stage)
    room = room_beside_forward(instance, virtual_stage)
    others = len(instance.microbatches_of(virtual_stage)) - 1
    for begun in range(others + 1):
        left = room - begun * each
        if left < 0:
            return
        most = others - begun if held == 0 else int(left / held)
        yield begun, 0 if instance.has_lone_w(virtual_stage) else min(most, others - begun)
