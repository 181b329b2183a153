"""Which part of a schedule its objective measures, and the event that the measured time ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from zbopt.analysis.idle.waits import Waits
from zbopt.problem.instance import COMPUTE, Objective
from zbopt.problem.schedule import Event


@dataclass(frozen=True, slots=True)
class Measured:
    """From ``begin`` to ``end``, on ``stage`` (``None``: all stages), which ``last`` ends; a period by starting.

    ``last`` is ``None`` where there are no events.
    """

    objective: Objective
    stage: int | None
    begin: int
    end: int
    last: Event | None


def measured(waits: Waits) -> Measured:
    """What the objective measures: of stages, or iterations, that take equally long, the first."""
    rows = [row for row in waits.rows if row]
    objective = waits.instance.objective
    if objective is Objective.PERIOD:
        steps = [step for row in rows for step in pairwise(_first_ops(row))]
        if steps:
            one, other = max(steps, key=lambda step: step[1].start - step[0].start)
            return Measured(objective, one.stage, one.start, other.start, other)
    elif objective is Objective.MAX_STAGE_SPAN and rows:
        lasts = [max(row, key=lambda e: e.end) for row in rows]
        row, last = max(zip(rows, lasts, strict=True), key=lambda pair: pair[1].end - pair[0][0].start)
        return Measured(objective, last.stage, row[0].start, last.end, last)
    last_of_all = max(waits.at.values(), key=lambda e: (e.end, e.kind in COMPUTE, e.start), default=None)
    return Measured(Objective.MAKESPAN, None, waits.begin, waits.end, last_of_all)


def _first_ops(row: Sequence[Event]) -> list[Event]:
    """The op that each iteration begins with on a stage."""
    firsts: dict[int, Event] = {}
    for e in row:
        firsts.setdefault(e.iteration, e)
    return [firsts[iteration] for iteration in sorted(firsts)]
