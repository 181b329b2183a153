"""The child's side: an order and then words on stdin, news on stdout, one JSON object a line.

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


class EngineChannel:
    """Sends what an engine learns, in ticks of the order's instance, to the parent, and takes what that says."""

    def __init__(self, words: TextIO | None = None) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints must not mix with the news
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        if words is not None:
            threading.Thread(target=self._listen, args=(words,), daemon=True).start()

    def _listen(self, words: TextIO) -> None:
        for line in words:
            self._words.put(line)
        os._exit(1)  # the parent is gone without a word: nobody hears what is found from here on

    def heard(self) -> Iterator[ParentMessage]:
        """What the parent has said since it was last asked for."""
        while not self._words.empty():
            yield ParentMessage.model_validate_json(self._words.get())

    def _send(self, **news: object) -> None:
        self._out.write(json.dumps(news) + "\n")
        self._out.flush()

    def found(self, value: int, starts: Mapping[int, int]) -> None:
        """A better schedule: its value, and the start of each task that runs."""
        self._send(found=value, starts=starts)

    def proved(self, bound: Bound) -> None:
        """A better bound."""
        self._send(bound=bound.value, proved_by=bound.proved_by)

    def doing(self, what: str) -> None:
        """What the engine does now."""
        self._send(doing=what)

    def done(self) -> None:
        """There will be no more."""
        self._send(done=True)


def serve(engine: Callable[[SolveRequest, EngineChannel], None]) -> None:
    """Read one order, run ``engine`` on it, and say when it is done."""
    gc.freeze()  # what the imports made stays
    gc.set_threshold(100_000)  # a model is many small objects, and hardly any garbage
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    words = os.fdopen(os.dup(sys.stdin.fileno()))  # of its own: a thread waits there when Python ends, and holds it
    order = SolveRequest.model_validate_json(words.readline())
    _limit_memory(order.memory_limit_mb)
    news = EngineChannel(words)
    engine(order, news)
    news.done()


def _limit_memory(megabytes: int) -> None:
    """A hard stop well above the engine's own, so that a leak ends this process and not the machine."""
    limit = 2 * megabytes * 2**20
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
