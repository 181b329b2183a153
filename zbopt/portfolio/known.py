"""The best lower bound that can be had of a schedule in little time."""

from __future__ import annotations

from zbopt.analysis.metrics import figures
from zbopt.bounds import lower_bound
from zbopt.portfolio.run import solve
from zbopt.problem.bound import Bound
from zbopt.problem.schedule import Schedule, Status

_SMALL_TASKS = 64
"""Largest number of events for which ``validate`` solves the instance, if no bound at hand equals the value.

Not measured; chosen so that most such solves end far below their time limit.
"""
_QUICK_S = 5.0
"""Time limit of that solve: a check should not take as long as a search."""


def best_known(schedule: Schedule) -> Bound:
    """Return the highest lower bound at hand: of closed arguments, of the file itself, or of a short solve.

    A bound in the file that is above the schedule's own value is wrong, and does not count. Only small instances are
    solved.
    """
    instance, claimed = schedule.instance, schedule.provenance
    value = figures(schedule).value(instance.objective)
    bounds = [lower_bound(instance)]
    if claimed.lower_bound is not None and claimed.lower_bound <= value:
        bounds.append(Bound(claimed.lower_bound, f"{claimed.proved_by or 'unknown'}, as the file says"))
    best = max(bounds, key=lambda bound: bound.value)
    if best.value < value and len(schedule.events) <= _SMALL_TASKS:
        result = solve(instance, time_limit_s=_QUICK_S)
        return result.bound if result.status is Status.OPTIMAL else max(best, result.bound, key=lambda b: b.value)
    return best
