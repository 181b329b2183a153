"""The adaptive V schedule: for a memory cap the best building block, repeated, then packed from both ends.

The aim is that of the adaptive scheduler of Pipeline Parallelism with Controllable Memory (Qi et al. 2024, arXiv
2405.15362): least bubble under any cap. There the blocks have unit times; here they have the instance's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from zbopt.graph import Key, TaskGraph, expand
from zbopt.heuristics.build import Step, require_kept_activations, require_only_ops, schedule_in_order
from zbopt.heuristics.building_block import Block, repeated, require_v
from zbopt.heuristics.list_schedule import list_orders
from zbopt.heuristics.pack import Packing, Starts
from zbopt.heuristics.patience import OutOfTimeError
from zbopt.instance import Instance
from zbopt.schedule import Schedule
from zbopt.timing import earliest_starts

_MOST_OPS = 200_000
"""Ops to pack over all blocks: about a second."""
_ROUNDS = 8
"""Packings from both ends of what is returned; most stop changing after three."""


def v_auto(instance: Instance) -> Schedule:
    """The best of the blocks that fit the cap, and of the list schedule, each packed from both ends.

    At unit times with k activations of a virtual stage under the cap, p <= k < 2p, the largest stage span is
    6m + 6p - 1 - 3k ticks (models/bounds.md, section 7).

    Raises:
        NotApplicableError: The placement is not v, or activations are dropped.
        CannotFitError: A stage's cap is below one microbatch in both its virtual stages; no schedule fits then.
    """
    require_v("v-auto", instance)
    require_only_ops("v-auto", instance)
    require_kept_activations("v-auto", instance)
    graph = expand(instance)
    found = [_from_list(graph)]
    with suppress(OutOfTimeError):
        packed = (_from_block(graph, block, _ROUNDS) for block in _best_blocks(instance))
        found.extend(best for best in packed if best is not None)
    _, rows = min(found, key=lambda one: one[0])
    return schedule_in_order("v-auto", instance, [[_step(graph, i) for i in row] for row in rows])


def _step(graph: TaskGraph, i: int) -> Step:
    task = graph.tasks[i]
    assert task.virtual_stage is not None
    assert task.microbatch is not None
    return task.kind, task.virtual_stage, task.microbatch


def _from_list(graph: TaskGraph) -> tuple[int, list[list[int]]]:
    rows = [[graph.index[Key(*step)] for step in row] for row in list_orders("v-auto", graph.instance)]
    return _packed(graph, earliest_starts(graph, rows), _ROUNDS)


def _packed(graph: TaskGraph, starts: Starts, rounds: int) -> tuple[int, list[list[int]]]:
    packing = Packing(graph, sorted(starts, key=lambda i: (starts[i], graph.tasks[i].duration_ticks, i)))
    better = packing.justified(starts, rounds)
    return packing.value(better), packing.rows(better)


def _from_block(graph: TaskGraph, block: Block, rounds: int) -> tuple[int, list[list[int]]] | None:
    """Value and order of a block packed from both ends; ``None`` where it does not fit the cap."""
    order = repeated(graph, block)
    packing = Packing(graph, order)
    starts = packing.forward(order)
    if starts is None:
        return None
    better = packing.justified(starts, rounds)
    return packing.value(better), packing.rows(better)


def _best_blocks(instance: Instance) -> list[Block]:
    """The best blocks on a step of few microbatches, the best first."""
    few = min(instance.microbatches, 2 * instance.stages + 4)
    graph = expand(instance.model_copy(update={"microbatches": few}))
    evaluations = max(12, _MOST_OPS // (4 * len(graph.tasks)))
    values: dict[Block, float] = {}

    def value(block: Block) -> float:
        if block not in values and len(values) < evaluations:
            found = _from_block(graph, block, 1)
            values[block] = float("inf") if found is None else found[0]
        return values.get(block, float("inf"))

    best = min(_FIRST, key=value)
    while len(values) < evaluations:
        better = min(_neighbours(best), key=value)
        if value(better) >= value(best):
            break
        best = better
    return sorted((block for block in values if values[block] < float("inf")), key=values.__getitem__)[:2]


_FIRST = [
    Block(slopes, period=period, weight=weight)
    for period in (1.0, 1.25)
    for slopes in ((0.0, 0.0, 0.0, 0.0), (1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 2.0, 1.0), (2.0, 0.0, 2.0, 0.0))
    for weight in (0.0, 1.0)
]
"""V-Min's, V-Half's and two like V-ZB's slopes."""


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
