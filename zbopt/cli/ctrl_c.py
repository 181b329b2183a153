"""Handling of Ctrl-C: the first press ends the search; no press loses a result or cuts a file.

SIGTERM has the same effect: ``timeout`` and batch systems send it when time is over.
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
"""Presses that follow each other within this time count as one. Not measured; chosen for an impatient hand."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def pressed_once() -> Iterator[None]:
    """Treat presses in quick succession as one: after the first, the search still has to print what it found."""
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
    """Ignore Ctrl-C: for a file or a page that is written in a moment, and of which a part is of no use."""
    with _handled(lambda number, frame: None):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let ``handler`` handle the signals, except those that are ignored already, and except outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number in _SIGNALS if before[number] not in (None, signal.SIG_IGN)]
    for number in handled:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
