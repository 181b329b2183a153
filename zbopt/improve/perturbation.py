"""Perturbation: move the ops of a good schedule a little, pack them again, and keep the result if it is no worse.

Packing (``pack``) decides the times; a perturbation decides only the order in which packing looks at the ops. Ops move
in groups: all of one kind on one virtual stage; all of one kind on one arm of the placement, those further along more;
or each by itself. They move in the whole step or within a span of time, so that the repeating middle of a schedule can
change as well as its ends. This is iterated local search as in project scheduling (Valls, Ballestin and Quintanilla
2005), with packing as the improvement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from random import Random

from zbopt.graph import Task, TaskGraph
from zbopt.heuristics.tools.build import (
    fitted_schedule,
    require_plain_step,
)
from zbopt.heuristics.tools.pack import Packing, Starts, ops_by_stage, packed_order
from zbopt.heuristics.tools.patience import OutOfTimeError
from zbopt.problem.instance import COMPUTE, Instance, Kind
from zbopt.problem.schedule import Schedule
from zbopt.timing import stage_orders, starts_of

_SIZES = (0.05, 0.15, 0.5, 1.0)
"""Most that a group moves, in loads of one microbatch. Not measured one by one; chosen from a nudge to a whole load."""
_SPANS = (2.0, 4.0, 8.0, 12.0)
"""Lengths of the span of time that is perturbed, in loads of one microbatch. Not measured; chosen like ``_SIZES``."""
_NEAR = 1.02
"""A packing within this factor of the best is packed twice more: it may end below. Not measured."""
_VAIN, _VAIN_OPS = 250, 150_000
"""Perturbations without a better schedule after which the search ends: so many, or those of so many ops, whichever is
more. Not measured; chosen so that short steps are not left early."""

Offset = Callable[[Task], float]
"""Return how far a task moves, in ticks."""


def perturbed(schedule: Schedule, graph: TaskGraph, seed: int) -> Iterator[Schedule | None]:
    """Yield after each perturbation its schedule if that is the best so far, else ``None``; end after many in vain.

    Args:
        schedule: Where to begin; of ``graph``'s instance.
        graph: The task graph.
        seed: Seed of the perturbations.

    Raises:
        NotApplicableError: More than the ops of one step has to be placed, or activations are dropped.
    """
    instance = graph.instance
    require_plain_step("perturbation", instance)
    random, vain = Random(seed), 0
    starts = starts_of(graph, schedule)
    ops = {i: start for i, start in starts.items() if graph.tasks[i].kind in COMPUTE - {Kind.O}}
    orders = ops_by_stage(graph, chain.from_iterable(stage_orders(graph, ops)))
    packing, best = packed_order(graph, orders, rounds=1)
    value, most = packing.value(best), max(_VAIN, _VAIN_OPS // len(ops))
    while vain < most:
        found = _perturbed(packing, best, value, random)
        vain += 1
        if found is None or packing.value(found) > value:
            yield None
            continue
        if packing.value(found) == value:
            best = found
            yield None
            continue
        best, value, vain = found, packing.value(found), 0
        yield fitted_schedule("perturbation", instance, packing.orders(best))


def _perturbed(packing: Packing, starts: Starts, value: int, random: Random) -> Starts | None:
    """Return ``starts`` perturbed once and packed; ``None`` where memory has no room for an op or time is over."""
    load = _load(packing.graph.instance)
    offset = random.choice(_GROUPS)(packing.graph.instance, load * random.choice(_SIZES), random)
    first, last = 0.0, float(value)
    if random.random() < 0.5:
        length = load * random.choice(_SPANS)
        first = random.uniform(-length / 2, value)
        last = first + length
    key = {i: start + (offset(packing.graph.tasks[i]) if first <= start < last else 0) for i, start in starts.items()}
    for i in packing.order:
        for before, _ in packing.from_start.inputs[i]:
            key[i] = max(key[i], key[before] + 1)
    try:
        found = packing.forward(sorted(key, key=key.__getitem__))
    except OutOfTimeError:
        return None
    if found is None:
        return None
    found = packing.justified(found, 1)
    return packing.justified(found, 2) if packing.value(found) < _NEAR * value else found


def _load(instance: Instance) -> float:
    """Return the work of one microbatch on the busiest stage, in ticks."""
    return max(
        sum(
            instance.ticks_of(v, 0).forward + instance.ticks_of(v, 0).backward_work()
            for v in instance.virtual_stages_of(stage)
        )
        for stage in range(instance.stages)
    )


def _by_class(instance: Instance, size: float, random: Random) -> Offset:
    """Move some of the groups of ops of one kind on one virtual stage."""
    share = random.choice((0.2, 1.0))
    moves: dict[object, float] = {}

    def offset(task: Task) -> float:
        key = task.kind, task.virtual_stage
        if key not in moves:
            moves[key] = _move(size, random) if random.random() < share else 0.0
        return moves[key]

    return offset


def _by_arm(instance: Instance, size: float, random: Random) -> Offset:
    """Move ops of one kind on the virtual stages that pass all stages once, with a slope along these."""
    moves: dict[object, tuple[float, float]] = {}

    def offset(task: Task) -> float:
        arm, place = divmod(task.virtual_stage or 0, instance.stages)
        key = task.kind, arm
        if key not in moves:
            moves[key] = _move(size, random), _move(size / 4, random)
        level, slope = moves[key]
        return level + slope * place

    return offset


def _by_op(instance: Instance, size: float, random: Random) -> Offset:
    """Move each op by itself."""
    return lambda task: _move(size, random)


def _move(size: float, random: Random) -> float:
    return random.uniform(-size, size) + random.uniform(-size, size)


_GROUPS = (_by_class, _by_class, _by_arm, _by_arm, _by_op)
"""Choices of which ops move together; one that is named twice is twice as likely."""
