"""The adaptive V schedule: for a memory cap the best building block, repeated, then packed from both ends.

The aim is that of the adaptive scheduler of Pipeline Parallelism with Controllable Memory (Qi et al. 2024, arXiv
2405.15362): least bubble under any cap. There the blocks have unit times; here they have the instance's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from zbopt.graph import Key, expand
from zbopt.heuristics.build import CannotFitError, Step, require_kept_activations, require_only_ops, schedule_in_order
from zbopt.heuristics.building_block import ROUNDS, Block, memory_of, packed_block, packed_steps, require_v
from zbopt.heuristics.idle_search import idle_search, longer_idle_search
from zbopt.heuristics.list_schedule import list_orders
from zbopt.heuristics.pack import Packing, Starts, packed_order
from zbopt.heuristics.patience import OutOfTimeError, check, is_best
from zbopt.heuristics.zb_v import handcrafted
from zbopt.instance import Instance
from zbopt.schedule import Schedule

_MOST_OPS = 150_000
"""Ops to pack over all blocks: about a second."""
_LIST_OPS = 30_000
"""Ops to simulate for a list schedule; the heuristic of that name looks for longer."""
_SEARCH_OPS = 2_500_000
"""Ops to simulate in ``idle_search``: ten seconds. With memory of ZB-V or less the blocks are better."""
_MOST_BLOCKS = 64
"""Blocks to try on a small instance."""


def v_auto(instance: Instance) -> Schedule:
    """The best of the blocks that fit the cap, of a list schedule and of ZB-V by hand, each packed from both ends.

    At unit times with an even k activations of a virtual stage under the cap, 2((p + 4) // 3) <= k < 2p, its largest
    stage span is 6m + 6p - 1 - 3k ticks at m = 2p for p = 4, 5, 6 (tests; models/bounds.md, section 12).

    Raises:
        NotApplicableError: The placement is not v, or activations are dropped.
        CannotFitError: A stage's cap is below one microbatch in both its virtual stages; no schedule fits then.
        OutOfTimeError: It was stopped before it had a schedule.
    """
    require_v("v-auto", instance)
    require_only_ops("v-auto", instance)
    require_kept_activations("v-auto", instance)
    candidates = _candidates(instance)
    packing, starts = next(candidates)
    with suppress(OutOfTimeError):
        for other in candidates:
            if other[0].value(other[1]) < packing.value(starts):
                packing, starts = other
            if instance.optimizer_ticks is None and is_best(packing.value(starts)):
                break
    schedules = [schedule_in_order("v-auto", instance, packing.steps(starts))]
    if _room_beside_zb_v(instance) > 0 and not is_best(schedules[0].provenance.value or 0):
        with suppress(OutOfTimeError, CannotFitError):
            schedules.append(_packed(instance, idle_search("v-auto", instance, _SEARCH_OPS)))
    return min(schedules, key=_value)


def more_rules(instance: Instance, seed: int) -> Iterator[Schedule | None]:
    """After each further dispatching rule its schedule, if it is the best of theirs so far, else ``None``.

    Args:
        instance: The problem. Nothing is found where memory does not suffice for ZB-V: blocks are better there.
        seed: Of the rules.

    Raises:
        NotApplicableError: The placement is not v, more than the ops of one step has to be placed, or activations are
            dropped.
    """
    require_v("v-auto", instance)
    require_only_ops("v-auto", instance)
    require_kept_activations("v-auto", instance)
    if _room_beside_zb_v(instance) > 0:
        with suppress(OutOfTimeError, CannotFitError):
            for orders in longer_idle_search("v-auto", instance, seed):
                yield None if orders is None else _packed(instance, orders)


def _packed(instance: Instance, orders: list[list[Step]]) -> Schedule:
    """The better of ``orders`` and what is packed from them."""
    packing, starts = packed_steps(instance, orders)
    return min((schedule_in_order("v-auto", instance, rows) for rows in (orders, packing.steps(starts))), key=_value)


def _value(schedule: Schedule) -> int:
    return schedule.provenance.value or 0


def _candidates(instance: Instance) -> Iterator[tuple[Packing, Starts]]:
    """A list schedule, then ZB-V by hand where it fits, and the best blocks."""
    orders = list_orders("v-auto", instance, _LIST_OPS)
    check()
    graph = expand(instance)
    rows = [[graph.index[Key(*step)] for step in row] for row in orders]
    check()
    yield packed_order(graph, rows, ROUNDS)
    published = handcrafted(instance)
    if published and _room_beside_zb_v(instance) >= 0:
        yield packed_steps(instance, published)
    yield from filter(None, (packed_block(graph, block, ROUNDS) for block in _best_blocks(instance)))


def _room_beside_zb_v(instance: Instance) -> Fraction:
    """Memory that ZB-V leaves on the stage where it leaves the least; below 0 it does not fit."""
    needs = memory_of(instance, instance.stages)
    caps = instance.memory_cap or memory_of(instance, instance.microbatches)
    return min(cap - needed for cap, needed in zip(caps, needs, strict=True))


def _best_blocks(instance: Instance) -> list[Block]:
    """The best blocks on a step of few microbatches, the best first."""
    few = min(instance.microbatches, 2 * instance.stages + 4)
    graph = expand(instance.model_copy(update={"microbatches": few}))
    evaluations = max(12, min(_MOST_BLOCKS, _MOST_OPS // (4 * len(graph.tasks))))
    values: dict[Block, float] = {}

    def value(block: Block) -> float:
        if block not in values and len(values) < evaluations:
            found = packed_block(graph, block, 1)
            values[block] = float("inf") if found is None else found[0].value(found[1])
        return values.get(block, float("inf"))

    best = min(_FIRST, key=value)
    while len(values) < evaluations:
        better = min(_neighbours(best), key=value)
        if value(better) >= value(best):
            break
        best = better
    return sorted((block for block in values if values[block] < float("inf")), key=values.__getitem__)[:2]


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
"""V-Min's, V-Half's and ZB-V's, and a choice of those that were best of 432 on one or more of 21 instances."""


def _neighbours(block: Block) -> Iterator[Block]:
    """Blocks that differ in one number."""
    for leg in range(4):
        for step in (0.5, -0.5):
            slope = block.slopes[leg] + step
            if slope >= 0:
                yield replace(block, slopes=(*block.slopes[:leg], slope, *block.slopes[leg + 1 :]))
    for turn in range(3):
        for step in (1.0, -1.0):
            rest = block.rests[turn] + step
            if rest >= 0:
                yield replace(block, rests=(*block.rests[:turn], rest, *block.rests[turn + 1 :]))
    for weight in (0.0, 0.5, 1.0):
        yield replace(block, weight=weight)
    for factor in (0.9, 1.1):
        yield replace(block, period=max(1.0, block.period * factor))
