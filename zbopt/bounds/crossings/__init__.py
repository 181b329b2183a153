"""Crossings: a bound by how forwards go down while gradients come up, and one has to wait where they meet.

models/bounds.md, "crossings". The least value of a pipeline of which all F and B are kept, and W and memory on its
first stage: exact, layer by layer, and for any number of microbatches once the layers repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from zbopt.bounds.crossings.front import Front
from zbopt.bounds.crossings.orders import StageOrder, orders
from zbopt.bounds.crossings.pipe import pipe_of
from zbopt.bounds.residency import of_stage
from zbopt.bounds.stage import LeastTimes, slots
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance

__all__ = ["Crossings", "StageOrder"]


@dataclass(frozen=True)
class Crossings:
    """Hold the layers of the stage of ``instance`` whose memory limits most, and of all stages behind it."""

    title: ClassVar[str] = "crossings"
    time_share: ClassVar[float] = 0.4
    """Layers grow no longer than this share of the time left; the rest is for schedules. Not measured; chosen."""

    states_a_second: ClassVar[int] = 250
    """States that deterministic time counts as one second of work. Not measured; chosen."""

    instance: Instance
    front: Front

    @classmethod
    def of(cls, instance: Instance) -> Crossings | None:
        """Return layers that have yet to grow; ``None`` where they say nothing, or little in all the time they take.

        With as many slots as stages the other arguments say as much, and the layers are too large.
        """
        if not instance.is_linear:
            return None
        times = LeastTimes(instance)
        limiting: dict[int, int] = {}
        for stage in range(instance.stages - 1):
            count, value = slots(instance, stage), of_stage(times, stage)
            if count is not None and count < instance.stages - stage and value is not None:
                limiting[stage] = value
        if not limiting:
            return None
        pipe = pipe_of(instance, max(limiting, key=lambda stage: limiting[stage]))
        return None if pipe is None else cls(instance, Front(pipe))

    def grow(self, stop: Callable[[], bool]) -> bool:
        """Add layers until there are enough for the step; return whether there were before ``stop()``."""
        return self.front.grow(self.instance.microbatches, stop)

    @property
    def expanded(self) -> int:
        """Return how many states' successors were made: the work so far, the same on any machine."""
        return self.front.expanded

    @property
    def cost_s(self) -> float:
        """Return the work so far in seconds of deterministic time."""
        return self.expanded / self.states_a_second

    def proved_so_far(self) -> Bound | None:
        """Return ``None``: what the layers prove is asked once, when they have grown."""
        return None

    def note_value(self, value: int) -> None:
        """Ignore ``value``: the layers do not depend on it."""

    def bound(self) -> Bound:
        """Return what the layers grown so far prove."""
        front, value = self.front, 0
        rest = self.instance.microbatches
        if front.repeats is None:
            # Broken off: blocks of as many microbatches as there are layers follow each other ("too large").
            most = len(front.layers)
            rounds = max(0, -(-(rest - most) // most))
            value = rounds * front.next_start(most - 1)
            rest -= rounds * most
        return Bound(value + front.least(rest), "bound:crossings")

    def orders(self, microbatches: int) -> dict[int, StageOrder] | None:
        """Return F and B of a best step of so many microbatches, by stage; ``None``: there are too few layers."""
        if microbatches > len(self.front.layers) and self.front.repeats is None:
            return None
        return orders(self.front, microbatches)
