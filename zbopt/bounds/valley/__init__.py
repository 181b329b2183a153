"""Valley: a bound from the last stage of a V, where a microbatch turns round twice, and from stages above it.

models/bounds.md, "valley". The least value of a V of which F and B of a few stages are kept, with W and memory: exact,
op by op, but for W, which may be cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from zbopt.bounds.crossings.orders import StageOrder
from zbopt.bounds.valley.relaxation import NEVER, applies, can_be_full, is_long, relax
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance

__all__ = ["Valley"]

_MOST_BYTES = 2**27
"""Bytes of the states of a layer. The next layer takes a few times as much memory, and larger ones too much time. Not
measured; chosen."""

_MOST_UNDER_WAY = 24
"""Microbatches under way; with room for more, memory hardly limits, and layers are large. Not measured; chosen."""

_FIRST_SHARE = 3
"""The first horizon lies one in so many parts of the gap above what is known. It takes less work than the whole gap,
which is lost where the bound ends above it. Not measured; chosen."""

_EIGHTHS = ((4,), (2, 4), (2, 5), (2, 3, 5), (2, 3, 5, 6))
"""Eighths of the way down, where stages are kept beside the last one, set by set. models/bounds.md, "valley", has what
each set proves at published times, and bench/README.md how long it takes."""

_FEW = 3
"""Stages of a set that is asked in any case. More stages take ten times as long, and hardly raise a bound that fewer
did not raise (models/bounds.md, "valley")."""

Stages = tuple[int, ...]


@dataclass
class Valley:
    """Hold what the stages of ``instance`` near its turning points prove, between ``floor`` and ``roof``.

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
    """States that deterministic time counts as one second of work: about as many as one core of the machine of
    bench/README.md expands."""

    instance: Instance
    floor: int
    roof: int
    expanded: int = field(default=0)

    @classmethod
    def of(cls, instance: Instance, floor: int, roof: int) -> Valley | None:
        """Return a valley that has yet to grow; ``None`` where the argument says nothing."""
        last = instance.stages - 1
        if not applies(instance) or not can_be_full(instance, last) or roof > NEVER // 4:
            return None
        of_last = relax(instance, [last], [last])
        if of_last.most[0] >= 2 * instance.microbatches or of_last.most_under_way > _MOST_UNDER_WAY:
            return None
        return cls(instance, floor, roof)

    def grow(self, stop: Callable[[], bool]) -> bool:
        """Raise ``floor`` set by set of stages; return whether all were asked before ``stop()``."""
        before = self.floor
        for stages, full in self.levels():
            if len(stages) > _FEW and self.floor == before:
                # Few stages that say nothing tell that more would not say much.
                return True
            if not self.ask(stages, full, stop):
                return False
        return True

    def levels(self) -> Iterator[tuple[Stages, Stages]]:
        """Yield sets of stages to keep, each with those of them that are full, from small to large.

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
        """Raise ``floor`` to the least value of what is kept; return whether it was reached before ``stop()``."""
        # A long step heeds no horizon until its layers repeat.
        for parts in (1,) if is_long(relax(self.instance, stages, full)) else (_FIRST_SHARE, 1):
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
        """Return the least value of what is kept, at most ``horizon``, and True; broken off, a bound of it, and False.

        Args:
            stages: Of which F and B are kept.
            full: Some of them that ``can_be_full``: of these W and memory are kept, too.
            horizon: Steps that end then or later do not count.
            stop: Asked once a layer.
        """
        # Compiled code takes long to load, and few searches come here.
        from zbopt.bounds.valley.layers import after, least_end, nothing_begun, table
        from zbopt.bounds.valley.repetition import Repetition

        relaxation = relax(self.instance, stages, full)
        rules, layer, bound = table(relaxation), nothing_begun(relaxation, horizon), 0
        repetition, done = Repetition.of(relaxation), 0
        while done < relaxation.microbatches * len(relaxation.stage):
            if stop() or layer.nbytes > _MOST_BYTES:
                return bound, False
            self.expanded += len(layer)
            horizon = min(horizon, self.roof)
            layer = after(rules, layer, NEVER if repetition.sought else horizon)
            if not len(layer):
                return horizon, True
            bound = max(bound, least_end(layer))
            done += 1
            done += repetition.skip(layer, done)
        return bound, True

    @property
    def cost_s(self) -> float:
        """Return the work so far in seconds of deterministic time."""
        return self.expanded / self.states_a_second

    def bound(self) -> Bound:
        """Return what was proved so far."""
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
