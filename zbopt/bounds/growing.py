"""Bounds that rise with the work put into them, and the one question of which of them an instance has."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from zbopt.bounds.crossings import Crossings, StageOrder
from zbopt.bounds.valley import Valley
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance

__all__ = ["GrowingBound", "StageOrder", "growing_bound"]


class GrowingBound(Protocol):
    """Represent a lower bound that grows on a thread of its own, while a search asks for what it has proved so far.

    ``grow`` runs on the growing thread and is called once. ``proved_so_far`` and ``note_value`` may be called from
    another thread meanwhile; all else is for before ``grow`` or after it has returned.

    Attributes:
        title: A few words for progress messages, such as ``crossings``.
        time_share: Share of the search's time that it may take while its bound does not rise.
    """

    title: ClassVar[str]
    time_share: ClassVar[float]

    @property
    def cost_s(self) -> float:
        """Return the work so far in seconds of deterministic time: the same on any machine; readable at any time."""

    def grow(self, stop: Callable[[], bool]) -> bool:
        """Do all the work, or as much as there is time for before ``stop()`` is true; return whether it was all."""

    def bound(self) -> Bound:
        """Return the best bound that the work done proves; valid after a growth that was broken off too."""

    def proved_so_far(self) -> Bound | None:
        """Return a bound that holds already while it grows; ``None``: it proves nothing before ``grow`` returns."""

    def note_value(self, value: int) -> None:
        """Take note of a schedule of ``value`` ticks: no bound above it need be proved."""

    def orders(self, microbatches: int) -> dict[int, StageOrder] | None:
        """Return F and B of a best step of so many microbatches, by stage; ``None``: it knows of none."""


def growing_bound(instance: Instance, floor: int, roof: int) -> GrowingBound | None:
    """Return the growing bound that applies to ``instance``; ``None``: none does.

    Args:
        instance: The problem.
        floor: A lower bound that is known, in ticks.
        roof: The value of a known schedule, in ticks.
    """
    return Crossings.of(instance) or Valley.of(instance, floor, roof)
