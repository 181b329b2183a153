"""Valley: from the last stage of a V, where a microbatch turns round twice, and stages above it.

models/bounds.md, "valley". The least value of a V of which F and B of a few stages are kept, and W and memory on the
last one: exact, op by op, or refuted within a horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from zbopt.bounds.valley.kept import Kept, applies, backward, can_be_full, keep
from zbopt.bounds.valley.layers import NEVER, nothing_begun
from zbopt.bounds.valley.limits import least_ends, undominated
from zbopt.bounds.valley.moves import Moves
from zbopt.bounds.valley.tables import Tables
from zbopt.instance import Instance
from zbopt.result import Bound

__all__ = ["Valley"]

_MOST_STATES = 300_000
"""States of a layer before any is left out; of more the work is not done in time."""

_MOST_UNDER_WAY = 24
"""Microbatches under way; with room for more memory hardly limits."""

Level = tuple[tuple[int, ...], tuple[int, ...]]
"""Stages to keep, and which of them are full."""

_STEPS = 16
"""Of the gap: the first horizon that is asked."""


@dataclass
class Valley:
    """What the stages of ``instance`` near its turning points prove, between ``floor`` and ``roof``.

    Attributes:
        instance: A V.
        floor: A bound that is known, raised by ``grow``.
        roof: A value that is known.
        expanded: States whose successors were made: the work so far, the same on any machine.
    """

    states_a_second: ClassVar[int] = 20_000
    """By which deterministic time counts the work."""

    instance: Instance
    floor: int
    roof: int
    expanded: int = field(default=0)

    @classmethod
    def of(cls, instance: Instance, floor: int, roof: int) -> Valley | None:
        """Work that has yet to be done; ``None`` where the argument says nothing."""
        last = instance.stages - 1
        if not applies(instance) or not can_be_full(instance, last) or roof > NEVER // 4:
            return None
        kept = keep(instance, [last], [last])
        if kept.full[0].most >= 2 * instance.microbatches or kept.most_under_way > _MOST_UNDER_WAY:
            return None
        return cls(instance, floor, roof)

    def grow(self, stop: Callable[[], bool]) -> bool:
        """Whether the least value of the largest set of stages was reached before ``stop()``."""
        levels = self._levels()
        for count in range(1, len(levels) + 1):
            if count in (1, len(levels)) and not self.ask(levels[:count], stop):
                return False
        return True

    def _levels(self) -> list[Level]:
        """From small to large: the last stage with one halfway down, with one a quarter down, and memory there too."""
        last = self.instance.stages - 1
        half, quarter = (last + 1) // 2, (last + 1) // 4
        if half == last:
            return [((last - 1, last), (last,))]
        levels: list[Level] = [((half, last), (last,))]
        if quarter < half:
            levels.append(((quarter, half, last), (last,)))
            for full in ((half, last), (quarter, half, last)):
                if all(can_be_full(self.instance, stage) for stage in full):
                    levels.append(((quarter, half, last), full))
        return levels

    def ask(self, levels: Sequence[Level], stop: Callable[[], bool]) -> bool:
        """Raise ``floor`` to the least value of the last level, in steps; whether it was reached before ``stop()``."""
        step = max(1, (self.roof - self.floor) // _STEPS)
        while self.floor < self.roof:
            horizon = min(self.roof, self.floor + step)
            least, complete = self.climb(levels, horizon, stop)
            self.floor = max(self.floor, least)
            if not complete:
                return False
            if least < horizon:
                return True
        return True

    def climb(self, levels: Sequence[Level], horizon: int, stop: Callable[[], bool]) -> tuple[int, bool]:
        """Least value of the last level, or ``horizon`` where that is less, and True; else a bound of it, and False.

        Each level tells the next what is left to do at least: by a run forward, and one backward that uses it.
        """
        known, first = None, min(levels[-1][0])
        for number, (stages, full) in enumerate(levels):
            # What is kept of a level is kept of the next ones too, so that a step of theirs is one of this level.
            kept = keep(self.instance, stages, full, first)
            if number == len(levels) - 1:
                break
            for way in (kept, backward(kept)):
                told = Tables(way)
                least, complete = self.least(way, horizon, stop, known, told)
                if not complete or least >= horizon:
                    return least, complete
                known = told
        return self.least(kept, horizon, stop, known)

    def least(
        self,
        kept: Kept,
        horizon: int,
        stop: Callable[[], bool],
        known: Tables | None = None,
        told: Tables | None = None,
    ) -> tuple[int, bool]:
        """Least value of what is kept, or ``horizon`` where that is less, and True; else a bound of it, and False.

        Args:
            kept: The problem.
            horizon: Steps that end then or later do not count.
            stop: Asked once a layer.
            known: What is left to do at least, within this horizon.
            told: Takes what this run tells of that; all steps within the horizon are looked at.
        """
        moves, layer, bound = Moves.of(kept), nothing_begun(kept), 0
        for _ in range(kept.microbatches * (len(kept.stage) + 2 * len(kept.full))):
            if stop() or layer.count > _MOST_STATES:
                return bound, False
            self.expanded += layer.count
            layer = moves.after(layer, all_ways=told is not None)
            ends = least_ends(kept, layer)
            if known is not None:
                ends = np.maximum(ends, known.least_ends(kept, layer))
            layer = layer.take(ends < horizon)
            if not layer.count:
                return horizon, True
            bound = max(bound, int(ends.min()))
            layer = undominated(layer)
            if told is not None:
                told.take(layer)
        ends = layer.ended
        for full in kept.full:
            ends = np.maximum(ends, layer.time + layer.busy[:, full.stage] + full.after_weight)
        if told is not None:
            told.close()
        return min(horizon, int(ends.min())), True

    def bound(self) -> Bound:
        """What was proved so far."""
        return Bound(self.floor, "bound:valley")
