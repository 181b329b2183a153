"""The engine's side of the pipe: a request and later messages come on stdin, results leave on stdout, as JSON lines.

An engine runs in a process of its own and not in the caller's, so that a crash, a kill or a lack of memory costs
nothing that was found before: the parent holds every schedule and bound that has been sent.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

from zbopt.engine.request import ParentMessage, SolveRequest
from zbopt.problem.bound import Bound

_GARBAGE_THRESHOLD = 100_000
"""New objects between two searches for garbage, where Python's own default is 700.

It trades memory for time: a model is many small objects, and hardly any of them is garbage. Not measured; chosen well
above the objects of one constraint family.
"""


class EngineChannel:
    """Send results to the parent, in ticks of the request's instance, and receive the parent's messages."""

    def __init__(self, parent: TextIO | None = None) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints must not mix with the results
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        if parent is not None:
            threading.Thread(target=self._listen, args=(parent,), daemon=True).start()

    def _listen(self, parent: TextIO) -> None:
        for line in parent:
            self._lines.put(line)
        os._exit(1)  # the parent has gone without a word: nobody reads what is found from here on

    def messages(self) -> Iterator[ParentMessage]:
        """Yield the messages that have arrived since the last call."""
        while not self._lines.empty():
            yield ParentMessage.model_validate_json(self._lines.get())

    def _send(self, **fields: object) -> None:
        self._out.write(json.dumps(fields) + "\n")
        self._out.flush()

    def send_schedule(self, value: int, starts: Mapping[int, int]) -> None:
        """Send a better schedule: its objective value, and the start of each task that runs."""
        self._send(found=value, starts=starts)

    def send_bound(self, bound: Bound) -> None:
        """Send a better bound."""
        self._send(bound=bound.value, proved_by=bound.proved_by)

    def send_activity(self, activity: str) -> None:
        """Say in words what the engine does now."""
        self._send(doing=activity)

    def send_done(self) -> None:
        """Say that nothing more will come."""
        self._send(done=True)


def serve(engine: Callable[[SolveRequest, EngineChannel], None]) -> None:
    """Read one request, run ``engine`` on it, and say when it is done."""
    gc.freeze()  # objects that the imports made stay to the end: no search for garbage need look at them
    gc.set_threshold(_GARBAGE_THRESHOLD)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    # A copy of stdin: the listening thread still waits on it when Python ends, and would keep Python from closing it.
    parent = os.fdopen(os.dup(sys.stdin.fileno()))
    request = SolveRequest.model_validate_json(parent.readline())
    _limit_memory(request.memory_limit_mb)
    channel = EngineChannel(parent)
    engine(request, channel)
    channel.send_done()


def _limit_memory(megabytes: int) -> None:
    """Set a hard limit well above the engine's own, so that a leak ends this process and not the machine."""
    limit = 2 * megabytes * 2**20
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
