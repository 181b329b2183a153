"""Layers of a long step repeat: once a layer is an earlier one some time later, so are all that follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from zbopt.bounds.valley.relaxation import Integers, Relaxation, is_long
from zbopt.bounds.valley.states import Column, first_columns


class _Seen(NamedTuple):
    """Hold after how many whole microbatches a layer was seen, and the first of its latest starts."""

    begun: int
    time: int


@dataclass
class Repetition:
    """Look for a layer that repeats an earlier one, and go on from it as many periods later as there are.

    Attributes:
        relaxation: The problem.
        sought: Whether it is looked for; until it is found no state may be left out by a horizon.
        seen: Layers after whole microbatches, by digest.
    """

    relaxation: Relaxation
    sought: bool
    seen: dict[bytes, _Seen] = field(default_factory=dict)

    @classmethod
    def of(cls, relaxation: Relaxation) -> Repetition:
        """Return one that is sought in a long step only."""
        return cls(relaxation, is_long(relaxation))

    def skip(self, layer: Integers, done: int) -> int:
        """Move ``layer`` on to where repetition ends after ``done`` ops; return how many ops that skips."""
        ops = len(self.relaxation.stage)
        begun, rest = divmod(done, ops)
        if not self.sought or rest:
            return 0
        # As many more begin while no state has begun the last one.
        left = self.relaxation.microbatches - begun - self.relaxation.most_under_way - 1
        digest, time = self._digest(layer, begun), int(layer[:, Column.LATEST_START].min())
        earlier = self.seen.setdefault(digest, _Seen(begun, time))
        self.sought = left > 0 and earlier.begun == begun
        if self.sought or left <= 0:
            return 0
        period = begun - earlier.begun
        periods = left // period
        self._move_on(layer, periods * (time - earlier.time), periods * period)
        return periods * period * ops

    def _digest(self, layer: Integers, begun: int) -> bytes:
        """Return a digest that layers share if they differ by a time, and by microbatches that have come and gone."""
        states = layer.copy()
        self._move_on(states, -int(layer[:, Column.LATEST_START].min()), -begun)
        # The other columns follow from these, or say where a state is in its layer.
        told_apart_by = [Column.LATEST_START, Column.BEGUN, *range(Column.AT, states.shape[1])]
        states = np.ascontiguousarray(states[:, told_apart_by])
        each = np.dtype((np.void, states.shape[1] * states.itemsize))
        return sha256(np.sort(states.view(each).ravel()).tobytes()).digest()

    def _move_on(self, layer: Integers, time: int, microbatches: int) -> None:
        """Let all that is in ``layer`` happen later, after so many more microbatches."""
        columns = first_columns(self.relaxation.most_under_way, len(self.relaxation.full))
        layer[:, Column.BEGUN] += microbatches
        layer[:, [Column.LATEST_START, Column.LEAST_END]] += time
        is_taken = layer[:, columns.at : columns.ready] >= 0
        layer[:, columns.ready : columns.busy] += np.where(is_taken, time, 0).astype(layer.dtype)
        layer[:, columns.busy : columns.owed] += time
