"""Interleaved zero bubble: interleaved 1F1B whose backward is split, so that W fills what is left of the bubble.

Named in Zero Bubble Pipeline Parallelism (Qi et al. 2024, arXiv 2401.10241) and as a schedule of PyTorch's pipeline
runtime. The order is interleaved 1F1B's; W then goes where it delays nothing, by packing from both ends.
"""

from __future__ import annotations

from fractions import Fraction

from zbopt.graph import expand
from zbopt.graph.memory import static_memory, whole_memory
from zbopt.heuristics.interleaved import even_groups, order_of, passes, require_round_robin, warmup
from zbopt.heuristics.tools.build import (
    OrderedOp,
    fitted_schedule,
    require_plain_step,
    require_split,
    split_backward,
)
from zbopt.heuristics.tools.pack import packed_order
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule

_ROUNDS = 4
"""Packings from both ends, fewer than ``ROUNDS``: the order begins near its final form. Not measured."""


def interleaved_zb(instance: Instance) -> Schedule:
    """Build interleaved 1F1B with a split backward, holding no more on any stage than interleaved 1F1B on stage 0.

    That is 2(p - 1) + (v - 1)p + 1 activations of a virtual stage where p divides m.

    At unit times without communication, p dividing m, it takes 3mv + p - 1 ticks: the load and the way down. Its
    largest stage span is 3mv: no bubble.

    Raises:
        NotApplicableError: The placement is not round robin with two or more virtual stages a stage, the backward is
            never split, or more than the ops of one step has to be placed.
        CannotFitError: A stage's cap is below the activations that the schedule holds.
    """
    return fitted_schedule("interleaved-zb", instance, zero_bubble_orders("interleaved-zb", instance))


def zero_bubble_orders(name: str, instance: Instance) -> list[list[OrderedOp]]:
    """Return for each stage the order of the schedule, for the heuristic ``name``; it may hold more than the cap.

    Raises:
        NotApplicableError: The schedule is not defined for the instance, as ``interleaved_zb`` says.
    """
    require_round_robin(name, instance)
    require_split(name, instance)
    require_plain_step(name, instance)
    forwards, backwards = passes(instance, even_groups(instance.stages, instance.microbatches))
    most = min(len(forwards), warmup(instance, 0, forwards) + 1)
    limited = instance.model_copy(
        update={"memory_cap": tuple(_room(instance, s, most) for s in range(instance.stages))}
    )
    orders = [order_of(instance, stage, forwards, backwards, split_backward) for stage in range(instance.stages)]
    packing, starts = packed_order(expand(limited), orders, _ROUNDS)
    return packing.orders(starts)


def _room(instance: Instance, stage: int, forwards: int) -> Fraction:
    """Return the memory of so many ``forwards``, those of the largest virtual stages first, and of static state."""
    sizes = sorted((whole_memory(instance, v) for v in instance.virtual_stages_of(stage)), reverse=True)
    each, rest = divmod(forwards, len(sizes))
    return static_memory(instance, stage) + each * sum(sizes, Fraction(0)) + sum(sizes[:rest], Fraction(0))
