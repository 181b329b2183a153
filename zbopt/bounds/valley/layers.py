"""Layers of states: what a step may have begun after so many ops, as rows of arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from zbopt.bounds.valley.kept import Integers, Kept

NEVER = 2**40
"""Ticks that no step takes."""

Rows = NDArray[np.bool_] | NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """States after equally many ops were begun, a row each; ticks count from the latest start but for ``time``.

    Attributes:
        place: Next op of each microbatch under way, the earliest microbatch first; -1: there is none.
        ready: When that op's input arrives; 0: it has.
        busy: When each kept stage is free.
        waiting: Microbatches that wait for W on each full stage.
        time: The latest start.
        begun: Microbatches whose first op was begun.
        ended: Least end of all as the last microbatch tells it; 0 while it is under way.
    """

    place: Integers
    ready: Integers
    busy: Integers
    waiting: Integers
    time: Integers
    begun: Integers
    ended: Integers

    def take(self, rows: Rows) -> Layer:
        """The states in ``rows``, copied."""
        return Layer(*(getattr(self, field.name)[rows] for field in fields(self)))

    def done(self, place: int) -> Integers:
        """How many microbatches have begun the op at ``place``."""
        before: Integers = ((self.place >= 0) & (self.place <= place)).sum(axis=1)
        return self.begun - before

    @property
    def count(self) -> int:
        """How many states there are."""
        return len(self.time)


def nothing_begun(kept: Kept) -> Layer:
    """The state before all ops."""

    def zeros(*shape: int) -> Integers:
        return np.zeros((1, *shape), dtype=np.int64)

    under_way = zeros(kept.most_under_way)
    return Layer(
        under_way - 1,
        under_way,
        zeros(len(kept.stages)),
        zeros(len(kept.full)),
        zeros() + (0 if kept.backward else kept.head),
        zeros(),
        zeros(),
    )
