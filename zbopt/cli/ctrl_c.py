"""Ctrl-C: one press ends what runs; a second one, or one in the middle of a file, loses nothing of what that leaves.

SIGTERM does the same: it is how ``timeout`` and batch systems say that time is over.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ONE_PRESS_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def pressed_once() -> Iterator[None]:
    """Take presses in quick succession for one: a search that the first has ended still has to show what it found."""
    last = -math.inf

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > _ONE_PRESS_S:
            raise KeyboardInterrupt

    with _handled(press):
        yield


@contextmanager
def ignored() -> Iterator[None]:
    """Take no notice of Ctrl-C: for a file that is short to write, and of which half is of no use."""
    with _handled(lambda number, frame: None):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """The signals as ``handler`` has them; outside the main thread, and where one is ignored already, as it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = [number for number in _SIGNALS if before[number] not in (None, signal.SIG_IGN)]
    for number in heard:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])
