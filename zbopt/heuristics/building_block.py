"""Building blocks of V placement: one microbatch's ops at given times, repeated once a period.

Pipeline Parallelism with Controllable Memory (Qi et al. 2024, arXiv 2405.15362) makes a schedule of such a block:
how long the block holds activations decides how much memory the schedule needs. A block here is four slopes, one for
each leg of the way (forward down and up, gradient down and up), and three rests between the legs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from zbopt.graph import TaskGraph, expand
from zbopt.heuristics.build import CannotFitError, NotApplicableError, Step, schedule_in_order
from zbopt.heuristics.pack import Packing
from zbopt.instance import Instance, Kind, placement_of
from zbopt.schedule import Schedule

ROUNDS = 8
"""Packings from both ends of an order that is returned; most stop changing after three."""


@dataclass(frozen=True, slots=True)
class Block:
    """Times of one microbatch, in shares of the mean op beyond what op and transfer take themselves.

    Attributes:
        slopes: Wait between neighbouring stages on each leg: forward down, forward up, gradient down, gradient up.
        rests: Wait at the last stage, at the first stage, and at the last stage again.
        period: Time between two microbatches, as a multiple of the largest load of a stage.
        weight: Wait of W after its B, in periods.
    """

    slopes: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    rests: tuple[float, ...] = (0.0, 0.0, 0.0)
    period: float = 1
    weight: float = 0


def require_v(name: str, instance: Instance) -> None:
    """Raise ``NotApplicableError`` where the placement is not down and back up, two virtual stages a stage."""
    if instance.stage_of != placement_of("v", instance.stages, 2):
        raise NotApplicableError(
            f"{name}: the placement is not v, two virtual stages a stage down and back up; "
            "give placement v with virtual 2, or take list"
        )


def family(name: str, instance: Instance, blocks: Sequence[Block], whole: int) -> Schedule:
    """The best of ``blocks`` that need at most ``whole`` microbatches of memory, packed from both ends.

    Each is packed at the instance's own times and, as published, at unit times, whose order is then kept.

    Raises:
        NotApplicableError: The placement is not v.
        CannotFitError: A stage's cap is below ``whole`` microbatches, or below what the schedule holds.
    """
    require_v(name, instance)
    sizes = [sum((instance.activation[v] for v in instance.virtual_stages_of(s)), Fraction(0)) for s in _stages(instance)]
    given = instance.memory_cap or [whole * size for size in sizes]
    for stage, (cap, size) in enumerate(zip(given, sizes, strict=True)):
        if min(whole, instance.microbatches) * size > cap:
            raise CannotFitError(name, stage, min(whole, instance.microbatches) * size, cap)
    limited = instance.model_copy(update={"memory_cap": tuple(whole * size for size in sizes)})
    problems = dict.fromkeys((limited, _at_unit_times(limited)))
    found = [
        schedule_in_order(name, instance, rows)
        for problem in problems
        for block in blocks
        if (rows := packed(expand(problem), block)) is not None
    ]
    ...


def repeated(graph: TaskGraph, block: Block) -> list[int]:
    """The tasks of all microbatches by their time in the repeated block; of each choice the first option."""
    instance = graph.instance
    gradient, weight = _backward_ticks(instance)
    mean = sum((*instance.forward_ticks, *gradient, *weight)) / (3 * instance.virtual_stages)
    loads = [
        sum(instance.forward_ticks[v] + gradient[v] + weight[v] for v in instance.virtual_stages_of(stage))
        for stage in range(instance.stages)
    ]
    period = block.period * max(loads)
    forwards, gradients = _times(instance, block, mean, gradient)
    timed: list[tuple[float, int]] = []
    for i, task in enumerate(graph.tasks):
        v = task.virtual_stage
        if v is None or task.microbatch is None or (task.choice is not None and task.option != 0):
            continue
        time = forwards[v] if task.kind is Kind.F else gradients[v]
        if task.kind is Kind.R:
            time -= task.duration_ticks
        if task.kind is Kind.W:
            time += gradient[v] + block.weight * period
        timed.append((time + task.microbatch * period, i))
    return [i for _, i in sorted(timed)]


def _backward_ticks(instance: Instance) -> tuple[list[int], list[int]]:
    """Times of the op that answers the gradient, and of the W after it, by virtual stage."""
    if instance.backward_ticks is None or instance.weight_ticks is None:
        return [ticks or 0 for ticks in instance.fused_backward_ticks or ()], [0] * instance.virtual_stages
    return [ticks or 0 for ticks in instance.backward_ticks], list(instance.weight_ticks)


def _times(instance: Instance, block: Block, mean: float, gradient: list[int]) -> tuple[list[float], list[float]]:
    """Start of F and of the gradient op of the first microbatch, by virtual stage."""
    p, last = instance.stages, instance.virtual_stages - 1
    forwards, gradients = [0.0], [0.0] * (last + 1)
    for v in range(1, last + 1):
        wait = block.rests[0] if v == p else block.slopes[0 if v < p else 1]
        forwards.append(forwards[-1] + instance.forward_ticks[v - 1] + instance.lag_ticks(v - 1, v) + wait * mean)
    gradients[last] = forwards[last] + instance.forward_ticks[last] + block.rests[1] * mean
    for v in range(last - 1, -1, -1):
        wait = block.rests[2] if v == p - 1 else block.slopes[2 if v >= p else 3]
        gradients[v] = gradients[v + 1] + gradient[v + 1] + instance.lag_ticks(v + 1, v) + wait * mean
    return forwards, gradients
