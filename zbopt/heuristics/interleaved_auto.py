"""Interleaved schedules for any memory cap: the best building block of round-robin placement, packed from both ends.

Interleaved 1F1B warms up with as many forwards as it can use. Blocks at the pace of the steady state hold less: p
microbatches, or 3p/4 with groups of half as many (``gis``). Here groups of any size are tried, at the instance's own
times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction

from zbopt.heuristics.gis import grouped_block, grouped_orders
from zbopt.heuristics.interleaved import require_round_robin
from zbopt.heuristics.interleaved_zb import zero_bubble_orders
from zbopt.heuristics.tools.block_search import best_blocks, best_packed, packed_list, short_step
from zbopt.heuristics.tools.build import (
    CannotFitError,
    NotApplicableError,
    fitted_schedule,
    require_plain_step,
)
from zbopt.heuristics.tools.building_block import Block, BlockPacker, Packed, memory_of
from zbopt.heuristics.tools.pack import packed_order
from zbopt.heuristics.tools.patience import OutOfTimeError, is_best
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule

_BLOCKS = 4
"""Blocks of the short step that are tried on the whole one. Not measured in bench/."""
_SLOPES = ((0.0, 0.5), (0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (0.5, 0.0))
"""Waits between stages of forwards and of gradients. Not measured in bench/."""
_SMALLER = 3
"""Sizes of groups to try for the largest that fits: at the instance's own times activations are held for longer than
at unit times, from which the largest size is computed."""


def interleaved_auto(instance: Instance) -> Schedule:
    """Return the best of the blocks that fit the cap, of a list schedule and of interleaved zero bubble.

    Raises:
        NotApplicableError: The placement is not round robin with two or more virtual stages a stage, more than the ops
            of one step has to be placed, or activations are dropped.
        CannotFitError: A stage's cap is below one microbatch in all its virtual stages; no schedule fits then.
        OutOfTimeError: It was stopped before it had a schedule.
    """
    name = "interleaved-auto"
    require_round_robin(name, instance)
    require_plain_step(name, instance)
    packing, starts = best_packed(instance, _candidates(name, instance))
    schedules = [fitted_schedule(name, instance, packing.orders(starts))]
    if not is_best(schedules[0].provenance.value or 0):
        with suppress(CannotFitError, NotApplicableError, OutOfTimeError):
            schedules.append(fitted_schedule(name, instance, zero_bubble_orders(name, instance)))
    return min(schedules, key=lambda schedule: schedule.provenance.value or 0)


def _candidates(name: str, instance: Instance) -> Iterator[Packed]:
    """Yield a list schedule, the order of the largest groups that fit, and the best blocks, all packed."""
    yield (listed := packed_list(name, instance))
    graph = listed[0].graph
    largest = _largest_group(instance)
    for group in range(largest, max(0, largest - _SMALLER), -1):
        with suppress(CannotFitError):
            orders = grouped_orders(instance, group)
            fitted_schedule(name, instance, orders)
            yield packed_order(graph, orders)
            break
    short = short_step(instance)
    packer = BlockPacker(graph)
    for block in best_blocks(short, _blocks(instance, largest), BlockPacker(short, 1).both, _BLOCKS):
        yield from packer.both(block)


def _largest_group(instance: Instance) -> int:
    """Return the largest group that fits at unit times, where groups of g hold p + (v - 1)g activations on a stage."""
    p, v = instance.stages, instance.virtual_stages // instance.stages
    static, one = memory_of(instance, 0), memory_of(instance, 1)
    caps = instance.memory_cap or memory_of(instance, p)
    each = [(c - s) / (o - s) for c, s, o in zip(caps, static, one, strict=True) if o > s]
    return min(p, max(1, int(v * min(each, default=Fraction(p)) - p) // (v - 1)))


def _blocks(instance: Instance, largest: int) -> list[Block]:
    """Return blocks of about the largest groups that fit, and those that come round as fast without groups."""
    p, v = instance.stages, instance.virtual_stages // instance.stages
    groups = [g for g in (largest, largest + 1, largest - 1, largest + 2) if g >= 1]
    return [grouped_block(p, v, g, f, b, group) for g in groups for group in (g, 1) for f, b in _SLOPES]
