"""The adaptive V schedule: for a memory cap the best building block, repeated, then packed from both ends.

The aim is that of the adaptive scheduler of Pipeline Parallelism with Controllable Memory (Qi et al. 2024, arXiv
2405.15362): the least bubble under any cap. There the blocks have unit times; here they have the instance's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction

from zbopt.graph import TaskGraph, expand
from zbopt.heuristics.tools.block_search import best_blocks, best_packed, packed_list, short_step
from zbopt.heuristics.tools.build import (
    CannotFitError,
    OrderedOp,
    fitted_schedule,
    require_plain_step,
)
from zbopt.heuristics.tools.building_block import (
    Block,
    Packed,
    memory_of,
    packed_block,
    require_v,
)
from zbopt.heuristics.tools.idle_search import idle_search, longer_idle_search
from zbopt.heuristics.tools.pack import ROUNDS, packed_order
from zbopt.heuristics.tools.patience import OutOfTimeError, is_best
from zbopt.heuristics.zb_v import handcrafted
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule

_SEARCH_OPS = 2_500_000
"""Ops to simulate in ``idle_search``: ten seconds. With the memory of ZB-V or less the blocks are better, and it is not
tried. bench/README.md, "The search over idle time", has runs and what more of them find."""
_BLOCKS = 2
"""Blocks of the short step that are tried on the whole one. Not measured in bench/."""


def v_auto(instance: Instance) -> Schedule:
    """Return the best of the blocks that fit the cap, a list schedule and ZB-V by hand, all packed from both ends.

    At unit times with an even k activations of a virtual stage under the cap, 2((p + 4) // 3) <= k < 2p, its largest
    stage span is 6m + 6p - 1 - 3k ticks at m = 2p for p = 4, 5, 6 (tests; models/bounds.md, section 12).

    Raises:
        NotApplicableError: The placement is not v, or activations are dropped.
        CannotFitError: A stage's cap is below one microbatch in both its virtual stages; no schedule fits then.
        OutOfTimeError: It was stopped before it had a schedule.
    """
    require_v("v-auto", instance)
    require_plain_step("v-auto", instance)
    packing, starts = best_packed(instance, _candidates(instance))
    schedules = [fitted_schedule("v-auto", instance, packing.orders(starts))]
    if _room_beside_zb_v(instance) > 0 and not is_best(schedules[0].provenance.value or 0):
        with suppress(OutOfTimeError, CannotFitError):
            schedules.append(_packed(packing.graph, idle_search("v-auto", instance, _SEARCH_OPS)))
    return min(schedules, key=_value)


def more_rules(instance: Instance, seed: int) -> Iterator[Schedule | None]:
    """Yield after each further dispatching rule its schedule if that is the best of theirs so far, else ``None``.

    Args:
        instance: The problem. Nothing is found where memory does not suffice for ZB-V: blocks are better there.
        seed: Seed of the rules.

    Raises:
        NotApplicableError: The placement is not v, more than the ops of one step has to be placed, or activations are
            dropped.
    """
    require_v("v-auto", instance)
    require_plain_step("v-auto", instance)
    if _room_beside_zb_v(instance) > 0:
        graph = expand(instance)
        with suppress(OutOfTimeError, CannotFitError):
            for orders in longer_idle_search("v-auto", instance, seed):
                yield None if orders is None else _packed(graph, orders)


def _packed(graph: TaskGraph, orders: list[list[OrderedOp]]) -> Schedule:
    """Return the better of ``orders`` and what is packed from them."""
    packing, starts = packed_order(graph, orders)
    both = (fitted_schedule("v-auto", graph.instance, each) for each in (orders, packing.orders(starts)))
    return min(both, key=_value)


def _value(schedule: Schedule) -> int:
    return schedule.provenance.value or 0


def _candidates(instance: Instance) -> Iterator[Packed]:
    """Yield a list schedule, then ZB-V by hand where it fits, and the best blocks, all packed."""
    yield (listed := packed_list("v-auto", instance))
    graph = listed[0].graph
    published = handcrafted(instance)
    if published and _room_beside_zb_v(instance) >= 0:
        yield packed_order(graph, published)
    short = short_step(instance)
    best = best_blocks(short, _FIRST, lambda block: filter(None, (packed_block(short, block, 1),)), _BLOCKS)
    yield from filter(None, (packed_block(graph, block, ROUNDS) for block in best))


def _room_beside_zb_v(instance: Instance) -> Fraction:
    """Return the memory that ZB-V leaves on the stage where it leaves the least; below 0 it does not fit."""
    needs = memory_of(instance, instance.stages)
    caps = instance.memory_cap or memory_of(instance, instance.microbatches)
    return min(cap - needed for cap, needed in zip(caps, needs, strict=True))


_FIRST = [
    Block((0.0, 0.0, 0.0, 0.0), weight=1.0),
    Block((1.0, 0.0, 1.0, 0.0)),
    Block((0.0, 1.0, 3.0, 1.0)),
    Block((2.0, 0.5, 2.0, 1.0)),
    Block((1.0, 0.5, 2.0, 0.5), period=1.25),
    Block((0.0, 1.0, 0.0, 0.5), period=1.25),
    Block((0.5, 0.0, 1.0, 0.0), period=1.25),
    Block((1.0, 1.0, 1.0, 0.5), period=1.25),
    Block((0.5, 1.0, 3.0, 1.0)),
    Block((0.5, 0.5, 0.0, 0.5), period=1.25),
    Block((2.0, 0.0, 2.0, 0.0)),
    Block((1.0, 1.0, 2.0, 1.0), weight=1.0),
    Block((0.0, 0.0, 0.0, 0.0), period=1.25),
    Block((0.5, 0.5, 1.0, 0.0), period=1.25),
    Block((1.0, 0.0, 3.0, 0.0)),
]
"""Blocks to begin with: V-Min's, V-Half's and ZB-V's, and a choice of those that were best of 432 on one or more of 21
instances. Not in bench/."""
