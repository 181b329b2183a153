"""Valley: from the last stage of a V, where a microbatch turns round twice, and stages above it.

models/bounds.md, "valley". The least value of a V of which F and B of a few stages are kept, and W and memory on the
last one: exact, op by op, or refuted within a horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log
from typing import ClassVar

import numpy as np

from zbopt.bounds.valley.kept import Integers, Kept, applies, backward, can_be_full, keep
from zbopt.bounds.valley.layers import NEVER, Layer, nothing_begun
from zbopt.bounds.valley.limits import least_ends, least_ends_by_gradients, undominated
from zbopt.bounds.valley.moves import Moves
from zbopt.bounds.valley.tables import Tables
from zbopt.instance import Instance
from zbopt.result import Bound

__all__ = ["Valley"]

_MOST_STATES = 400_000
"""States of a layer before any is left out; of more the work is not done in time."""

_MOST_UNDER_WAY = 24
"""Microbatches under way; with room for more memory hardly limits."""

Level = tuple[tuple[int, ...], tuple[int, ...]]
"""Stages to keep, and which of them are full."""

_STEPS = 16
"""Of the gap: the first horizon that is asked."""

_DEARER = 2.0
"""How many times the work of a horizon the next one is meant to be."""

_LONGEST = 4
"""How many times as long as the step before a step is at most."""


@dataclass
class Valley:
    """What the stages of ``instance`` near its turning points prove, between ``floor`` and ``roof``.

    Attributes:
        instance: A V.
        floor: A bound that is known, raised by ``grow``.
        roof: A value that is known.
        expanded: States whose successors were made: the work so far, the same on any machine.
    """

    states_a_second: ClassVar[int] = 60_000
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
        first, ladder, before = self._first(), self._ladder(), self.floor
        if not self.ask([first], stop):
            return False
        if ladder and self.floor == before:
            # Two stages that say nothing alone tell little to others.
            return self.ask(ladder, stop)
        levels = [first]
        for more in (self._rungs(), self._lower()):
            levels += more
            if more and not self.ask(levels, stop):
                return False
        return True

    def _first(self) -> Level:
        """The last stage, and F and B of the one halfway down."""
        last = self.instance.stages - 1
        half = (last + 1) // 2
        return ((half if half < last else last - 1, last), (last,))

    def _rungs(self) -> list[Level]:
        """From small to large what keeps more than the first problem: a stage a quarter down, and memory there too."""
        last = self.instance.stages - 1
        half, quarter = (last + 1) // 2, (last + 1) // 4
        if quarter == half or half == last:
            return []
        kept = (quarter, half, last)
        return [(kept, full) for full in ((last,), (half, last), kept) if self._can_be_full(full)]

    def _lower(self) -> list[Level]:
        """The same with F and B of the stage three quarters down, which is worth its time for those who have much."""
        rungs, last = self._rungs(), self.instance.stages - 1
        if not rungs:
            return []
        kept, full = rungs[-1]
        lower = 3 * (last + 1) // 4
        return [(tuple(sorted({*kept, lower})), full)] if lower not in kept else []

    def _ladder(self) -> list[Level]:
        """Another way up: all is kept of the last stage and one three eighths down, then also of one five eighths."""
        last = self.instance.stages - 1
        upper, lower = 3 * (last + 1) // 8, 5 * (last + 1) // 8
        kept = (upper, lower, last)
        if not upper < lower < last or not self._can_be_full(kept):
            return []
        return [((upper, last), (upper, last)), (kept, kept)]

    def _can_be_full(self, stages: Sequence[int]) -> bool:
        return all(can_be_full(self.instance, stage) for stage in stages)

    def ask(self, levels: Sequence[Level], stop: Callable[[], bool]) -> bool:
        """Raise ``floor`` to the least value of the last level, in steps; whether it was reached before ``stop()``."""
        step, before = max(1, (self.roof - self.floor) // _STEPS), 0
        while self.floor < self.roof:
            horizon, expanded = min(self.roof, self.floor + step), self.expanded
            least, complete = self.climb(levels, horizon, stop)
            self.floor = max(self.floor, least)
            if not complete:
                return False
            if least < horizon:
                return True
            work = self.expanded - expanded
            step = _next_step(step, work / before if before else _DEARER)
            before = max(1, work)
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
        # What takes longest is asked of the fewest.
        tests: list[Callable[[Kept, Layer], Integers]] = [least_ends]
        if known is not None:
            tests.append(known.least_ends)
        if not kept.backward:
            tests.append(least_ends_by_gradients)
        for _ in range(kept.microbatches * (len(kept.stage) + 2 * len(kept.full))):
            if stop() or layer.count > _MOST_STATES:
                return bound, False
            self.expanded += layer.count
            layer = moves.after(layer, all_ways=told is not None)
            least = np.zeros(layer.count, dtype=np.int64)
            for test in tests:
                least = np.maximum(least, test(kept, layer))
                left = np.flatnonzero(least < horizon)
                if not len(left):
                    return horizon, True
                layer, least = layer.take(left), least[left]
            bound = max(bound, int(least.min()))
            layer = undominated(layer)
            if told is not None:
                told.take(layer)
        ends = layer.ended
        for full in kept.full:
            ends = np.maximum(ends, layer.time + layer.busy[full.stage] + full.after_weight)
        if told is not None:
            told.close()
        return min(horizon, int(ends.min())), True

    def bound(self) -> Bound:
        """What was proved so far."""
        return Bound(self.floor, "bound:valley")


def _next_step(step: int, dearer: float) -> int:
    """The step that makes the work ``_DEARER`` times as much, after one of ``step`` that made it ``dearer`` times."""
    most = _LONGEST * step
    if dearer <= 1:
        return most
    return max(1, min(most, int(step * log(_DEARER) / log(dearer))))
