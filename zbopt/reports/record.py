"""Results as the JSON objects that ``--json`` prints. Values are in ticks; memory is in the instance's unit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from zbopt.analysis.metrics import Figures, figures
from zbopt.costs.times import time_text
from zbopt.portfolio.result import Result
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import versions

Record = dict[str, Any]


def solve_record(result: Result) -> Record:
    """Return the record that ``zbopt solve --json`` prints. Figures are ``None`` where there is no schedule."""
    instance, schedule = result.instance, result.schedule
    best, why = result.best_heuristic, result.infeasible
    known = figures_record(None if schedule is None else figures(schedule))
    return {
        "status": result.status.value,
        "objective": instance.objective.value,
        "value": result.value,
        **_times(result.value, instance),
        "lower_bound": result.bound.value,
        "gap": result.gap,
        "proved_by": result.bound.proved_by,
        **known,
        "best_heuristic": None if best is None else {"name": best.name, "value": best.value},
        "wall_time_s": round(result.wall_time_s, 3),
        "infeasible": None
        if why is None
        else {"stage": why.stage, "cap": amount(why.cap), "needed": amount(why.needed)},
        "interrupted": result.interrupted,
        "fault": result.fault,
        "found_by": None if schedule is None else schedule.provenance.source,
        "history": [
            {"time_s": round(step.time_s, 3), "value": step.value, "lower_bound": step.bound} for step in result.history
        ],
        "versions": versions(),
        "instance": instance.model_dump(mode="json", exclude_none=True),
    }


def _times(value: int | None, instance: Instance) -> Record:
    """Return the tick, and ``value`` with its unit, such as ``1529.873ms``; ``None`` where a tick has no length."""
    return {
        "value_time": None if value is None else time_text(value, instance.tick),
        "tick": instance.tick,
        "rounding_ticks": amount(instance.rounding_ticks),
    }


def tick_record(instance: Instance) -> Record:
    """Return the tick in which the times of a record count."""
    return {"tick": instance.tick, "rounding_ticks": amount(instance.rounding_ticks)}


def figures_record(known: Figures | None) -> Record:
    """Return the figures of a schedule, all ``None`` where there is none."""
    if known is None:
        return {"makespan": None, "max_stage_span": None, "bubble_ratio": None, "peak_memory": None}
    period = {} if known.period is None else {"period": known.period}
    return {
        "makespan": known.makespan,
        "max_stage_span": known.max_stage_span,
        **period,
        "bubble_ratio": {"makespan": known.bubble_over_makespan, "stage_span": known.bubble_over_stage_span},
        "peak_memory": [amount(peak) for peak in known.peak_memory],
    }


def distance_record(value: int, best: Bound | None) -> Record:
    """Return how far a valid schedule is from the best bound at hand; all ``None`` for an invalid one."""
    if best is None:
        return {"lower_bound": None, "proved_by": None, "distance": None, "distance_ratio": None}
    above = value - best.value
    return {
        "lower_bound": best.value,
        "proved_by": best.proved_by,
        "distance": above,
        "distance_ratio": above / best.value if best.value else None,
    }


def amount(value: Fraction) -> int | float:
    """Return a memory amount as a JSON number."""
    return value.numerator if value.denominator == 1 else float(value)
