"""The search for the building block that suits an instance: what the adaptive schedules of V and round robin share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from zbopt.graph import Key, TaskGraph, expand
from zbopt.heuristics.list_schedule import list_orders
from zbopt.heuristics.tools.building_block import ROUNDS, Block, Packed
from zbopt.heuristics.tools.pack import packed_order
from zbopt.heuristics.tools.patience import OutOfTimeError, check, is_best
from zbopt.problem.instance import Instance

_MOST_OPS = 150_000
"""Ops to pack over all blocks: about a second."""
_LIST_OPS = 30_000
"""Ops to simulate for a list schedule; the heuristic of that name looks for longer."""
_LEAST_BLOCKS, _MOST_BLOCKS = 12, 64
"""Blocks to try on a large and on a small instance."""


def best_packed(instance: Instance, candidates: Iterator[Packed]) -> Packed:
    """The best of the candidates until one meets the bound or time is over; the first one always is waited for.

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
    """A list schedule, for the heuristic ``name``, packed from both ends.

    Raises:
        CannotFitError: A stage's cap is below what one microbatch needs; no schedule fits then.
    """
    orders = list_orders(name, instance, _LIST_OPS)
    check()
    graph = expand(instance)
    rows = [[graph.index[Key(*step)] for step in row] for row in orders]
    check()
    return packed_order(graph, rows, ROUNDS)


def short_step(instance: Instance) -> TaskGraph:
    """The tasks of a step of few microbatches, on which blocks are tried."""
    return expand(instance.model_copy(update={"microbatches": min(instance.microbatches, 2 * instance.stages + 4)}))


def best_blocks(
    graph: TaskGraph, first: Sequence[Block], packed: Callable[[Block], Iterable[Packed]], kept: int
) -> list[Block]:
    """The best ``kept`` blocks on a short step, the best first: of ``first`` and of those near the best of them.

    Args:
        graph: The tasks of the short step; on a large one only some blocks are tried.
        first: Where to begin, the most promising first.
        packed: The schedules of a block on that step, none where it does not fit.
        kept: How many.
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
    return sorted((block for block in values if values[block] < float("inf")), key=values.__getitem__)[:kept]


def _neighbours(block: Block) -> Iterator[Block]:
    """Blocks that differ in one number."""
    for leg in range(len(block.slopes)):
        for step in (0.5, -0.5):
            slope = block.slopes[leg] + step
            if slope >= 0:
                yield replace(block, slopes=(*block.slopes[:leg], slope, *block.slopes[leg + 1 :]))
    for turn in range(len(block.rests)):
        for step in (1.0, -1.0):
            rest = block.rests[turn] + step
            if rest >= 0:
                yield replace(block, rests=(*block.rests[:turn], rest, *block.rests[turn + 1 :]))
    for weight in (0.0, 0.5, 1.0):
        yield replace(block, weight=weight)
    for factor in (0.9, 1.1):
        yield replace(block, period=max(1.0, block.period * factor))
