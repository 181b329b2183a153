"""The phase of a solve in which an engine searches in a process of its own, beside whatever this process does."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from queue import SimpleQueue

from zbopt.analysis.metrics import value_of
from zbopt.engine.request import SolveRequest
from zbopt.engine.watch import EngineMessage, ParentWork, SolverDiedError, run
from zbopt.portfolio.improving_phase import Improvement
from zbopt.portfolio.state import SolveState
from zbopt.problem.schedule import Provenance, versions

log = logging.getLogger(__name__)

_ALONE_S = 1.0
"""Seconds that improving has for itself: it may meet the bound so soon that no engine has to be begun. Not measured."""
_TELL_WAITING_S = 0.2
"""While this process waits for an engine, the caller is told how things stand so often, in seconds."""


def search(state: SolveState) -> None:
    """Improve the best schedule here and let the engine search, at once where there are workers for both.

    Where no engine can search, the best schedule that is found here is the answer.
    """
    improvement = Improvement(state)
    pieces = improvement.pieces()
    alone_s = _ALONE_S if state.improves_beside_engine else float("inf")
    began_s = state.clock.elapsed_s()
    for _ in pieces:
        if state.clock.elapsed_s() > began_s + alone_s:
            break
    if not state.has_engine:
        log.info("overlapped_ticks: no engine searches; the answer is the best heuristic")
    elif not state.incumbent.is_optimal:
        _run_engine(state, improvement, pieces)
    for _ in pieces:
        pass


def _run_engine(state: SolveState, improvement: Improvement, pieces: Iterator[None]) -> None:
    """Take what the engine finds and proves until it is done, the time is over, or it dies."""
    improvement.messages = SimpleQueue()  # what was found before is in the request
    try:
        for message in run(_request(state), ParentWork(pieces, improvement.messages)):
            _take(state, message)
            if state.incumbent.is_optimal:
                return
    except SolverDiedError as fault:
        state.incumbent.fault = str(fault)
        log.warning("%s; the best schedule found before is kept", fault)


def _take(state: SolveState, message: EngineMessage | None) -> None:
    """Take one message of the engine; ``None``: it has none yet."""
    if message is None:
        state.progress.tell_after(_TELL_WAITING_S)
    elif message.starts is not None:
        provenance = Provenance(source=state.limits.engine.value, versions=versions())
        state.incumbent.offer(state.views.schedule_of_starts(message.starts, provenance))
    elif message.bound is not None:
        state.incumbent.prove(message.bound)
    else:
        state.progress.doing = message.doing or state.progress.doing


def _request(state: SolveState) -> SolveRequest:
    """Return what the engine is asked: to begin with the best schedule and the best bound."""
    assert state.incumbent.schedule is not None, "an engine is begun only from a schedule"
    limits, graph, bound = state.limits, state.views.graph, state.incumbent.bound
    return SolveRequest(
        engine=limits.engine,
        instance=graph.instance,
        starts=state.views.starts(state.incumbent.schedule),
        value=value_of(state.views.engine_part(state.incumbent.schedule)),
        bound=bound.value,
        proved_by=bound.proved_by,
        time_limit_s=state.clock.engine_s(),
        workers=limits.threads,
        busy=int(state.improves_beside_engine),
        seed=limits.seed,
        deterministic=limits.deterministic,
        memory_limit_mb=_memory_limit_mb(),
    )


def _memory_limit_mb() -> int:
    """Return three quarters of the machine's memory: CP-SAT stops there instead of bringing the machine down."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4 // 2**20
