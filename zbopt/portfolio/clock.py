"""Time of a solve: seconds on the clock, or where the solve is deterministic, a count of what its heuristics did."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from zbopt.portfolio.limits import Limits
from zbopt.problem.schedule import Schedule

_QUESTIONS_A_SECOND, _EVENTS_A_QUESTION = 250, 100
"""What counts as a second where the clock may decide nothing: so many questions of heuristics whether to go on, where
writing so many events counts as one question. Not measured; chosen so that a deterministic second is about one second
of the machine that bench/README.md describes."""
_GRAPH_AS_LONG_AS = 2.0
"""Building a task graph takes so many times as long as the first schedule of a long step. Not measured in bench/; it
trades a solve that overruns its limit against one that never begins to search."""
_LEAST_ENGINE_S = 0.1
"""Seconds that an engine gets although time is over: it needs a limit above 0."""


@dataclass
class Clock:
    """Say how much of the time of a solve is over.

    Attributes:
        limits: What the solve may use.
        started: When it began, by the monotonic clock.
        questions: How often a deterministic solve was asked whether to go on.
        first_schedule_s: Seconds that the first schedule of a long step took; 0 where none was needed.
    """

    limits: Limits
    started: float = field(default_factory=time.monotonic)
    questions: int = 0
    first_schedule_s: float = 0.0

    def elapsed_s(self) -> float:
        """Return the seconds since the solve began."""
        return time.monotonic() - self.started

    def engine_s(self) -> float:
        """Return the seconds that an engine may use: what is left, or where deterministic, all."""
        limits = self.limits
        left_s = limits.time_limit_s if limits.deterministic else limits.time_limit_s - self.elapsed_s()
        return max(_LEAST_ENGINE_S, left_s)

    def is_late(self, share: float = 1.0) -> bool:
        """Return whether a share of the time is over by the clock; never where the solve is deterministic."""
        return not self.limits.deterministic and self.elapsed_s() > share * self.limits.time_limit_s

    def is_over(self, share: float) -> bool:
        """Return whether a share of the time is over: by the clock, or where deterministic, by the count."""
        if not self.limits.deterministic:
            return self.is_late(share)
        self.questions += 1
        return self.questions > share * self.limits.time_limit_s * _QUESTIONS_A_SECOND

    def count_events(self, schedule: Schedule) -> None:
        """Count the work of writing ``schedule``."""
        self.questions += len(schedule.events) // _EVENTS_A_QUESTION

    def has_time_for_graph(self) -> bool:
        """Return whether a task graph can be built before the time is over: nothing stops that once it has begun."""
        if self.limits.deterministic:
            return True
        left_s = self.limits.time_limit_s - self.elapsed_s()
        return not self.is_late() and _GRAPH_AS_LONG_AS * self.first_schedule_s < left_s
