"""Looped breadth-first (Lamy-Poirier 2022, arXiv 2211.05953): GPipe on each of a stage's virtual stages in turn."""

from __future__ import annotations

from zbopt.heuristics.interleaved import passes, require_round_robin
from zbopt.heuristics.tools.build import OrderedOp, fitted_schedule, whole_backward
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule


def looped_bfs(instance: Instance) -> Schedule:
    """Build breadth-first looping: all microbatches pass one virtual stage of a stage before its next one, then back.

    It is interleaved 1F1B with all microbatches in one group. At uniform times without communication and for m >= p it
    takes (m v + p - 1)(F + BW), times of one virtual stage, and holds m microbatches on every stage.

    Raises:
        NotApplicableError: The placement is not round robin with two or more virtual stages a stage.
        CannotFitError: A stage's cap is below all its activations of all microbatches.
    """
    require_round_robin("looped-bfs", instance)
    forwards, backwards = passes(instance, [range(instance.microbatches)])
    orders: list[list[OrderedOp]] = []
    for stage in range(instance.stages):
        order: list[OrderedOp] = [(Kind.F, slot * instance.stages + stage, microbatch) for slot, microbatch in forwards]
        for slot, microbatch in backwards:
            order += whole_backward(instance, slot * instance.stages + stage, microbatch)
        orders.append(order)
    return fitted_schedule("looped-bfs", instance, orders, gradient_after_weight=True)
