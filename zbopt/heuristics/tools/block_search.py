"""The search for the building block that suits an instance, which the adaptive V and round-robin schedules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from zbopt.graph import TaskGraph, expand
from zbopt.heuristics.list_schedule import list_orders
from zbopt.heuristics.tools.building_block import Block, Packed
from zbopt.heuristics.tools.pack import packed_order
from zbopt.heuristics.tools.patience import OutOfTimeError, check_time, is_best
from zbopt.problem.instance import Instance

_MOST_OPS = 150_000
"""Ops to pack over all blocks: about a second. Not measured in bench/."""
_LIST_OPS = 30_000
"""Ops to simulate for a list schedule to begin from; the heuristic ``list`` simulates more."""
_LEAST_BLOCKS, _MOST_BLOCKS = 12, 64
"""Blocks to try on a large and on a small instance. Not measured in bench/."""


def best_packed(instance: Instance, candidates: Iterator[Packed]) -> Packed:
    """Return the best of the candidates until one meets the bound or time is over; the first is always waited for.

    Raises:
        OutOfTimeError: Time was over before the first.
    """
    packing, starts = next(candidates)
    with suppress(OutOfTimeError):
        for other in candidates:
            if other[0].value(other[1]) < packing.value(starts):
                packing, starts = other
            if instance.optimizer_ticks is None and is_best(packing.value(starts)):
                break
    return packing, starts


def packed_list(name: str, instance: Instance) -> Packed:
    """Pack a list schedule, for the heuristic ``name``, from both ends.

    Raises:
        CannotFitError: A stage's cap is below what one microbatch needs; no schedule fits then.
    """
    orders = list_orders(name, instance, _LIST_OPS)
    check_time()
    graph = expand(instance)
    check_time()
    return packed_order(graph, orders)


def short_step(instance: Instance) -> TaskGraph:
    """Return the task graph of a step of few microbatches, on which blocks are tried."""
    return expand(instance.model_copy(update={"microbatches": min(instance.microbatches, 2 * instance.stages + 4)}))


def best_blocks(
    graph: TaskGraph, first: Sequence[Block], packed: Callable[[Block], Iterable[Packed]], count: int
) -> list[Block]:
    """Return the best ``count`` blocks on a short step, of ``first`` and of those near the best of them, best first.

    Args:
        graph: The tasks of the short step; on a large one only some blocks are tried.
        first: Where to begin, the most promising first.
        packed: Return the schedules of a block on that step, none where it does not fit.
        count: Blocks to return.
    """
    evaluations = max(_LEAST_BLOCKS, min(_MOST_BLOCKS, _MOST_OPS // (4 * len(graph.tasks))))
    values: dict[Block, float] = {}

    def value(block: Block) -> float:
        if block not in values and len(values) < evaluations:
            values[block] = min((one[0].value(one[1]) for one in packed(block)), default=float("inf"))
        return values.get(block, float("inf"))

    best = min(first, key=value)
    while len(values) < evaluations:
        better = min(_neighbours(best), key=value)
        if value(better) >= value(best):
            break
        best = better
    return sorted((block for block in values if values[block] < float("inf")), key=values.__getitem__)[:count]


def _neighbours(block: Block) -> Iterator[Block]:
    """Yield the blocks that differ from ``block`` in one number."""
    for leg in range(len(block.slopes)):
        for step in (0.5, -0.5):
            slope = block.slopes[leg] + step
            if slope >= 0:
                yield replace(block, slopes=(*block.slopes[:leg], slope, *block.slopes[leg + 1 :]))
    for leg in range(len(block.rests)):
        for step in (1.0, -1.0):
            rest = block.rests[leg] + step
            if rest >= 0:
                yield replace(block, rests=(*block.rests[:leg], rest, *block.rests[leg + 1 :]))
    for weight in (0.0, 0.5, 1.0):
        yield replace(block, weight=weight)
    for factor in (0.9, 1.1):
        yield replace(block, period=max(1.0, block.period * factor))
