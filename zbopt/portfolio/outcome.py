"""From the state of a solve to its result."""

from __future__ import annotations

from zbopt.portfolio.result import Infeasible, Result
from zbopt.portfolio.state import SolveState
from zbopt.problem.schedule import Provenance, Schedule, Status, versions


def result_of(state: SolveState, infeasible: Infeasible | None, *, interrupted: bool) -> Result:
    """Return the result of a solve that has come to its end, or was ``interrupted`` by Ctrl-C."""
    incumbent, status = state.incumbent, _status(state, infeasible)
    return Result(
        instance=state.instance,
        status=status,
        schedule=_stamped(state, status),
        value=incumbent.value,
        bound=incumbent.bound,
        wall_time_s=state.clock.elapsed_s(),
        best_heuristic=incumbent.best_heuristic,
        infeasible=infeasible,
        interrupted=interrupted,
        fault=incumbent.fault,
        history=tuple(state.progress.history),
        notes=tuple(state.notes),
    )


def _status(state: SolveState, infeasible: Infeasible | None) -> Status:
    if infeasible is not None:
        return Status.INFEASIBLE
    if state.incumbent.is_optimal:
        return Status.OPTIMAL
    return Status.UNKNOWN if state.incumbent.schedule is None else Status.FEASIBLE


def _stamped(state: SolveState, status: Status) -> Schedule | None:
    """Return the best schedule with the provenance of this solve."""
    incumbent, limits = state.incumbent, state.limits
    if incumbent.schedule is None:
        return None
    provenance = Provenance(
        source=incumbent.schedule.provenance.source,
        engine=limits.engine,
        status=status,
        value=incumbent.value,
        lower_bound=incumbent.bound.value,
        proved_by=incumbent.bound.proved_by,
        seed=limits.seed,
        workers=limits.threads,
        time_limit_s=limits.time_limit_s,
        wall_time_s=round(state.clock.elapsed_s(), 3),
        deterministic=limits.deterministic,
        versions=versions(),
    )
    return incumbent.schedule.model_copy(update={"provenance": provenance})
