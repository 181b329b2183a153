"""Orders in which a stage runs an F and a BW as one op, where the instance has a time for that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from zbopt.graph import TaskGraph, expand
from zbopt.graph.model import Key
from zbopt.heuristics.tools.build import (
    NotApplicableError,
    OrderedOp,
    fitted_schedule,
    keeps_activations,
    provenance_of,
    with_value,
)
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule
from zbopt.timing import best_starts, orders_of_steps, schedule_of

Pair = tuple[OrderedOp, OrderedOp]
"""An F and a BW for one op."""


def overlapped_in_order(name: str, instance: Instance, orders: Sequence[Iterable[OrderedOp | Pair]]) -> Schedule:
    """Return the schedule that runs ``orders`` at the best times; a pair is an F, then a BW where ops do not overlap.

    Args:
        name: The heuristic's name, for provenance and errors.
        instance: The problem.
        orders: For each stage, its ops and pairs in the order in which they run.

    Raises:
        NotApplicableError: Ops overlap, and activations are dropped as well.
        CannotFitError: The order needs more memory than a stage's cap.
        DeadlockError: The orders contradict the precedences.
    """
    if instance.overlapped_ticks is None:
        return fitted_schedule(name, instance, [list(_ops(order)) for order in orders])
    if not keeps_activations(instance):
        raise NotApplicableError(f"{name}: activations are dropped and ops overlap; leave one of the two out")
    graph = expand(instance)
    pairs, alone = _pairs(graph, orders)
    merged = _merged(graph, pairs)
    starts = best_starts(merged, orders_of_steps(merged, alone))
    both = starts | {backward: starts[forward] for forward, backward in pairs.items()}
    return with_value(name, schedule_of(merged, both, provenance_of(name)))


def _ops(order: Iterable[OrderedOp | Pair]) -> Iterable[OrderedOp]:
    for entry in order:
        if isinstance(entry[0], tuple):
            yield from entry
        else:
            yield entry


def _pairs(
    graph: TaskGraph, orders: Sequence[Iterable[OrderedOp | Pair]]
) -> tuple[dict[int, int], list[list[OrderedOp]]]:
    """Return the BW task of each F task that it runs with, and the orders without those BW."""
    pairs: dict[int, int] = {}
    alone: list[list[OrderedOp]] = [[] for _ in orders]
    times = graph.instance.overlapped_ticks
    for stage, order in enumerate(orders):
        for entry in order:
            ops = list(_ops([entry]))
            if len(ops) == 2 and times is not None and times[stage] is not None:
                forward, backward = (graph.index[Key(*op)] for op in ops)
                pairs[forward] = backward
                ops = ops[:1]
            alone[stage] += ops
    return pairs, alone


def _merged(graph: TaskGraph, pairs: dict[int, int]) -> TaskGraph:
    """Return ``graph`` with the F of each pair in the place of both, as long as the overlapped op."""
    times = graph.instance.overlapped_ticks
    assert times is not None, "asked only where ops overlap"
    name = {backward: forward for forward, backward in pairs.items()}
    tasks = list(graph.tasks)
    for i in (*pairs, *pairs.values()):
        ticks = times[tasks[i].stage]
        assert ticks is not None, "only ops of stages that overlap are paired"
        tasks[i] = replace(tasks[i], duration_ticks=ticks)
    return replace(
        graph,
        tasks=tuple(tasks),
        precedences=tuple(
            replace(e, before=name.get(e.before, e.before), after=name.get(e.after, e.after)) for e in graph.precedences
        ),
        joins=tuple(replace(j, before=tuple(name.get(i, i) for i in j.before)) for j in graph.joins),
    )


def gradient_ops(instance: Instance, virtual_stage: int, microbatch: int) -> tuple[list[OrderedOp], list[OrderedOp]]:
    """Return the op of a microbatch that hands on its gradient, and what may come later: its W, or nothing."""
    ticks = instance.ticks_of(virtual_stage, microbatch)
    weight: list[OrderedOp] = [(Kind.W, virtual_stage, microbatch)]
    if ticks.weight is None:
        return [(Kind.BW, virtual_stage, microbatch)], []
    return ([(Kind.B, virtual_stage, microbatch)], weight) if ticks.backward is not None else (weight, [])
