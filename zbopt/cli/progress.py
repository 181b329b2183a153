"""Progress of a search on stderr: one line that changes on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from zbopt.cli.out import say
from zbopt.portfolio.result import Progress
from zbopt.reports.words import percent

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

_QUIET_S = 2.0
"""Time before the first line of a log, so that short searches print none. Not measured."""
_EVERY_S = 5.0
"""Time between two lines of a log, so that a search of a minute prints about ten. Not measured."""


class ProgressLine:
    """Show the ``Progress`` that a search reports, inside a context. On a terminal the line is erased at the end."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.last = Progress(0.0, None, 0)
        self.said_at: float | None = None
        self.live = _live(self._text) if sys.stderr is not None and sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the newest state of the search."""
        self.last = progress
        if self.live is not None or sys.stderr is None:
            return
        now = time.monotonic()
        quiet_until = self.started + _QUIET_S if self.said_at is None else self.said_at + _EVERY_S
        if now >= quiet_until:
            self.said_at = now
            say(self._line(progress.time_s))

    def _text(self) -> Text:
        from rich.text import Text

        return Text(self._line(time.monotonic() - self.started), no_wrap=True, overflow="ellipsis")

    def _line(self, time_s: float) -> str:
        value, bound = self.last.value, self.last.bound
        gap = "" if value is None else f", gap {percent((value - bound) / value)}"
        best = "none yet" if value is None else value
        doing = f", {self.last.doing}" if self.last.doing else ""
        return f"zbopt: best {best}, bound {bound}{gap}, {time_s:.0f} s{doing}"


def _live(shown: Callable[[], Text]) -> Live | None:
    """Return a line that changes in place; ``None`` where stderr is no terminal that can do so."""
    from rich.console import Console  # imported only for a terminal: it takes a tenth of a start
    from rich.live import Live

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    return Live(
        console=console,
        get_renderable=shown,
        transient=True,
        refresh_per_second=5,
        redirect_stdout=False,
        redirect_stderr=False,
    )
