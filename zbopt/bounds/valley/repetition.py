"""Layers of a long step repeat: once a layer is an earlier one some time later, so are all that follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from zbopt.bounds.valley.kept import Integers, Kept, is_long
from zbopt.bounds.valley.states import BEGUN, LEAST, PLACES, TIME


@dataclass
class Repetition:
    """Looks for a layer that repeats an earlier one, and goes on from it as many periods later as there are.

    Attributes:
        kept: The problem.
        sought: Whether it is looked for; until it is found no state may be left out by a horizon.
        seen: By digest of a layer after whole microbatches: how many these were, and the first latest start.
    """

    kept: Kept
    sought: bool
    seen: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, kept: Kept) -> Repetition:
        """Sought in a long step."""
        return cls(kept, is_long(kept))

    def skip(self, layer: Integers, done: int) -> int:
        """Ops that are skipped after ``done`` of them; their time and microbatches are added to ``layer``."""
        begun, rest = divmod(done, len(self.kept.stage))
        if not self.sought or rest:
            return 0
        # As many more begin while no state has begun the last one.
        left = self.kept.microbatches - begun - self.kept.most_under_way - 1
        digest, time = self._digest(layer, begun), int(layer[:, TIME].min())
        before = self.seen.setdefault(digest, (begun, time))
        self.sought = left > 0 and before[0] == begun
        if self.sought or left <= 0:
            return 0
        period = begun - before[0]
        periods = left // period
        self._move_on(layer, periods * (time - before[1]), periods * period)
        return periods * period * len(self.kept.stage)

    def _digest(self, layer: Integers, begun: int) -> bytes:
        """The same for layers that differ by a time and by microbatches that have come and gone."""
        rows = layer.copy()
        self._move_on(rows, -int(layer[:, TIME].min()), -begun)
        rows = np.ascontiguousarray(rows[:, [TIME, BEGUN, *range(PLACES, rows.shape[1])]])
        each = np.dtype((np.void, rows.shape[1] * rows.itemsize))
        return sha256(np.sort(rows.view(each).ravel()).tobytes()).digest()

    def _move_on(self, layer: Integers, time: int, microbatches: int) -> None:
        """Let all that is in ``layer`` happen later, after so many more microbatches."""
        slots, stages = self.kept.most_under_way, len(self.kept.full)
        layer[:, BEGUN] += microbatches
        layer[:, [TIME, LEAST]] += time
        ready = PLACES + slots
        layer[:, ready : ready + slots] += np.where(layer[:, PLACES:ready] >= 0, time, 0).astype(layer.dtype)
        layer[:, ready + slots : ready + slots + stages] += time
