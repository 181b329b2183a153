"""Interleaved schedules for any memory cap: the best building block of round-robin placement, packed from both ends.

Interleaved 1F1B warms up with as many forwards as it can use. Blocks at the pace of the steady state hold less, as the
generalized interleaved schedule of PipeOffload does (Wan et al. 2025, arXiv 2503.01328, section 3): p microbatches, or
3p/4 with groups of half as many. Here any group is tried, at the instance's own times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction

from zbopt.heuristics.block_search import best_blocks, best_packed, packed_list, short_step
from zbopt.heuristics.build import (
    CannotFitError,
    NotApplicableError,
    require_kept_activations,
    require_only_ops,
    schedule_in_order,
)
from zbopt.heuristics.building_block import Block, Packed, TwoWays, memory_of
from zbopt.heuristics.interleaved import require_round_robin
from zbopt.heuristics.interleaved_zb import zero_bubble_orders
from zbopt.heuristics.patience import OutOfTimeError, is_best
from zbopt.instance import Instance
from zbopt.schedule import Schedule

_KEPT = 4
"""Blocks of the short step that are tried on the whole one."""
_SLOPES = ((0.0, 0.5), (0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (0.5, 0.0))
"""Waits between stages, forward and back."""


def interleaved_auto(instance: Instance) -> Schedule:
    """The best of the blocks that fit the cap, of a list schedule and of interleaved zero bubble.

    Raises:
        NotApplicableError: The placement is not round robin with two or more virtual stages a stage, more than the ops
            of one step has to be placed, or activations are dropped.
        CannotFitError: A stage's cap is below one microbatch in all its virtual stages; no schedule fits then.
        OutOfTimeError: It was stopped before it had a schedule.
    """
    name = "interleaved-auto"
    require_round_robin(name, instance)
    require_only_ops(name, instance)
    require_kept_activations(name, instance)
    packing, starts = best_packed(instance, _candidates(name, instance))
    schedules = [schedule_in_order(name, instance, packing.steps(starts))]
    if not is_best(schedules[0].provenance.value or 0):
        with suppress(CannotFitError, NotApplicableError, OutOfTimeError):
            schedules.append(schedule_in_order(name, instance, zero_bubble_orders(name, instance)))
    return min(schedules, key=lambda schedule: schedule.provenance.value or 0)


def _candidates(name: str, instance: Instance) -> Iterator[Packed]:
    """A list schedule, then the best blocks."""
    yield packed_list(name, instance)
    short = short_step(instance)
    best = best_blocks(short, _blocks(instance), TwoWays(short.instance, 1), _KEPT)
    ways = TwoWays(instance)
    for block in best:
        yield from ways(block)


def _blocks(instance: Instance) -> list[Block]:
    """Blocks whose forwards, and gradients, come round to the same stage after as long as a group takes there.

    With groups of g they hold p + (v - 1)g activations of a virtual stage at unit times.
    """
    p, v = instance.stages, instance.virtual_stages // instance.stages
    static, one = memory_of(instance, 0), memory_of(instance, 1)
    caps = instance.memory_cap or memory_of(instance, p)
    each = [(c - s) / (o - s) for c, s, o in zip(caps, static, one, strict=True) if o > s]
    whole = min(each, default=Fraction(p))
    fitting = min(p, max(1, int(v * whole - p) // (v - 1)))
    groups = [g for g in dict.fromkeys((fitting, fitting + 1, fitting - 1, fitting + 2)) if g >= 1]
    return [_block(p, v, g, f, b, group) for g in groups for group in (g, 1) for f, b in _SLOPES]


def _block(p: int, v: int, g: int, forward: float, backward: float, group: int) -> Block:
    """Forwards at the first slope, gradients at the second, and what is left of a group's time between two legs."""
    rests = [max(0.0, 3 * g - p - (p - 1) * slope) for slope in (forward, backward)]
    return Block(
        slopes=(forward,) * v + (backward,) * v,
        rests=(rests[0],) * (v - 1) + (0.0,) + (rests[1],) * (v - 1),
        group=group,
    )
