"""Layers of states: what a step may have begun after so many ops, as the last axis of arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from zbopt.bounds.valley.kept import Full, Integers, Kept

NEVER = 2**40
"""Ticks that no step takes."""

States = NDArray[np.bool_] | NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """States after equally many ops were begun; ticks count from the latest start but for ``time`` and ``ended``.

    The last axis is that of the states: what is asked of all microbatches of a state is then asked of whole rows.

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

    def take(self, states: States) -> Layer:
        """``states`` alone, copied."""
        which = np.flatnonzero(states) if states.dtype == np.bool_ else states
        return Layer(*(getattr(self, field.name).take(which, axis=-1) for field in fields(self)))

    def total(self, table: Integers) -> Integers:
        """Sum of ``table``, a row for each place and a last one of 0, over the microbatches under way, by state."""
        found: Integers = table[self.place].sum(axis=0)
        return found

    @property
    def count(self) -> int:
        """How many states there are."""
        return len(self.time)


def nothing_begun(kept: Kept) -> Layer:
    """The state before all ops."""

    def zeros(*shape: int) -> Integers:
        return np.zeros((*shape, 1), dtype=np.int64)

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


def done(full: Full, layer: Layer) -> Integers:
    """B that were begun on a full stage, by state."""
    left = np.zeros(len(full.held), dtype=np.int64)
    for place in full.gradients:
        left[: place + 1] += 1
    return 2 * layer.begun - layer.total(left)
