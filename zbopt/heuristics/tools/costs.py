"""Times and memory of an instance as plain numbers, as list scheduling reads them; memory is counted conservatively."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

from zbopt.graph.memory import (
    ActivationPolicy,
    added_by_b,
    dropped_by,
    memory_scale,
    policies,
    resident,
    static_memory,
    whole_memory,
)
from zbopt.heuristics.tools.build import CannotFitError
from zbopt.problem.instance import Instance, Kind


class Costs:
    """Hold an instance's times and memory as plain lists by virtual stage.

    Memory is counted conservatively: beside what is live there is room to bring one dropped activation back, and for
    what its B adds. What is dropped comes back just before its backward, and its W follows at once.

    Attributes:
        activation: Memory of a forward that keeps its activation, in units of the graph's memory scale.
        left: Memory of a forward that drops its activation, where it does.
        held: Memory that a W still holds after its B.
        added: Memory that a B adds.
        policy: What becomes of an activation that is dropped.
        must_drop: Activations of this virtual stage are always dropped.
        on_stage: By stage, its virtual stages.
        routes_on: By stage, its virtual stages by route.
        whole: By stage, the least memory of one microbatch in all its virtual stages of a route, the largest route.
        reserve: By stage, memory that is kept free for one activation that comes back.
        sequences: Orders of the microbatches on each virtual stage; see ``Rule.sequence``.
        cap: By stage, memory for what ops take.

    Args:
        name: The heuristic's name, for the error.
        instance: The problem.
        fuse: BW wherever the instance leaves the choice.
        keep: Keep activations wherever the instance leaves the choice.

    Raises:
        CannotFitError: A stage's cap is below what one microbatch takes, counted like that.
    """

    def __init__(self, name: str, instance: Instance, *, fuse: bool = False, keep: bool = True) -> None:
        self.instance = instance
        self.ticks = cache(instance.ticks_of)
        self.lag = cache(instance.lag_ticks)
        self.durations = cache(self._durations)
        self.loads = cache(self._loads)
        self.sequences = _sequences(instance)
        scale = memory_scale(instance)
        self._measure_memory(scale, fuse=fuse, keep=keep)
        self.on_stage = [instance.virtual_stages_of(stage) for stage in range(instance.stages)]
        self.routes_on = [self._by_route(on_stage) for on_stage in self.on_stage]
        self.whole = [max(sum(self.left[v] for v in route) for route in routes) for routes in self.routes_on]
        self.reserve = [max(self.activation[v] - self.left[v] + self.added[v] for v in vs) for vs in self.on_stage]
        self.cap = self._room(name, scale)

    def _measure_memory(self, scale: int, *, fuse: bool, keep: bool) -> None:
        """Set the memory of the ops of each virtual stage, in units of which ``scale`` make one of the instance."""
        instance, count = self.instance, range(self.instance.virtual_stages)
        fused = instance.fused_backward_ticks or (None,) * instance.virtual_stages
        added = [Fraction(0) if fuse and fused[v] is not None else added_by_b(instance, v) for v in count]
        self.activation = [int(whole_memory(instance, v) * scale) for v in count]
        shares = zip(instance.activation, instance.weight_share, added, strict=True)
        self.held = [int((a * share + more) * scale) for a, share, more in shares]
        self.must_drop = [ActivationPolicy.KEEP not in policies(instance, v) for v in count]
        self.policy = [
            ActivationPolicy.KEEP if keep and not self.must_drop[v] else dropped_by(instance, v) for v in count
        ]
        dropped = [instance.activation[v] - resident(instance, v, self.policy[v]) for v in count]
        self.left = [int((whole_memory(instance, v) - dropped[v]) * scale) for v in count]
        self.added = [int(amount * scale) for amount in added]

    def _room(self, name: str, scale: int) -> list[int]:
        """Return by stage the memory that static state and the reserve leave; without a cap, more than all ops take."""
        if self.instance.memory_cap is None:
            each = [sum(self.activation[v] + self.added[v] for v in on_stage) for on_stage in self.on_stage]
            return [amount * (self.instance.microbatches + 1) for amount in each]
        room = []
        for stage, cap in enumerate(self.instance.memory_cap):
            taken = static_memory(self.instance, stage) + Fraction(self.reserve[stage], scale)
            room.append(int((cap - taken) * scale))
            if self.whole[stage] > room[stage]:
                raise CannotFitError(name, stage, Fraction(self.whole[stage], scale) + taken, cap)
        return room

    def _by_route(self, virtual_stages: Sequence[int]) -> list[list[int]]:
        """Return the virtual stages of a stage, those of one route together, routes in one order on all stages."""
        routes: dict[int, list[int]] = {}
        for v in virtual_stages:
            routes.setdefault(self.instance.microbatches_of(v).start, []).append(v)
        return [routes[first] for first in sorted(routes)]

    def backward(self, virtual_stage: int, fuse: bool) -> tuple[Kind, int]:
        """Return the kind of op that answers an arriving gradient, and the memory that stays for W; 0: no W follows."""
        ticks = self.instance.ticks_of(virtual_stage, self.instance.microbatches_of(virtual_stage)[0])
        if ticks.weight is None or (fuse and ticks.fused is not None):
            return Kind.BW, 0
        return (Kind.W, 0) if ticks.backward is None else (Kind.B, self.held[virtual_stage])

    def _durations(self, sequence: int, fuse: bool) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
        """Return ticks of F, of the op that answers the gradient, and of W, by virtual stage and place in a sequence.

        Those of W are empty where none follows.
        """
        forward, backward, weight = [], [], []
        for v, microbatches in enumerate(self.sequences[sequence]):
            kind, _ = self.backward(v, fuse)
            alike = self.instance.microbatch_times is None
            first = self.ticks(v, microbatches[0])
            each = [first] * len(microbatches) if alike else [self.ticks(v, j) for j in microbatches]
            forward.append([ticks.forward for ticks in each])
            backward.append([ticks.of(kind) or 0 for ticks in each])
            weight.append([ticks.weight or 0 for ticks in each] if kind is Kind.B else [])
        return forward, backward, weight

    def _loads(self, sequence: int, fuse: bool) -> list[int]:
        """Return the least ticks that each stage is busy."""
        return [
            sum(sum(ticks[v]) for ticks in self.durations(sequence, fuse) for v in on_stage)
            for on_stage in self.on_stage
        ]


def _sequences(instance: Instance) -> list[list[list[int]]]:
    """Return orders of microbatches by virtual stage: as numbered, and if times differ, long or short ones first."""
    passing = [list(instance.microbatches_of(v)) for v in range(instance.virtual_stages)]
    if instance.microbatch_times is None:
        return [passing]
    length = dict.fromkeys(range(instance.microbatches), 0)
    for v, microbatch in instance.passes():
        ticks = instance.ticks_of(v, microbatch)
        length[microbatch] += ticks.forward + ticks.backward_work()
    return [passing, *([sorted(js, key=lambda j: sign * length[j]) for js in passing] for sign in (-1, 1))]
