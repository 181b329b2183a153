"""GPipe (Huang et al. 2019, arXiv 1811.06965): every forward, then every backward."""

from __future__ import annotations

from zbopt.heuristics.tools.build import OrderedOp, fitted_schedule, whole_backward
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule


def gpipe(instance: Instance) -> Schedule:
    """Build GPipe: all forwards, then all backwards in one piece, on any placement.

    At uniform times without communication it takes (m + p - 1)(F + BW) and holds m activations on every stage.

    Raises:
        CannotFitError: A stage's cap is below all its activations of all microbatches.
    """
    orders: list[list[OrderedOp]] = [[] for _ in range(instance.stages)]
    for virtual_stage, stage in enumerate(instance.stage_of):
        passing = instance.microbatches_of(virtual_stage)
        orders[stage] += [(Kind.F, virtual_stage, microbatch) for microbatch in passing]
    for virtual_stage in reversed(range(instance.virtual_stages)):
        for microbatch in instance.microbatches_of(virtual_stage):
            orders[instance.stage_of[virtual_stage]] += whole_backward(instance, virtual_stage, microbatch)
    return fitted_schedule("gpipe", instance, orders, gradient_after_weight=True)
