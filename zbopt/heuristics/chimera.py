"""Chimera (Li and Hoefler, SC 2021, arXiv 2107.06925, section 3.1): two opposite pipelines over replicas."""

from __future__ import annotations

from zbopt.heuristics.tools.build import NotApplicableError, OrderedOp, fitted_schedule, whole_backward
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.placement import placement_of
from zbopt.problem.routes import Route
from zbopt.problem.schedule import Schedule


def chimera(instance: Instance) -> Schedule:
    """Build Chimera: each direction runs units of p/2 microbatches in 1F1B order, one after another without a gap.

    At F = BW, p even and p dividing m it takes (2m + p - 2) F, and stages hold p/2 + 1 to p activations.

    Raises:
        NotApplicableError: There are not two routes, down all stages and up again.
        CannotFitError: A stage's cap is below what the order holds.
    """
    routes = two_directions("chimera", instance)
    p = instance.stages
    unit = max(1, p // 2)
    slots: list[list[tuple[int, int, OrderedOp, list[OrderedOp]]]] = [[] for _ in range(p)]
    for direction, route in enumerate(routes):
        for place, v in enumerate(route.virtual_stages):
            on_stage = slots[instance.stage_of[v]]
            for k, microbatch in enumerate(instance.microbatches_of(v)):
                first = 2 * p * (k // unit) + 2 * (k % unit)
                forward: OrderedOp = (Kind.F, v, microbatch)
                on_stage.append((first + place, direction, forward, [forward]))
                backward = whole_backward(instance, v, microbatch)
                on_stage.append((first + 2 * p - 1 - place, direction, backward[0], backward))
    orders = [[op for *_, ops in sorted(on_stage) for op in ops] for on_stage in slots]
    return fitted_schedule("chimera", instance, orders, gradient_after_weight=True)


def two_directions(name: str, instance: Instance) -> tuple[Route, Route]:
    """Return the two routes of a bidirectional placement.

    Raises:
        NotApplicableError: There are not two routes, down all stages and up again.
    """
    down = tuple(range(instance.stages))
    if (
        instance.routes is None
        or [route.virtual_stages for route in instance.routes] != [down, tuple(v + instance.stages for v in down)]
        or instance.stage_of != placement_of("bidirectional", instance.stages, 2)
    ):
        raise NotApplicableError(
            f"{name}: microbatches do not go down all stages and up again on two routes; give placement "
            "bidirectional, or take list"
        )
    first, second = instance.routes
    return first, second
