"""Round trip: before the first gradient only forwards can run, after the last forward only what is live.

models/bounds.md, "round trip". Both windows are as long as the way to the last virtual stage and back, and memory
limits the work that fits into them.
"""

from __future__ import annotations

from collections.abc import Iterator

from zbopt.bounds.stage import (
    Slices,
    held_for_weight,
    optimizer_tail,
    over_stages,
    room_beside_forward,
    slots,
)
from zbopt.graph.memory import least_left
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective


def round_trip(instance: Instance) -> Bound | None:
    """The largest over the stages that hold one virtual stage; ``None`` if none does."""
    value = over_stages(instance, _of_stage)
    return None if value is None else Bound(value, "bound:round-trip")


def _of_stage(slices: Slices, stage: int) -> int | None:
    instance = slices.instance
    virtual_stage, *others = instance.virtual_stages_of(stage)
    if others or instance.overlapped_ticks is not None:
        return None
    head = slices.heads[virtual_stage] if instance.objective is Objective.MAKESPAN else 0
    return head + slices.work(stage) + idle_ticks(slices, virtual_stage) + optimizer_tail(instance, stage)


def idle_ticks(slices: Slices, virtual_stage: int) -> int:
    """Least idle time of a stage of one virtual stage, between its first start and its last gradient op."""
    instance = slices.instance
    m, trip = len(instance.microbatches_of(virtual_stage)), slices.round_trips[virtual_stage]
    forward = slices.forward(virtual_stage, most=True) + slices.again(virtual_stage, most=True)
    count = slots(instance, virtual_stage)
    if count is None:
        # All forwards may come before the first gradient: the two windows may be one.
        return max(0, trip - m * forward)
    before_first = max(0, trip - count * forward)
    after_last = max(0, trip - forward - _most_live_work(slices, virtual_stage))
    return before_first + after_last


def _most_live_work(slices: Slices, virtual_stage: int) -> int:
    """Most backward work of other microbatches that can be live at the start of an F."""
    whole, rest = slices.backward_work(virtual_stage, most=True), slices.weight(virtual_stage)
    whole += slices.again(virtual_stage, most=True)
    return max((whole * a + rest * b for a, b in _live_pairs(slices.instance, virtual_stage)), default=0)


def _live_pairs(instance: Instance, virtual_stage: int) -> Iterator[tuple[int, int]]:
    """For each number a of microbatches before their backward beside one F, the most b that wait for W only."""
    each, held = least_left(instance, virtual_stage), held_for_weight(instance, virtual_stage)
    room = room_beside_forward(instance, virtual_stage)
    others = len(instance.microbatches_of(virtual_stage)) - 1
    for a in range(others + 1):
        rest = room - a * each
        if rest < 0:
            return
        most = others - a if held == 0 else int(rest / held)
        yield a, 0 if instance.has_lone_w(virtual_stage) else min(most, others - a)
