"""Schedules that keep a given order on some stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from zbopt.cpsat.formulation import Formulation
from zbopt.graph import Key
from zbopt.problem.instance import Kind


def with_orders(formulation: Formulation, orders: Mapping[int, Iterable[tuple[Kind, int]]]) -> Formulation:
    """Return ``formulation`` after it has been given an order of ops on some stages of a linear pipeline.

    This restricts the problem: that no schedule keeps the order says nothing of the problem itself.

    Args:
        formulation: The model; it is changed.
        orders: For some stages, (kind, microbatch) of some of their ops in the order in which they run.
    """
    graph, model = formulation.graph, formulation.model
    for stage, order in orders.items():
        tasks = [graph.index[Key(kind, stage, microbatch)] for kind, microbatch in order]
        for before, after in pairwise(tasks):
            model.add(formulation.start[after] >= formulation.start[before] + graph.tasks[before].duration_ticks)
    return formulation
