"""1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503), with the backward in one piece or split."""

from __future__ import annotations

from collections.abc import Callable

from zbopt.heuristics.tools.build import (
    OrderedOp,
    fitted_schedule,
    require_one_virtual_stage_a_stage,
    require_split,
    split_backward,
    whole_backward,
)
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule


def one_f_one_b(instance: Instance) -> Schedule:
    """Build 1F1B whose gradient moves up only when the whole backward is done.

    At uniform times without communication it takes (m + p - 1)(F + BW); stage s holds min(m, p - s) activations.

    Raises:
        NotApplicableError: A stage holds several virtual stages.
        CannotFitError: Stage s has a cap below min(m, p - s) activations.
    """
    require_one_virtual_stage_a_stage("1f1b", instance)
    orders = _orders(instance, whole_backward)
    return fitted_schedule("1f1b", instance, orders, gradient_after_weight=True)


def one_f_one_b_split(instance: Instance) -> Schedule:
    """Build 1F1B with B and W back to back, whose gradient moves up right after B.

    Raises:
        NotApplicableError: A stage holds several virtual stages, or the backward is never split.
        CannotFitError: Stage s has a cap below min(m, p - s) activations.
    """
    require_one_virtual_stage_a_stage("1f1b-split", instance)
    require_split("1f1b-split", instance)
    return fitted_schedule("1f1b-split", instance, _orders(instance, split_backward))


def _orders(instance: Instance, backward: Callable[[Instance, int, int], list[OrderedOp]]) -> list[list[OrderedOp]]:
    """Return a warm-up of p - s - 1 forwards on stage s, then a forward and a backward in turn, then backwards."""
    p, m = instance.stages, instance.microbatches
    orders: list[list[OrderedOp]] = [[] for _ in range(p)]
    for virtual_stage, stage in enumerate(instance.stage_of):
        warmup = min(m, p - virtual_stage - 1)
        for position in range(m + warmup):
            if position < m:
                orders[stage].append((Kind.F, virtual_stage, position))
            if position >= warmup:
                orders[stage] += backward(instance, virtual_stage, position - warmup)
    return orders
