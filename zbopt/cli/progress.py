"""What the search has so far, on stderr: one line that lives on a terminal, few lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from zbopt.cli.out import say
from zbopt.report.words import percent
from zbopt.result import Progress

_QUIET_S = 2.0
_EVERY_S = 5.0


class ProgressLine:
    """A context that takes ``Progress`` from the search. On a terminal the line goes away at the end."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.last = Progress(0.0, None, 0)
        self.said_at: float | None = None
        console = Console(stderr=True, highlight=False)
        self.live = (
            Live(
                console=console,
                get_renderable=self._text,
                transient=True,
                refresh_per_second=5,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            if console.is_terminal and not console.is_dumb_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, progress: Progress) -> None:
        """Take the newest state."""
        self.last = progress
        if self.live is not None or sys.stderr is None:
            return
        now = time.monotonic()
        quiet_until = self.started + _QUIET_S if self.said_at is None else self.said_at + _EVERY_S
        if now >= quiet_until:
            self.said_at = now
            say(self._line(progress.time_s))

    def _text(self) -> Text:
        return Text(self._line(time.monotonic() - self.started), no_wrap=True, overflow="ellipsis")

    def _line(self, time_s: float) -> str:
        value, bound = self.last.value, self.last.bound
        gap = "" if value is None else f", gap {percent((value - bound) / value)}"
        best = "none yet" if value is None else value
        doing = f", {self.last.doing}" if self.last.doing else ""
        return f"zbopt: best {best}, bound {bound}{gap}, {time_s:.0f} s{doing}"
