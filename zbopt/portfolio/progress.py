"""The messages of a solve to its caller while it runs, and its history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from zbopt.portfolio.clock import Clock
from zbopt.portfolio.result import Progress


@dataclass
class ProgressLog:
    """Tell the caller how a solve stands, and keep each better value and bound.

    Attributes:
        clock: The time of the solve.
        on_progress: Called with each state that is told.
        doing: What the solve does now, in words.
        value: Best value in ticks; ``None``: none yet.
        bound: Best bound in ticks.
        history: The state after each change of value or bound.
        told_at_s: When the caller was last told, in seconds since the solve began.
    """

    clock: Clock
    on_progress: Callable[[Progress], None]
    doing: str = ""
    value: int | None = None
    bound: int = 0
    history: list[Progress] = field(default_factory=list)
    told_at_s: float = 0.0

    def change(self, value: int | None, bound: int) -> None:
        """Write a new value or bound into the history, and tell the caller."""
        self.value, self.bound = value, bound
        self.history.append(self._tell())

    def tell_after(self, interval_s: float) -> None:
        """Tell the caller how things stand, unless that was done within the last ``interval_s`` seconds."""
        if self.clock.elapsed_s() > self.told_at_s + interval_s:
            self._tell()

    def _tell(self) -> Progress:
        self.told_at_s = self.clock.elapsed_s()
        progress = Progress(self.told_at_s, self.value, self.bound, self.doing)
        self.on_progress(progress)
        return progress
