"""Valley: from the last stage of a V, where a microbatch turns round twice, and stages above it.

models/bounds.md, "valley". The least value of a V of which F and B of a few stages are kept, and W and memory on the
last one: exact, op by op, or refuted within a horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import ClassVar

from zbopt.bounds.valley.kept import Kept, applies, can_be_full, keep
from zbopt.bounds.valley.layers import NEVER, first
from zbopt.bounds.valley.limits import least_ends, undominated
from zbopt.bounds.valley.moves import Moves
from zbopt.instance import Instance
from zbopt.result import Bound

__all__ = ["Valley"]

_MOST_STATES = 300_000
"""States of a layer before any is left out; of more the work is not done in time."""

_MOST_UNDER_WAY = 24
"""Microbatches under way; with room for more memory hardly limits."""

Stages = tuple[int, ...]
"""Some stages."""

_STEPS = 8
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
        """Whether all sets of stages had their say before ``stop()``."""
        return all(self.ask(stages, full, stop) for stages, full in self._sets() if self.floor < self.roof)

    def _sets(self) -> list[tuple[Stages, Stages]]:
        """From small to large: the last stage with one halfway down, with one a quarter down, and memory there too."""
        last = self.instance.stages - 1
        half, quarter = (last + 1) // 2, (last + 1) // 4
        if half == last:
            return [((last - 1, last), (last,))]
        sets: list[tuple[Stages, Stages]] = [((half, last), (last,))]
        if quarter < half:
            sets.append(((quarter, half, last), (last,)))
            if can_be_full(self.instance, half):
                sets.append(((quarter, half, last), (half, last)))
        return sets

    def ask(self, stages: Collection[int], full: Collection[int], stop: Callable[[], bool]) -> bool:
        """Raise ``floor`` to the least value of what is kept, in steps; whether that was reached before ``stop()``."""
        kept = keep(self.instance, stages, full)
        step = max(1, (self.roof - self.floor) // _STEPS)
        while self.floor < self.roof:
            horizon = min(self.roof, self.floor + step)
            least, complete = self.least(kept, horizon, stop)
            self.floor = max(self.floor, least)
            if not complete:
                return False
            if least < horizon:
                return True
        return True

    def least(self, kept: Kept, horizon: int, stop: Callable[[], bool]) -> tuple[int, bool]:
        """Least value of what is kept, or ``horizon`` where that is less, and True; else a bound of it, and False."""
        moves, layer, bound = Moves.of(kept), first(kept), 0
        for _ in range(kept.microbatches * (len(kept.stage) + 2 * len(kept.full))):
            if stop() or layer.count > _MOST_STATES:
                return bound, False
            self.expanded += layer.count
            layer = moves.after(layer)
            ends = least_ends(kept, layer)
            layer = layer.take(ends < horizon)
            if not layer.count:
                return horizon, True
            bound = max(bound, int(ends.min()))
            layer = undominated(layer)
        ends = layer.ended
        for full in kept.full:
            ends = ends.clip(min=layer.time + layer.busy[:, full.stage] + full.after_weight)
        return min(horizon, int(ends.min())), True

    def bound(self) -> Bound:
        """What was proved so far."""
        return Bound(self.floor, "bound:valley")
