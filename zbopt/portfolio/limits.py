"""The limits of a solve."""

from __future__ import annotations

import os
from dataclasses import dataclass

from zbopt.problem.schedule import Engine

DEFAULT_TIME_LIMIT_S = 60.0
"""Seconds of a solve that sets no limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold what a solve may use; the attributes are parameters of ``solve``.

    Raises:
        ValueError: A limit is out of range, or the engine cannot keep it.
    """

    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    workers: int | None = None
    seed: int = 0
    deterministic: bool = False
    engine: Engine = Engine.CP_SAT

    def __post_init__(self) -> None:
        if not 0 < self.time_limit_s < 10**7:
            raise ValueError(f"time_limit_s = {self.time_limit_s:g}: give more than 0 and less than 10 million seconds")
        if self.workers is not None and not 1 <= self.workers <= 1024:
            raise ValueError(f"workers = {self.workers}: give 1 to 1024, or none for all processors")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed = {self.seed}: give 0 to {2**31 - 1}")
        if self.engine is Engine.MILP and self.deterministic:
            raise ValueError("deterministic: milp counts no deterministic time; leave it out, or take cp-sat")
        if self.engine is Engine.MILP and (self.workers or 1) > 1:
            raise ValueError(f"workers = {self.workers}: milp runs on one thread; leave workers out, or take cp-sat")

    @property
    def threads(self) -> int:
        """Return the number of threads that search."""
        if self.deterministic or self.engine is Engine.MILP:
            return 1
        return self.workers or len(os.sched_getaffinity(0))
