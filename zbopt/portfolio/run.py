"""From an instance to a proved schedule: closed bounds, then heuristics until one meets them, then search between.

Whatever a heuristic or an engine claims, only what the validator accepts becomes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zbopt.bounds import lower_bound
from zbopt.engine.reach import require_modelled
from zbopt.heuristics import candidates_of
from zbopt.portfolio.engine_phase import search
from zbopt.portfolio.heuristic_phase import try_heuristics, try_own_heuristics
from zbopt.portfolio.limits import DEFAULT_TIME_LIMIT_S, Limits
from zbopt.portfolio.outcome import result_of
from zbopt.portfolio.result import Progress, Result, infeasible
from zbopt.portfolio.state import SolveState
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Engine, Schedule
from zbopt.validator import validate


def solve(
    instance: Instance,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    workers: int | None = None,
    seed: int = 0,
    deterministic: bool = False,
    engine: Engine | str = Engine.CP_SAT,
    on_progress: Callable[[Progress], None] | None = None,
    candidates: Mapping[str, Callable[[Instance], Schedule]] | None = None,
    start: Schedule | None = None,
) -> Result:
    """Find the best schedule of ``instance`` that the limits allow, and prove how good it is.

    Ctrl-C ends the search and returns what was found.

    Args:
        instance: The problem.
        time_limit_s: Seconds for the whole solve; seconds of CP-SAT's deterministic time where ``deterministic``.
        workers: Threads of the search; ``None``: one for each processor that this process may use.
        seed: Seed of all random choices.
        deterministic: Reach the same value and bound on any machine: with one worker, in deterministic time.
        engine: The engine that searches. ``milp`` is the published integer program as the paper runs it, from the best
            heuristic's schedule on and without any bound but its own: the reference to compare with.
        on_progress: Called with each better value or bound, and at least each second with what the search does.
        candidates: Further heuristics by name, tried before zbopt's own, each on the whole instance. One that raises an
            exception, or returns anything but a valid schedule, is left out, and ``Result.notes`` says why.
        start: A valid schedule of ``instance`` to begin with; the result is never worse. ``None``: there is none.

    Raises:
        ValueError: A limit is out of range, ``engine`` does not model the instance, or ``start`` breaks a rule of it.
    """
    instance = instance.replace()  # model_copy(update=...) checks nothing, and what it lets in would fail much later
    limits = Limits(time_limit_s, workers, seed, deterministic, Engine(engine))
    if limits.engine is Engine.MILP:
        require_modelled(instance)
    begin = None if start is None else _checked(instance, start)
    state = SolveState.begin(instance, limits, on_progress or (lambda progress: None))
    reason, interrupted = infeasible(instance), False
    if reason is None:
        try:
            _run_phases(state, candidates or {}, begin)
        except KeyboardInterrupt:
            interrupted = True
    return result_of(state, reason, interrupted=interrupted)


def _run_phases(
    state: SolveState, candidates: Mapping[str, Callable[[Instance], Schedule]], start: Schedule | None
) -> None:
    """Run one phase after another until the bound meets the value or the time is over."""
    if start is not None:
        state.incumbent.offer(start)
    if state.limits.engine is Engine.CP_SAT:
        state.incumbent.prove(lower_bound(state.instance))
    try_own_heuristics(state, candidates)
    try_heuristics(state, candidates_of(state.instance))
    found, optimal = state.incumbent.schedule is not None, state.incumbent.is_optimal
    if found and not optimal and state.clock.has_time_for_graph():
        search(state)


def _checked(instance: Instance, start: Schedule) -> Schedule:
    """Return ``start`` as a schedule of ``instance``, whichever instance it names.

    Raises:
        ValueError: It breaks a rule of ``instance``; the message gives the first violation.
    """
    violations = validate(instance, start).violations
    if violations:
        raise ValueError(f"start is not a valid schedule of the instance: {violations[0]}")
    return start.model_copy(update={"instance": instance})
