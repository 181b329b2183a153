"""What one stage sees of the rest: its work, the least time before it, and the round trip behind it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from zbopt.instance import Barrier, Instance


@dataclass(frozen=True)
class Slices:
    """Least times of one microbatch along the route of ``instance``, in ticks."""

    instance: Instance

    def forward(self, virtual_stage: int) -> int:
        """Time of F."""
        return self.instance.forward_ticks[virtual_stage]

    def gradient(self, virtual_stage: int) -> int:
        """Least time from the arriving gradient to the gradient of the input: B, or BW where that may run instead."""
        times = (self.instance.backward_ticks, self.instance.fused_backward_ticks)
        return min((row[virtual_stage] or 0 for row in times if row is not None), default=0)

    def weight(self, virtual_stage: int) -> int:
        """Time of W where the backward is split, else 0."""
        return self.instance.weight_ticks[virtual_stage] if self.instance.weight_ticks is not None else 0

    def backward_work(self, virtual_stage: int) -> int:
        """Least time that the backward of one microbatch takes: B and W, or BW."""
        instance = self.instance
        options = []
        if instance.backward_ticks is not None:
            options.append((instance.backward_ticks[virtual_stage] or 0) + self.weight(virtual_stage))
        fused = (instance.fused_backward_ticks or [None] * instance.virtual_stages)[virtual_stage]
        if fused is not None:
            options.append(fused)
        return min(options)

    def work(self, stage: int) -> int:
        """Least time that one microbatch takes on ``stage``."""
        return sum(self.forward(v) + self.backward_work(v) for v in self.instance.virtual_stages_of(stage))

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """Least time from the first start of all to the start of F, by virtual stage."""
        heads = [0]
        for v in range(1, self.instance.virtual_stages):
            heads.append(heads[-1] + self.forward(v - 1) + self.instance.lag_ticks(v - 1, v))
        return tuple(heads)

    @cached_property
    def round_trips(self) -> tuple[int, ...]:
        """Least time from the start of F to the arrival of its gradient on the same virtual stage."""
        last = self.instance.virtual_stages - 1
        trips = [self.forward(last)]
        for v in range(last - 1, -1, -1):
            lags = self.instance.lag_ticks(v, v + 1) + self.instance.lag_ticks(v + 1, v)
            trips.append(self.forward(v) + trips[-1] + self.gradient(v + 1) + lags)
        return tuple(reversed(trips))

    @cached_property
    def gradient_tails(self) -> tuple[int, ...]:
        """Least time from the arrival of a gradient on a virtual stage to the end of all that follows, O included.

        With a global barrier every O follows; without, only those of the stages that the gradient passes.
        """
        instance = self.instance
        own_step = instance.barrier is not Barrier.GLOBAL
        tails: list[int] = []
        for v in range(instance.virtual_stages):
            own = self.backward_work(v) + (optimizer_tail(instance, instance.stage_of[v]) if own_step else 0)
            onward = self.gradient(v) + instance.lag_ticks(v, v - 1) + tails[-1] if v else 0
            tails.append(max(own, onward))
        last_step = 0 if own_step else max(instance.optimizer_ticks or (0,))
        return tuple(tail + last_step for tail in tails)


def slots(instance: Instance, virtual_stage: int) -> int | None:
    """Whole activations that fit under the cap of a stage of one virtual stage; ``None``: more than microbatches."""
    size = instance.activation[virtual_stage]
    if instance.memory_cap is None or size == 0:
        return None
    count = int(instance.memory_cap[instance.stage_of[virtual_stage]] / size)
    return None if count >= instance.microbatches else count


def optimizer_tail(instance: Instance, stage: int) -> int:
    """Time of the optimizer step of ``stage``: whatever the barrier, it follows the stage's last backward."""
    return instance.optimizer_ticks[stage] if instance.optimizer_ticks is not None else 0
