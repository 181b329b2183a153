"""The generalized interleaved schedule of PipeOffload (Wan et al. 2025, arXiv 2503.01328, and the code beside it).

Groups of microbatches pass each virtual stage of a stage in turn, at the pace of the steady state from the first one
on, so that no forward is held for longer than its group needs to come round: 3/4 of 1F1B's memory with groups of p / 2.
"""

from __future__ import annotations

from zbopt.graph import expand
from zbopt.heuristics.interleaved import require_round_robin
from zbopt.heuristics.tools.build import (
    OrderedOp,
    fitted_schedule,
    require_plain_step,
    require_split,
)
from zbopt.heuristics.tools.building_block import Block, at_unit_times, repeated
from zbopt.heuristics.tools.pack import ops_by_stage
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule


def gis(instance: Instance) -> Schedule:
    """Build groups of p microbatches, which hold at most p microbatches on a stage, as 1F1B does.

    At unit times without communication, p dividing m, makespan and largest span are 3mv + 2(p - 1) ticks.

    Raises:
        NotApplicableError: The placement is not round robin with two or more virtual stages a stage, the backward is
            never split, or more than the ops of one step has to be placed.
        CannotFitError: A stage's cap is below the activations that the schedule holds.
    """
    return _scheduled("gis", instance, instance.stages)


def gis_half(instance: Instance) -> Schedule:
    """Build groups of p / 2 microbatches, which hold at most (v + 1)p/2 activations of a virtual stage where p is even.

    At unit times without communication, p even and dividing m, makespan and largest span are 3mv + (v + 3)p/2 - 2.

    Raises:
        NotApplicableError: The schedule is not defined for the instance, as ``gis`` says.
        CannotFitError: A stage's cap is below the activations that the schedule holds.
    """
    return _scheduled("gis-h", instance, -(-instance.stages // 2))


def _scheduled(name: str, instance: Instance, group: int) -> Schedule:
    require_round_robin(name, instance)
    require_split(name, instance)
    require_plain_step(name, instance)
    return fitted_schedule(name, instance, grouped_orders(instance, group))


def grouped_orders(instance: Instance, group: int) -> list[list[OrderedOp]]:
    """Return for each stage the order of groups of ``group`` microbatches; with p / 2 of them at least, none waits.

    It is the order at unit times, where F, B and W take turns on every stage and none waits for another. A gradient
    then takes two ticks a stage to a forward's one; with small groups forwards are the slower ones on the first stages,
    so that both come round in the three ticks that each microbatch of the group has.
    """
    p, v = instance.stages, instance.virtual_stages // instance.stages
    block = grouped_block(p, v, group, 0.0, 1.0, group, bend=max(0, 2 * p - 3 * group))
    graph = expand(at_unit_times(instance))
    return ops_by_stage(graph, repeated(graph, block))


def grouped_block(p: int, v: int, round_trip: int, forward: float, backward: float, group: int, bend: int = 0) -> Block:
    """Return a block whose forwards, and gradients, come round to a stage after ``round_trip`` microbatches passed it.

    Args:
        p: Stages.
        v: Virtual stages of each.
        round_trip: Microbatches that pass one virtual stage of a stage while one goes round to the next.
        forward: Slope of the forwards' legs; what is left of the round is their rest.
        backward: Slope of the gradients' legs.
        group: Group of the block.
        bend: Bend of the block.
    """
    behind = p - 1 - bend
    waits = behind * forward + bend * backward, behind * backward + bend * forward
    down, up = (max(0.0, 3 * round_trip - p - wait) for wait in waits)
    return Block((forward,) * v + (backward,) * v, (down,) * (v - 1) + (0.0,) + (up,) * (v - 1), 1, 0, group, bend)
