"""Whether the orders of a schedule wait for themselves: no times mend that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from zbopt.problem.instance import Barrier
from zbopt.problem.schedule import Event
from zbopt.validator.update import Update
from zbopt.validator.verdict import name_of


def circle(update: Update, needs: Iterable[tuple[Event, Event]], rows: Sequence[Sequence[Event]]) -> str | None:
    """A sentence that names ops that wait for each other in a circle; ``None``: there is none.

    Args:
        update: All events that stand for a task.
        needs: Each op with one that it waits for.
        rows: What runs one after another: by stage, by link, by start.
    """
    names, waits = _waits(update, needs, rows)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        found = [names[node] for node in reversed(error.args[1][1:]) if node in names]
        chain = ", which waits for ".join([*found[:6], *(["..."] if len(found) > 6 else []), found[0]])
        return f"{len(found)} ops wait for each other in a circle: {chain}"
    return None


def _waits(
    update: Update, needs: Iterable[tuple[Event, Event]], rows: Sequence[Sequence[Event]]
) -> tuple[dict[int, str], dict[int, list[int]]]:
    """Names of the tasks, and what each waits for, by the event's address; negative numbers join gradients."""
    slots = (*update.at.values(), update.steps, update.reductions)
    counted = [event for row in slots for event in row if event is not None]
    names = {id(event): name_of(event) for event in counted}
    waits: dict[int, list[int]] = {node: [] for node in names}
    for event, awaited in (*needs, *update.boundary()):
        waits[id(event)].append(id(awaited))
    for row in rows:
        for before, after in pairwise([event for event in row if id(event) in names]):
            if before is not after and before.end <= after.start:
                waits[id(after)].append(id(before))
    for number, reduction in enumerate(update.reductions):
        if reduction is not None:
            waits[id(reduction)] += [id(weight) for weight in update.weights(number) if weight is not None]
    _join(update, waits)
    return names, waits


def _join(update: Update, waits: dict[int, list[int]]) -> None:
    """O waits for a node that waits for its gradients: one for all stages at a global barrier."""
    instance = update.instance
    for place, step in enumerate(update.steps):
        if step is None:
            continue
        iteration, stage = divmod(place, instance.stages)
        node = -1 - (iteration * instance.stages if instance.barrier is Barrier.GLOBAL else place)
        waits[id(step)].append(node)
        if node not in waits:
            gradients = update.gradients(iteration, stage)
            waits[node] = [id(gradient) for gradient in gradients if gradient is not None]
