"""Megatron-LM's interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from zbopt.heuristics.build import NotApplicableError, Step, backward_steps, require_one_route, schedule_in_order
from zbopt.instance import Instance, Kind
from zbopt.schedule import Schedule


def interleaved(instance: Instance) -> Schedule:
    """Groups of p microbatches pass each of a stage's v virtual stages in turn.

    Where p does not divide m, the groups are evenly larger than p. At uniform times without communication it takes
    (m v + p - 1)(F + BW), times of one virtual stage. Where p divides m, stage s holds 2(p - s - 1) + (v - 1)p + 1
    activations of a virtual stage.

    Raises:
        NotApplicableError: The placement is not round robin with two or more virtual stages a stage.
        CannotFitError: A stage's cap is below the activations that its warm-up holds.
    """
    p, m = instance.stages, instance.microbatches
    v = instance.virtual_stages // p
    require_one_route("interleaved", instance)
    if v < 2 or instance.stage_of != tuple(range(p)) * v:
        raise NotApplicableError(
            "interleaved: the placement is not round robin with two or more virtual stages a stage; "
            "give placement interleaved with virtual >= 2, or take 1f1b or list"
        )
    groups = _groups(p, m)
    forwards = _passes(groups, range(v))
    backwards = _passes(groups, range(v - 1, -1, -1))
    orders: list[list[Step]] = []
    for stage in range(p):
        warmup = min(m * v, 2 * (p - stage - 1) + (v - 1) * len(groups[0]))
        order: list[Step] = []
        for position in range(m * v + warmup):
            if position < m * v:
                slot, microbatch = forwards[position]
                order.append((Kind.F, slot * p + stage, microbatch))
            if position >= warmup:
                slot, microbatch = backwards[position - warmup]
                order += backward_steps(instance, slot * p + stage, microbatch)
        orders.append(order)
    return schedule_in_order("interleaved", instance, orders, gradient_after_weight=True)


def _groups(p: int, m: int) -> list[range]:
    """Groups of p microbatches or more, the larger first; all in one where there are fewer than p.

    A group of fewer than p would make the order wait for itself.
    """
    count = max(1, m // p)
    ends = [sum(m // count + (later < m % count) for later in range(group + 1)) for group in range(count)]
    return [range(first, end) for first, end in pairwise([0, *ends])]


def _passes(groups: Sequence[range], slots: range) -> list[tuple[int, int]]:
    """(slot, microbatch) in the order of a stage's forwards, or of its backwards where ``slots`` run down."""
    return [(slot, microbatch) for group in groups for slot in slots for microbatch in group]
