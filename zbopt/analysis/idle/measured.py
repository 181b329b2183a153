"""Measured time: the part of a schedule that its objective measures, and the event that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from zbopt.analysis.idle.dependencies import EventDependencies
from zbopt.problem.instance import COMPUTE, Objective
from zbopt.problem.schedule import Event


@dataclass(frozen=True, slots=True)
class Measured:
    """Represent the time from ``begin`` to ``end`` on ``stage`` (``None``: all stages) that the objective measures.

    ``last`` is the event whose end ends it; for a period, the event whose start ends it. ``None``: there are no events.
    """

    objective: Objective
    stage: int | None
    begin: int
    end: int
    last: Event | None


def measured(dependencies: EventDependencies) -> Measured:
    """Return what the objective measures; where several stages or iterations take equally long, the first of them."""
    stages = [ops for ops in dependencies.stage_ops if ops]
    objective = dependencies.instance.objective
    if objective is Objective.PERIOD:
        steps = [step for ops in stages for step in pairwise(_first_ops(ops))]
        if steps:
            one, other = max(steps, key=lambda step: step[1].start - step[0].start)
            return Measured(objective, one.stage, one.start, other.start, other)
    elif objective is Objective.MAX_STAGE_SPAN and stages:
        lasts = [max(ops, key=lambda e: e.end) for ops in stages]
        ops, last = max(zip(stages, lasts, strict=True), key=lambda pair: pair[1].end - pair[0][0].start)
        return Measured(objective, last.stage, ops[0].start, last.end, last)
    last_of_all = max(dependencies.at.values(), key=lambda e: (e.end, e.kind in COMPUTE, e.start), default=None)
    return Measured(Objective.MAKESPAN, None, dependencies.begin, dependencies.end, last_of_all)


def _first_ops(ops: Sequence[Event]) -> list[Event]:
    """Return the op that each iteration begins with on a stage."""
    firsts: dict[int, Event] = {}
    for e in ops:
        firsts.setdefault(e.iteration, e)
    return [firsts[iteration] for iteration in sorted(firsts)]
