"""Deadlock: ops that wait for each other in a circle, by their order alone, so that no times mend it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from zbopt.problem.instance import Barrier
from zbopt.problem.schedule import Event
from zbopt.validator.update import Update
from zbopt.validator.verdict import name_of


def cycle_message(
    update: Update, needs: Iterable[tuple[Event, Event]], stage_ops: Sequence[Sequence[Event]]
) -> str | None:
    """Return a sentence that names ops that wait for each other in a circle; ``None``: there is no circle.

    Args:
        update: All events that stand for a task.
        needs: Each op with one that it waits for.
        stage_ops: The ops of each stage, by start.
    """
    names, waits = _wait_graph(update, needs, stage_ops)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        found = [names[node] for node in reversed(error.args[1][1:]) if node in names]
        chain = ", which waits for ".join([*found[:6], *(["..."] if len(found) > 6 else []), found[0]])
        return f"{len(found)} ops wait for each other in a circle: {chain}"
    return None


def _wait_graph(
    update: Update, needs: Iterable[tuple[Event, Event]], stage_ops: Sequence[Sequence[Event]]
) -> tuple[dict[int, str], dict[int, list[int]]]:
    """Return the names of the tasks, and the nodes that each waits for. A task's node is its event's address."""
    slots = (*update.at.values(), update.steps, update.reductions)
    tasks = [event for events in slots for event in events if event is not None]
    names = {id(event): name_of(event) for event in tasks}
    waits: dict[int, list[int]] = {node: [] for node in names}
    for event, awaited in (*needs, *update.boundary()):
        waits[id(event)].append(id(awaited))
    for ops in stage_ops:
        _add_order(ops, waits)
    for number, reduction in enumerate(update.reductions):
        if reduction is not None:
            waits[id(reduction)] += [id(weight) for weight in update.weights(number) if weight is not None]
    _add_steps(update, waits)
    return names, waits


def _add_order(ops: Sequence[Event], waits: dict[int, list[int]]) -> None:
    """Let each op of a stage wait for the one before it. Ops that overlap are no order, and are reported elsewhere."""
    for before, after in pairwise([event for event in ops if id(event) in waits]):
        if before is not after and before.end <= after.start:
            waits[id(after)].append(id(before))


def _add_steps(update: Update, waits: dict[int, list[int]]) -> None:
    """Let each O wait for its gradients, by way of a node with a negative number.

    A global barrier has one such node for all stages: without it, each O would wait for each gradient of every stage.
    """
    instance = update.instance
    for number, step in enumerate(update.steps):
        if step is None:
            continue
        iteration, stage = divmod(number, instance.stages)
        node = -1 - (iteration * instance.stages if instance.barrier is Barrier.GLOBAL else number)
        waits[id(step)].append(node)
        if node not in waits:
            gradients = update.gradients(iteration, stage)
            waits[node] = [id(gradient) for gradient in gradients if gradient is not None]
