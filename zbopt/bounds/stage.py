"""Least times and memory as one stage sees them: its work, the time before it, and the round trip behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from zbopt.graph.memory import ActivationPolicy, added_by_b, least_left, policies, static_memory, whole_memory
from zbopt.problem.instance import Barrier, Instance, Objective, OpTicks


@dataclass(frozen=True)
class LeastTimes:
    """Hold the least times of one microbatch along its route through ``instance``, in ticks; with ``most`` the most."""

    instance: Instance

    @cached_property
    def _ticks(self) -> tuple[frozenset[OpTicks], ...]:
        """Return the different times that microbatches take, by virtual stage."""
        instance = self.instance
        if instance.microbatch_times is None:
            return tuple(frozenset({instance.ticks_of(v, 0)}) for v in range(instance.virtual_stages))
        return tuple(
            frozenset(instance.ticks_of(v, j) for j in instance.microbatches_of(v))
            for v in range(instance.virtual_stages)
        )

    def forward(self, virtual_stage: int, *, most: bool = False) -> int:
        """Return the time of F, with the loss where it is computed."""
        return (max if most else min)(ticks.forward for ticks in self._ticks[virtual_stage])

    def gradient(self, virtual_stage: int) -> int:
        """Return the least time from the arriving gradient to that of the input: of B, or of BW where it may run."""
        return min(ticks.gradient() for ticks in self._ticks[virtual_stage])

    def weight(self, virtual_stage: int) -> int:
        """Return the longest time of W where the backward is split, else 0."""
        return max(ticks.weight or 0 for ticks in self._ticks[virtual_stage])

    def backward_work(self, virtual_stage: int, *, most: bool = False) -> int:
        """Return the time that the backward of one microbatch takes at least: B and W, or BW."""
        return (max if most else min)(ticks.backward_work() for ticks in self._ticks[virtual_stage])

    def again(self, virtual_stage: int, *, most: bool = False) -> int:
        """Return the time of R where every activation is recomputed, else 0."""
        if policies(self.instance, virtual_stage) != (ActivationPolicy.RECOMPUTE,):
            return 0
        return (max if most else min)(ticks.recompute or 0 for ticks in self._ticks[virtual_stage])

    def brought_back(self, virtual_stage: int) -> int:
        """Return the least time from the end of F to the backward: R, or OUT and IN, where they always run."""
        instance = self.instance
        if policies(instance, virtual_stage) != (ActivationPolicy.OFFLOAD,):
            return self.again(virtual_stage)
        assert instance.offload_ticks is not None
        assert instance.reload_ticks is not None
        return instance.offload_ticks[virtual_stage] + instance.reload_ticks[virtual_stage]

    def work(self, stage: int) -> int:
        """Return the least time that all microbatches take on ``stage``."""
        return sum(self._work_of(v) for v in self.instance.virtual_stages_of(stage))

    def _work_of(self, virtual_stage: int) -> int:
        microbatches = self.instance.microbatches_of(virtual_stage)
        if len(self._ticks[virtual_stage]) == 1:
            each = self.forward(virtual_stage) + self.again(virtual_stage) + self.backward_work(virtual_stage)
            return len(microbatches) * each
        always = policies(self.instance, virtual_stage) == (ActivationPolicy.RECOMPUTE,)
        ticks = (self.instance.ticks_of(virtual_stage, j) for j in microbatches)
        return sum(t.forward + t.backward_work() + ((t.recompute or 0) if always else 0) for t in ticks)

    def overlap(self, stage: int) -> int:
        """Return the most time that running F and BW as one op can save on ``stage``, over all microbatches.

        The first F of a stage has no BW beside it: every BW there comes after some F.
        """
        instance = self.instance
        ticks = None if instance.overlapped_ticks is None else instance.overlapped_ticks[stage]
        if ticks is None:
            return 0
        held = instance.virtual_stages_of(stage)
        pair = max(self.forward(v, most=True) for v in held) + max(self.backward_work(v, most=True) for v in held)
        pairs = sum(len(instance.microbatches_of(v)) for v in held) - 1
        return pairs * max(0, pair - ticks)

    def passing_work(self, virtual_stage: int) -> int:
        """Return the least time that forwards and gradients of all microbatches take, W and R left out."""
        ticks = (self.instance.ticks_of(virtual_stage, j) for j in self.instance.microbatches_of(virtual_stage))
        return sum(t.forward + t.gradient() for t in ticks)

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """Return the least time from the first start of all to the start of F, by virtual stage."""
        heads: list[int] = []
        for v in range(self.instance.virtual_stages):
            u = self.instance.previous_of(v)
            heads.append(0 if u is None else heads[u] + self.forward(u) + self.instance.lag_ticks(u, v))
        return tuple(heads)

    @cached_property
    def round_trips(self) -> tuple[int, ...]:
        """Return the least time from the start of F until gradient and activation are back, by virtual stage."""
        trips = [0] * self.instance.virtual_stages
        for v in reversed(range(self.instance.virtual_stages)):
            u, onward = self.instance.next_of(v), 0
            if u is not None:
                lags = self.instance.lag_ticks(v, u) + self.instance.lag_ticks(u, v)
                onward = trips[u] + self.gradient(u) + lags
            trips[v] = self.forward(v) + max(onward, self.brought_back(v))
        return tuple(trips)

    @cached_property
    def gradient_tails(self) -> tuple[int, ...]:
        """Return the least time from a gradient's arrival to the end of all that follows, O included, by virtual stage.

        With a global barrier every O follows; without, only those of the stages that the gradient passes.
        """
        instance = self.instance
        own_step = instance.barrier is not Barrier.GLOBAL
        tails: list[int] = []
        for v in range(instance.virtual_stages):
            own = self.backward_work(v) + reduction(instance, v)
            own += optimizer_step(instance, instance.stage_of[v]) if own_step else 0
            u = instance.previous_of(v)
            onward = 0 if u is None else self.gradient(v) + instance.lag_ticks(v, u) + tails[u]
            tails.append(max(own, onward))
        last_step = 0 if own_step else instance.barrier_ticks + max(instance.optimizer_ticks or (0,))
        return tuple(tail + last_step for tail in tails)

    @cached_property
    def tails_on_first(self) -> tuple[int, ...]:
        """Return the least time from a gradient's arrival to the last end on the first stage, by virtual stage.

        There must be a single route. O is included; what else other stages have left is not.
        """
        instance = self.instance
        tails = [self.backward_work(0) + optimizer_tail(instance, instance.stage_of[0])]
        for v in range(1, instance.virtual_stages):
            tails.append(self.gradient(v) + instance.lag_ticks(v, v - 1) + tails[-1])
        return tuple(tails)


def slots(instance: Instance, virtual_stage: int) -> int | None:
    """Return how many microbatches fit between F and backward on a stage of one virtual stage, at the start of an F.

    That F needs its whole activation, the others the least that may be left of theirs. ``None``: more than there are.
    """
    each = least_left(instance, virtual_stage)
    if instance.memory_cap is None or each == 0:
        return None
    count = 1 + room_beside_forward(instance, virtual_stage) // each
    return None if count >= len(instance.microbatches_of(virtual_stage)) else max(0, count)


def room_beside_forward(instance: Instance, virtual_stage: int) -> Fraction:
    """Return what the cap of a stage of one virtual stage leaves to other microbatches at the start of an F."""
    stage = instance.stage_of[virtual_stage]
    assert instance.memory_cap is not None, "asked only where memory limits"
    return instance.memory_cap[stage] - static_memory(instance, stage) - whole_memory(instance, virtual_stage)


def held_for_weight(instance: Instance, virtual_stage: int) -> Fraction:
    """Return what a microbatch holds from the end of its B until the end of its W."""
    kept = instance.activation[virtual_stage] * instance.weight_share[virtual_stage]
    return kept + added_by_b(instance, virtual_stage)


class Waiting(NamedTuple):
    """Describe ops of one kind that may be live: memory and work of each, and how many there are at most."""

    memory: Fraction
    ticks: int
    most: int


def most_work(room: Fraction, kinds: Sequence[Waiting]) -> int:
    """Return the most work of ops that are live within ``room``: of more than two kinds as if ops could be cut."""
    together: dict[tuple[Fraction, int], int] = {}
    for memory, ticks, most in kinds:
        together[memory, ticks] = together.get((memory, ticks), 0) + most
    alike = [Waiting(memory, ticks, most) for (memory, ticks), most in together.items() if ticks and most > 0]
    # The work per memory decides.
    first, *others = sorted(alike, key=_rate, reverse=True) or [Waiting(Fraction(0), 0, 0)]
    if len(others) < 2:
        counts = range(_fit(room, first) + 1) if others and first.memory else [_fit(room, first)]
        return max(n * first.ticks + sum(_fit(room - n * first.memory, o) * o.ticks for o in others) for n in counts)
    work = Fraction(0)
    for kind in (first, *others):
        taken = Fraction(kind.most)
        if kind.memory:
            taken = min(taken, max(room, Fraction(0)) / kind.memory)
        work += taken * kind.ticks
        room -= taken * kind.memory
    return int(work)


def _fit(room: Fraction, kind: Waiting) -> int:
    """Return how many ops of a kind fit into ``room``, whole."""
    return min(kind.most, int(max(room, Fraction(0)) / kind.memory)) if kind.memory else kind.most


def _rate(kind: Waiting) -> tuple[bool, Fraction]:
    """Return the work per memory of a kind, as a key to sort by: ops that need no memory rate above all others."""
    return kind.memory == 0, Fraction(kind.ticks) if kind.memory == 0 else kind.ticks / kind.memory


def reduction(instance: Instance, virtual_stage: int) -> int:
    """Return the time of G, 0 where gradients are not reduced."""
    return instance.reduction_ticks[virtual_stage] if instance.reduction_ticks is not None else 0


def optimizer_step(instance: Instance, stage: int) -> int:
    """Return the time of O, 0 where a step has none."""
    return instance.optimizer_ticks[stage] if instance.optimizer_ticks is not None else 0


def optimizer_tail(instance: Instance, stage: int) -> int:
    """Return the least time after a stage's last backward: a reduction, the barrier's own, the optimizer step.

    A reduction that no step follows counts for the makespan alone: it does not run on the stage.
    """
    reduced = min(reduction(instance, v) for v in instance.virtual_stages_of(stage))
    if instance.optimizer_ticks is None:
        return reduced if instance.objective is Objective.MAKESPAN else 0
    return reduced + instance.barrier_ticks + optimizer_step(instance, stage)


OfStage = Callable[[LeastTimes, int], int | None]
"""An argument's bound by one stage of a single iteration, of the instance's objective; ``None``: it says nothing."""


def over_stages(instance: Instance, of_stage: OfStage) -> int | None:
    """Return the largest value over the stages, of all iterations; ``None``: the argument says nothing of any.

    On a stage, iterations follow each other: each but the last takes its span there, and the last one what is left of
    the makespan, counted from its first start on the stage (models/bounds.md, "several iterations").
    """
    one_iteration = {"iterations": 1, "input_ready_ticks": None}
    for_span = LeastTimes(instance.model_copy(update=one_iteration | {"objective": Objective.MAX_STAGE_SPAN}))
    for_makespan = (
        LeastTimes(instance.model_copy(update=one_iteration)) if instance.objective is Objective.MAKESPAN else None
    )
    earlier = 0 if instance.objective is Objective.PERIOD else instance.iterations - 1
    values = []
    for stage in range(instance.stages):
        span = of_stage(for_span, stage) if earlier or for_makespan is None else 0
        last = span if for_makespan is None else of_stage(for_makespan, stage)
        if span is not None and last is not None:
            values.append(earlier * span + last)
    return max(values, default=None)
