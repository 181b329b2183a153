"""Entry point of ``zbopt`` and ``python -m zbopt``: the command line, which answers Ctrl-C from the start on."""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType

_INTERRUPTED = 130


def main() -> None:
    """Load the command line and run it, and end this process."""
    # Most of a start is imports. Ctrl-C loses nothing then, and not every package takes KeyboardInterrupt well.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    gc.disable()  # imports make hardly any garbage, and collecting takes a part of the start
    from zbopt import cli

    gc.enable()
    cli.main(_restore_ctrl_c)


def _restore_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, now that everything is imported."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    """End this process at once, without the exit handlers of modules that are half imported."""
    os.write(2, b"zbopt: interrupted before there was a result\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
