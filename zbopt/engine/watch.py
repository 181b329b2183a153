"""Start an engine's process and watch it: its messages are passed on as they arrive, and none that was sent is lost."""

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

import zbopt
from zbopt.engine.request import ParentMessage, SolveRequest
from zbopt.problem.bound import Bound
from zbopt.problem.schedule import Engine

_MODULES = {Engine.CP_SAT: "zbopt.cpsat.child", Engine.MILP: "zbopt.engine.milp"}

GRACE_S = 1.0
"""Seconds that the engine may overrun its time limit before it is ended: building a model heeds no clock.

It trades the caller's time limit for the engine's last words; nothing that was sent is lost. Not measured; chosen.
"""

_BOOT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("zbopt", sys.argv[1])
sys.modules["zbopt"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["zbopt"])
importlib.import_module(sys.argv[2]).main()
"""
"""The engine's first lines. They load zbopt from where this process has it, and nothing else from that folder.

``python -m`` would put the current folder first on the import path: a file ``queue.py`` there, of no concern to zbopt,
would be loaded in place of the standard library's.
"""

_END = object()


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """Hold one message of an engine: a schedule, a bound, or what the engine does now.

    ``value`` and ``starts`` (by task, in ticks) are ``None`` where the message brings no schedule.
    """

    value: int | None = None
    starts: dict[int, int] | None = None
    bound: Bound | None = None
    doing: str | None = None


class SolverDiedError(RuntimeError):
    """Say how the solver's process ended before it was done."""


@dataclass(frozen=True, slots=True)
class ParentWork:
    """Hold what the parent does while an engine runs.

    It takes one of ``pieces`` after the other, which does a piece of work, and sends ``messages`` to the engine.
    ``None`` as a message says that no more will follow.
    """

    pieces: Iterator[object]
    messages: queue.SimpleQueue[ParentMessage | None] = field(default_factory=queue.SimpleQueue)


def run(
    request: SolveRequest, work: ParentWork | None = None, *, poll_s: float = 0.2
) -> Iterator[EngineMessage | None]:
    """Run an engine in a process of its own and yield its messages, and ``None`` at least every ``poll_s`` without one.

    Closing the iterator ends the process.

    Args:
        request: The instance, the limits, and the schedule and bound to begin with.
        work: What this process does. It does a piece whenever no message waits, with a ``None`` after each.
        poll_s: Seconds to wait for a message where there is no work.

    Raises:
        SolverDiedError: The process crashed or was killed, or could not be started.
    """
    process = _started(_MODULES[request.engine])
    work = work or ParentWork(iter(()))
    try:
        yield from _watch(process, request, work, poll_s)
    finally:
        work.messages.put(None)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            # What was not yet written can no longer be: the process is gone.
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def _started(module: str) -> subprocess.Popen[str]:
    assert zbopt.__file__ is not None, "zbopt is a package with a file"
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, zbopt.__file__, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
        )
    except OSError as error:  # a limit on processes, files or memory
        raise SolverDiedError(f"the solver's process could not be started: {error.strerror or error}") from None


def _import_path() -> list[str]:
    """Return this process's import path without the current folder, so that the engine finds the same packages."""
    return [folder for folder in sys.path if not _is_current(folder)]


def _is_current(folder: str) -> bool:
    """Return whether an entry of the import path is the current folder, by any name; the empty one is."""
    try:
        return os.path.samefile(folder or os.curdir, os.curdir)
    except OSError:  # no such folder
        return False


def _watch(
    process: subprocess.Popen[str], request: SolveRequest, work: ParentWork, poll_s: float
) -> Iterator[EngineMessage | None]:
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdin is not None
    threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True).start()
    threading.Thread(target=_collect, args=(process.stderr, errors), daemon=True).start()
    threading.Thread(target=_write, args=(process.stdin, request, work.messages), daemon=True).start()
    # Deterministic time runs slower or faster than the clock, so it gets no watchdog of this kind.
    deadline = None if request.deterministic else time.monotonic() + request.time_limit_s + GRACE_S
    working = request.busy > 0
    while True:
        try:
            line = lines.get_nowait() if working else lines.get(timeout=poll_s)
        except queue.Empty:
            if working and next(work.pieces, _END) is _END:
                working = False
                work.messages.put(ParentMessage(busy=0))
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
    """Put each line of the engine's output into ``lines``, and ``None`` at its end."""
    try:
        for line in pipe:
            lines.put(line)
    except ValueError:  # the pipe was closed under us: the run is over
        return
    lines.put(None)


def _collect(pipe: IO[str], errors: list[str]) -> None:
    """Append each line that the engine writes to its standard error to ``errors``."""
    try:
        errors.extend(pipe)
    except ValueError:  # as above
        return


def _write(pipe: IO[str], request: SolveRequest, messages: queue.SimpleQueue[ParentMessage | None]) -> None:
    """Write the request to the engine, then each message as it comes, until one is ``None``."""
    try:
        message: SolveRequest | ParentMessage | None = request
        while message is not None:
            pipe.write(message.model_dump_json() + "\n")
            pipe.flush()
            message = messages.get()
    except (BrokenPipeError, ValueError):  # the engine is gone; whoever reads its output reports that
        return


def _parsed(line: str) -> EngineMessage | None:
    """Return one message; ``None`` for the last. A line that a kill has cut off becomes an empty message."""
    try:
        fields = json.loads(line)
    except json.JSONDecodeError:
        return EngineMessage()
    if "done" in fields:
        return None
    if "found" in fields:
        return EngineMessage(value=fields["found"], starts={int(i): start for i, start in fields["starts"].items()})
    if "bound" in fields:
        return EngineMessage(bound=Bound(fields["bound"], fields["proved_by"]))
    return EngineMessage(doing=fields["doing"])


def _cause(process: subprocess.Popen[str], errors: list[str]) -> str:
    """Return how a process ended: by a signal, or with an exit code and the last line of its errors."""
    code = process.wait()
    if code < 0:
        # What a library printed before says nothing of why another program ended it.
        return f"the solver's process was killed by signal {-code}"
    last = errors[-1].strip() if errors else ""
    return f"the solver's process ended with exit code {code}" + (f": {last}" if last else "")
