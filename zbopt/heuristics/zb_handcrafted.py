"""The handcrafted schedules of Zero Bubble Pipeline Parallelism (Qi et al. 2024, arXiv 2401.10241, section 2)."""

from __future__ import annotations

from zbopt.heuristics.tools.build import OrderedOp, fitted_schedule, require_one_virtual_stage_a_stage, require_split
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule


def zb_h1(instance: Instance) -> Schedule:
    """Build ZB-H1: 1F1B whose stage s puts off s W, so that every stage holds as much as stage 0.

    At uniform times without communication the bubble of a stage is (p - 1)(F + B - W) at p activations.

    Raises:
        NotApplicableError: A stage holds several virtual stages, or the backward is never split.
        CannotFitError: A stage's cap is below p activations.
    """
    p = instance.stages
    return _schedule("zb-h1", instance, [p - s for s in range(p)], p)


def zb_h2(instance: Instance) -> Schedule:
    """Build ZB-H2: forwards fill the wait for the first B, and as many W are put off to fill the end.

    At uniform times without communication the bubble of a stage is (p - 1)(F + B - 2W) at 2p - 1 activations.

    Raises:
        NotApplicableError: A stage holds several virtual stages, or the backward is never split.
        CannotFitError: A stage's cap is below 2p - 1 activations.
    """
    p = instance.stages
    return _schedule("zb-h2", instance, [2 * (p - s) - 1 for s in range(p)], 2 * p - 1)


def _schedule(name: str, instance: Instance, warmups: list[int], most_live: int) -> Schedule:
    require_one_virtual_stage_a_stage(name, instance)
    require_split(name, instance)
    orders: list[list[OrderedOp]] = [[] for _ in range(instance.stages)]
    for virtual_stage, stage in enumerate(instance.stage_of):
        orders[stage] = _order(instance, virtual_stage, warmups[virtual_stage], most_live)
    return fitted_schedule(name, instance, orders)


def _order(instance: Instance, virtual_stage: int, warmup: int, most_live: int) -> list[OrderedOp]:
    """Return forwards of the warm-up, then B, W and F in turn, then the W that are left.

    A W runs only where ``most_live`` activations are live, and at the end where more W wait than the stage's number.
    """
    m = instance.microbatches
    has_b = not instance.has_lone_w(virtual_stage)
    forwards, weights = min(m, warmup), 0
    order: list[OrderedOp] = [(Kind.F, virtual_stage, j) for j in range(forwards)]
    for microbatch in range(m):
        if has_b:
            order.append((Kind.B, virtual_stage, microbatch))
        full = forwards - weights >= most_live if forwards < m else microbatch + 1 - weights > virtual_stage
        if full or not has_b:
            order.append((Kind.W, virtual_stage, weights))
            weights += 1
        if forwards < m:
            order.append((Kind.F, virtual_stage, forwards))
            forwards += 1
    return order + [(Kind.W, virtual_stage, j) for j in range(weights, m)]
