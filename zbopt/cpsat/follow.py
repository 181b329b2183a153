"""Schedules that keep an order on some stages: the crossings tell it where memory does not limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from zbopt.cpsat.formulation import Formulation
from zbopt.graph import Key
from zbopt.problem.instance import Kind


def follow(formulation: Formulation, rows: Mapping[int, Iterable[tuple[Kind, int]]]) -> Formulation:
    """``formulation`` with the given order of (kind, microbatch) on some stages of a linear pipeline.

    A restriction: that nothing keeps the order says nothing of the problem.
    """
    graph, model = formulation.graph, formulation.model
    for stage, row in rows.items():
        tasks = [graph.index[Key(kind, stage, microbatch)] for kind, microbatch in row]
        for before, after in pairwise(tasks):
            model.add(formulation.start[after] >= formulation.start[before] + graph.tasks[before].duration_ticks)
    return formulation
