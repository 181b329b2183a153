"""Memory room: whether a stage has memory for one more forward at a given time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction

from zbopt.analysis.metrics import memory_curve
from zbopt.graph.memory import taken_by_forward
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Event


class MemoryRoom:
    """Hold the live memory of one stage over time, and its cap."""

    def __init__(self, instance: Instance, stage: int, events: Sequence[Event]) -> None:
        self.cap = None if instance.memory_cap is None else instance.memory_cap[stage]
        # Without a cap nothing is looked up: to do so for every virtual stage, stage by stage, takes quadratic time.
        capped = self.cap is not None
        self.taken = {v: taken_by_forward(instance, v) for v in instance.virtual_stages_of(stage)} if capped else {}
        curve = list(memory_curve(instance, events)) if capped else []
        self.times = [time for time, _ in curve]
        self.amounts = [amount for _, amount in curve]

    def fits(self, forward: Event, start: int, end: int) -> bool:
        """Return whether the cap has room for all that ``forward`` takes from ``start`` until just before ``end``."""
        v = forward.virtual_stage
        if self.cap is None or v not in self.taken:
            return True
        i = bisect_right(self.times, start) - 1
        j = max(i + 1, bisect_right(self.times, end - 1))
        highest = max(self.amounts[max(i, 0) : j], default=Fraction(0)) if j > 0 else Fraction(0)
        return highest + self.taken[v] <= self.cap
