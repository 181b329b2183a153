"""Runs an engine's process and watches it: news come in as they are sent, and what was sent is never lost."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from zbopt.engine.request import ParentMessage, SolveRequest
from zbopt.problem.bound import Bound
from zbopt.problem.schedule import Engine

_MODULES = {Engine.CP_SAT: "zbopt.cpsat.child", Engine.MILP: "zbopt.engine.milp"}

GRACE_S = 1.0
"""How long the child may overrun its time before it is ended: building a model heeds no clock. Nothing sent is lost."""


_END = object()


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """One message: a schedule (``starts`` by task, with its ``value``), a bound, or what the search does now."""

    value: int | None = None
    starts: dict[int, int] | None = None
    bound: Bound | None = None
    doing: str | None = None


class SolverDiedError(RuntimeError):
    """The solver's process ended before it was done; the message says how."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What the parent does itself while an engine runs: ``work`` piece by piece, and the ``words`` it has for it."""

    work: Iterator[object]
    words: queue.SimpleQueue[ParentMessage | None] = field(default_factory=queue.SimpleQueue)


def run(order: SolveRequest, beside: Beside | None = None, *, poll_s: float = 0.2) -> Iterator[EngineMessage | None]:
    """EngineMessage of a search in a process of its own; ``None`` at least every ``poll_s`` while there are none.

    Closing the iterator ends the process.

    Args:
        order: What the engine is asked.
        beside: Work for this process, of which a piece is done wherever there are no news, with a ``None`` after each.
        poll_s: Seconds to wait for news where there is no work.

    Raises:
        SolverDiedError: The process crashed or was killed, or could not be started.
    """
    process = _started(_MODULES[order.engine])
    beside = beside or Beside(iter(()))
    try:
        yield from _watch(process, order, beside, poll_s)
    finally:
        beside.words.put(None)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            # What was not yet written can no longer be: the process is gone.
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def _started(module: str) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    except OSError as error:  # a limit on processes, files or memory
        raise SolverDiedError(f"the solver's process could not be started: {error.strerror or error}") from None


def _watch(
    process: subprocess.Popen[str], order: SolveRequest, beside: Beside, poll_s: float
) -> Iterator[EngineMessage | None]:
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdin is not None
    threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True).start()
    threading.Thread(target=_collect, args=(process.stderr, errors), daemon=True).start()
    threading.Thread(target=_give, args=(process.stdin, order, beside.words), daemon=True).start()
    # Deterministic time runs slower or faster than the clock, so it gets no watchdog of this kind.
    deadline = None if order.deterministic else time.monotonic() + order.time_limit_s + GRACE_S
    working = order.busy > 0
    while True:
        try:
            line = lines.get_nowait() if working else lines.get(timeout=poll_s)
        except queue.Empty:
            if working and next(beside.work, _END) is _END:
                working = False
                beside.words.put(ParentMessage(busy=0))
            if deadline is not None and time.monotonic() > deadline:
                return
            yield None
            continue
        if line is None:
            raise SolverDiedError(_cause(process, errors))
        message = _parsed(line)
        if message is None:
            return
        yield message


def _forward(pipe: IO[str], lines: queue.Queue[str | None]) -> None:
    try:
        for line in pipe:
            lines.put(line)
    except ValueError:  # the pipe was closed under us: the run is over
        return
    lines.put(None)


def _collect(pipe: IO[str], errors: list[str]) -> None:
    try:
        errors.extend(pipe)
    except ValueError:
        return


def _give(pipe: IO[str], order: SolveRequest, words: queue.SimpleQueue[ParentMessage | None]) -> None:
    try:
        said: SolveRequest | ParentMessage | None = order
        while said is not None:
            pipe.write(said.model_dump_json() + "\n")
            pipe.flush()
            said = words.get()
    except (BrokenPipeError, ValueError):  # the child is gone; its silence is reported where its news are read
        return


def _parsed(line: str) -> EngineMessage | None:
    """One message; ``None`` for the last. A line cut off by a kill counts as nothing said."""
    try:
        news = json.loads(line)
    except json.JSONDecodeError:
        return EngineMessage()
    if "done" in news:
        return None
    if "found" in news:
        return EngineMessage(value=news["found"], starts={int(i): start for i, start in news["starts"].items()})
    if "bound" in news:
        return EngineMessage(bound=Bound(news["bound"], news["proved_by"]))
    return EngineMessage(doing=news["doing"])


def _cause(process: subprocess.Popen[str], errors: list[str]) -> str:
    code = process.wait()
    if code < 0:
        # What a library printed before says nothing of why another program ended it.
        return f"the solver's process was killed by signal {-code}"
    last = errors[-1].strip() if errors else ""
    return f"the solver's process ended with exit code {code}" + (f": {last}" if last else "")
