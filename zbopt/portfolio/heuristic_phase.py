"""The phase of a solve that tries heuristics: the caller's, then zbopt's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from zbopt.bounds import lower_bound
from zbopt.heuristics import HEURISTICS, CannotFitError, Heuristic, NotApplicableError
from zbopt.heuristics.list_schedule import first_schedule
from zbopt.heuristics.tools.patience import OutOfTimeError, bounded, limited
from zbopt.portfolio.state import SolveState
from zbopt.problem.schedule import Engine, Schedule

log = logging.getLogger(__name__)

_SHARE = 0.5
"""Share of the time after which no further heuristic begins, and those that search stop with what they have. Not
measured; chosen so that an engine has at least as long as the heuristics."""
_OPS_TO_HURRY = 20_000
"""Where a step has more ops, any heuristic may take seconds: one schedule comes first, as fast as can be."""

_NO_SCHEDULE = (CannotFitError, NotApplicableError, OutOfTimeError)
"""What a heuristic raises where it has no schedule of the instance."""


def try_own_heuristics(state: SolveState, heuristics: Mapping[str, Heuristic]) -> None:
    """Try the caller's heuristics on the whole instance, until one meets the bound or the time is over.

    Whatever is wrong with one of them is logged and noted, and does not end the solve.
    """
    over = partial(state.is_over, _SHARE)
    for name, heuristic in heuristics.items():
        if state.incumbent.is_optimal or over():
            return
        state.progress.doing = f"heuristic {name}"
        try:
            with limited(over), bounded(state.incumbent.bound.value):
                schedule = heuristic(state.instance)
        except _NO_SCHEDULE as reason:
            log.info("%s: %s", name, reason)
        except Exception as fault:  # the caller's code may fail in any way
            _note(state, f"candidate {name} raised {type(fault).__name__}: {fault}")
        else:
            _offer_own(state, name, schedule)


def _offer_own(state: SolveState, name: str, schedule: object) -> None:
    """Offer what a heuristic of the caller returned, which may be anything."""
    if not isinstance(schedule, Schedule):
        _note(state, f"candidate {name} returned {type(schedule).__name__}; it must return a Schedule")
        return
    # It may name another instance, and the schedule's own is what reports read.
    of_instance = schedule.model_copy(update={"instance": state.instance})
    violation = state.incumbent.offer(of_instance, heuristic=name, level=logging.INFO)
    if violation is not None:
        _note(state, f"candidate {name} returned an invalid schedule: {violation}")


def _note(state: SolveState, note: str) -> None:
    log.warning(note)
    state.notes.append(note)


def try_heuristics(state: SolveState, heuristics: Mapping[str, Heuristic]) -> None:
    """Try heuristics until one meets the bound or the time is over, those of a long step on a short one.

    Some schedule comes out, however little time there is.
    """
    incumbent, over = state.incumbent, partial(state.is_over, _SHARE)
    if incumbent.is_optimal:
        return
    with limited(over), bounded(_bound_of_heuristics(state)):
        if state.views.short is None and state.views.op_count > _OPS_TO_HURRY:
            _offer_first(state)
        _try_each(state, heuristics, over)
        if incumbent.schedule is None and over():
            _offer_first(state)
        if incumbent.schedule is None:  # Nothing repeats in any short step, or time is over: the whole one always fits.
            _offer(state, "list", HEURISTICS["list"](state.instance))


def _bound_of_heuristics(state: SolveState) -> int:
    """Return a bound in ticks on the step that heuristics are asked for, which may be the short one."""
    short = state.views.short
    if short is None or state.limits.engine is not Engine.CP_SAT:
        return state.incumbent.bound.value
    return lower_bound(short).value


def _try_each(state: SolveState, heuristics: Mapping[str, Heuristic], over: Callable[[], bool]) -> None:
    """Try one heuristic after another until one meets the bound or the time is over."""
    if state.incumbent.is_optimal:
        return
    for name, heuristic in heuristics.items():
        _try(state, name, heuristic)
        if state.incumbent.is_optimal or over():
            return


def _try(state: SolveState, name: str, heuristic: Heuristic) -> None:
    """Offer the schedule of one heuristic; of a long step, one that is made from that of the short step."""
    state.progress.doing = f"heuristic {name}"
    short = state.views.short
    try:
        schedule = heuristic(state.instance) if short is None else state.views.lengthen(heuristic(short))
    except _NO_SCHEDULE as reason:
        log.info("%s: %s", name, reason)
        return
    if schedule is not None:
        # Only microbatches that are together on a stage in the short step are known to stay apart in the long one.
        _offer(state, name, schedule, level=logging.ERROR if short is None else logging.INFO)


def _offer_first(state: SolveState) -> None:
    """Offer the first schedule, where one can be had without a task graph."""
    began_s = state.clock.elapsed_s()
    state.progress.doing = "heuristic list"
    schedule = first_schedule(state.instance)
    if schedule is not None:
        _offer(state, "list", schedule)
    state.clock.first_schedule_s = state.clock.elapsed_s() - began_s


def _offer(state: SolveState, name: str, schedule: Schedule, *, level: int = logging.ERROR) -> None:
    """Offer what a heuristic found, and count it as work."""
    state.clock.count_events(schedule)
    state.incumbent.offer(schedule, heuristic=name, level=level)
