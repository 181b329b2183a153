"""``zbopt``, and ``python -m zbopt``: the command line, with an answer to Ctrl-C from the first moment on."""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType

_INTERRUPTED = 130


def main() -> None:
    """Load the command line and run it, and end this process."""
    # Most of a start is imports. Nothing is lost in them, and what they make of a KeyboardInterrupt is theirs to say.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    gc.disable()  # they make hardly any garbage
    from zbopt import cli

    gc.enable()
    cli.main(_loaded)


def _loaded() -> None:
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"zbopt: interrupted before there was a result\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
