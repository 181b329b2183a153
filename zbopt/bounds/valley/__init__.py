"""Valley: from the last stage of a V, where a microbatch turns round twice, and stages above it.

models/bounds.md, "valley". The least value of a V of which F and B of a few stages are kept, with W and memory: exact,
op by op, but for W, which may be cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from zbopt.bounds.crossings.orders import StageOrder
from zbopt.bounds.valley.kept import NEVER, applies, can_be_full, is_long, keep
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance

__all__ = ["Valley"]

_MOST_BYTES = 2**27
"""Of the states of a layer; what follows takes a few times as much memory, and of more the work is not done in time."""

_MOST_UNDER_WAY = 24
"""Microbatches under way; with room for more memory hardly limits."""

_FIRST = 3
"""The first horizon lies one in so many parts of the gap above what is known: it takes less work than the whole gap."""

_EIGHTHS = ((4,), (2, 4), (2, 5), (2, 3, 5), (2, 3, 5, 6))
"""Of the way down: which stages to keep beside the last one, set by set."""

_FEW = 3
"""Stages of a set that is asked in any case."""

Stages = tuple[int, ...]


@dataclass
class Valley:
    """What the stages of ``instance`` near its turning points prove, between ``floor`` and ``roof``.

    Attributes:
        instance: A V.
        floor: A bound that is known, raised by ``grow``.
        roof: A value that is known.
        expanded: States whose successors were made: the work so far, the same on any machine.
    """

    title: ClassVar[str] = "the valley"
    time_share: ClassVar[float] = 0.8
    """The states grow no longer than this share of the time left, unless the bound has risen lately. Not measured;
    chosen larger than that of the crossings, because the valley's bound rises while it grows."""

    states_a_second: ClassVar[int] = 250_000
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
        if kept.most[0] >= 2 * instance.microbatches or kept.most_under_way > _MOST_UNDER_WAY:
            return None
        return cls(instance, floor, roof)

    def grow(self, stop: Callable[[], bool]) -> bool:
        """Whether the least value of the largest set of stages was reached before ``stop()``."""
        before = self.floor
        for stages, full in self.levels():
            if len(stages) > _FEW and self.floor == before:
                # Few stages that say nothing tell that more would not say much.
                return True
            if not self.ask(stages, full, stop):
                return False
        return True

    def levels(self) -> Iterator[tuple[Stages, Stages]]:
        """Stages to keep, and which of them are full, from small to large.

        The last one with the one halfway down; with more of the way; and as many as there is time for. Which stages
        say most depends on the times, and was measured at published ones (models/bounds.md, "valley").
        """
        count = self.instance.stages
        asked: set[Stages] = set()
        for eighths in _EIGHTHS:
            stages = tuple(sorted({*(part * count // 8 for part in eighths), count - 1}))
            full = tuple(stage for stage in stages if can_be_full(self.instance, stage))
            if stages not in asked:
                asked.add(stages)
                yield stages, full

    def ask(self, stages: Sequence[int], full: Sequence[int], stop: Callable[[], bool]) -> bool:
        """Raise ``floor`` to the least value of what is kept; whether it was reached before ``stop()``."""
        # A long step heeds no horizon until its layers repeat.
        for parts in (1,) if is_long(keep(self.instance, stages, full)) else (_FIRST, 1):
            horizon = self.floor - (self.floor - self.roof) // parts
            if horizon <= self.floor:
                return True
            least, complete = self.least(stages, full, horizon, stop)
            self.floor = max(self.floor, least)
            if not complete:
                return False
            if least < horizon:
                return True
        return True

    def least(
        self, stages: Sequence[int], full: Sequence[int], horizon: int, stop: Callable[[], bool]
    ) -> tuple[int, bool]:
        """Least value of what is kept, or ``horizon`` where that is less, and True; else a bound of it, and False.

        Args:
            stages: Of which F and B are kept.
            full: Some of them that ``can_be_full``: of these W and memory are kept, too.
            horizon: Steps that end then or later do not count.
            stop: Asked once a layer.
        """
        # Compiled code takes long to load, and few searches come here.
        from zbopt.bounds.valley.layers import LEAST, after, nothing_begun, table
        from zbopt.bounds.valley.repetition import Repetition

        kept = keep(self.instance, stages, full)
        compiled, layer, bound = table(kept), nothing_begun(kept, horizon), 0
        repetition, done = Repetition.of(kept), 0
        while done < kept.microbatches * len(kept.stage):
            if stop() or layer.nbytes > _MOST_BYTES:
                return bound, False
            self.expanded += len(layer)
            horizon = min(horizon, self.roof)
            layer = after(compiled, layer, NEVER if repetition.sought else horizon)
            if not len(layer):
                return horizon, True
            bound = max(bound, int(layer[:, LEAST].min()))
            done += 1
            done += repetition.skip(layer, done)
        return bound, True

    @property
    def cost_s(self) -> float:
        """Return the work so far in seconds of deterministic time."""
        return self.expanded / self.states_a_second

    def bound(self) -> Bound:
        """What was proved so far."""
        return Bound(self.floor, "bound:valley")

    def proved_so_far(self) -> Bound | None:
        """Return the bound that holds already; ``floor`` is only ever raised, so another thread may read it."""
        return self.bound()

    def note_value(self, value: int) -> None:
        """Lower ``roof`` to ``value``; the growing thread reads it once a layer."""
        self.roof = min(self.roof, value)

    def orders(self, microbatches: int) -> dict[int, StageOrder] | None:
        """Return ``None``: states do not keep the way by which they were reached."""
        return None
