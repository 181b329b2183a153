"""The life of every tensor on a stage, read off the events of a schedule, valid or not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from zbopt.graph.memory import (
    POLICY_OF,
    ActivationPolicy,
    Allocation,
    Tensor,
    allocated_units,
    allocations,
    memory_scale,
    static_allocations,
)
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event, Schedule


@dataclass(frozen=True, slots=True)
class Life:
    """Say that a tensor holds ``amount`` from ``begin`` to ``end`` in ticks; ``end`` is ``None``: nothing releases it.

    ``taken_by`` and ``freed_by`` are the ops at whose start and end that is; ``None``: held through the whole step.
    """

    tensor: Tensor
    amount: Fraction
    begin: int
    end: int | None
    taken_by: Event | None
    freed_by: Event | None

    def is_there(self, time: int) -> bool:
        """Return whether the tensor is live right after tick ``time``."""
        return self.begin <= time and (self.end is None or self.end > time)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLedger:
    """Hold the lives of all tensors of one stage.

    Attributes:
        stage: Which one.
        lives: Every tensor's life; what is held through the whole step first, then by begin.
        curve: (time in ticks, live memory from then on), by time.
        peak: The most that is live at a time.
        peak_at: The first tick at which that is so; ``None`` without events.
        holders: The lives of which the peak is the sum.
    """

    stage: int
    lives: tuple[Life, ...]
    curve: tuple[tuple[int, Fraction], ...]
    peak: Fraction
    peak_at: int | None
    holders: tuple[Life, ...]


def stage_ledgers(schedule: Schedule) -> tuple[StageLedger, ...]:
    """Return the ledger of every stage of ``schedule``."""
    rows = schedule.holders_by_stage()
    return tuple(_stage_ledger(Ledger(schedule.instance, row, stage), stage) for stage, row in enumerate(rows))


def _stage_ledger(ledger: Ledger, stage: int) -> StageLedger:
    lives = tuple(ledger.lives())
    live, curve = ledger.static, {}
    for time, change, _ in ledger.changes():
        live += change
        curve[time] = Fraction(live, ledger.scale)
    peak = max([Fraction(ledger.static, ledger.scale), *curve.values()])
    peak_at = next((time for time, amount in curve.items() if amount == peak), None)
    held = (life for life in lives if life.taken_by is None or (peak_at is not None and life.is_there(peak_at)))
    return StageLedger(
        stage=stage, lives=lives, curve=tuple(curve.items()), peak=peak, peak_at=peak_at, holders=tuple(held)
    )


class Ledger:
    """Count the memory of one stage, in integer units of which ``scale`` make one of the instance.

    Of events that stand for the same op the first counts. A piece whose first op is missing is not there; one whose
    last op is missing is never released.

    Args:
        instance: The instance, for the sizes of what is held.
        events: The events of one stage.
        stage: Which one; ``None``: that of the first event.
    """

    def __init__(self, instance: Instance, events: Sequence[Event], stage: int | None = None) -> None:
        self.instance, self.events = instance, events
        self.scale = memory_scale(instance)
        here = stage if stage is not None else events[0].stage if events else None
        held = () if here is None or not 0 <= here < instance.stages else static_allocations(instance, here)
        self.static_parts = held
        self.static = sum(int(amount * self.scale) for _, amount in held)
        self._known: dict[tuple[int, tuple[Kind, ...]], list[tuple[Kind, Kind, int]]] = {}

    def changes(self) -> list[tuple[int, int, int]]:
        """Return (time, units, place of the event) by time, releases before allocations; static memory is left out."""
        taken: dict[int, int] = {}
        given: dict[tuple[int, int], int] = {}
        for first, last, units in self._held():
            taken[first] = taken.get(first, 0) + units
            if last is not None:
                key = max(self.events[first].start, self.events[last].end), last
                given[key] = given.get(key, 0) - units
        found = [(self.events[i].start, units, i) for i, units in taken.items()]
        found += [(time, units, i) for (time, i), units in given.items()]
        found.sort()
        return found

    def lives(self) -> Iterator[Life]:
        """Yield every tensor's life by its begin; those held through the whole step come first."""
        begin = min((e.start for e in self.events), default=0)
        for tensor, amount in self.static_parts:
            yield Life(tensor, amount, begin, None, None, None)
        found = []
        for (_, virtual_stage, _), group in self._groups().items():
            for part in self._parts(virtual_stage, group):
                first, last = group.get(part.first), group.get(part.last)
                if first is not None:
                    found.append(self._life(part, self.events[first], None if last is None else self.events[last]))
        yield from sorted(found, key=lambda life: life.begin)

    def _life(self, part: Allocation, first: Event, last: Event | None) -> Life:
        end = None if last is None else max(first.start, last.end)
        return Life(part.tensor, part.amount, first.start, end, first, last)

    def _held(self) -> Iterator[tuple[int, int | None, int]]:
        """Yield (place of the op that takes it, of the op that frees it, units) of everything that ops take."""
        for (_, virtual_stage, _), group in self._groups().items():
            kinds = virtual_stage, tuple(group)
            if kinds not in self._known:
                self._known[kinds] = self._pieces(*kinds)
            for first, last, units in self._known[kinds]:
                if first in group:
                    yield group[first], group.get(last), units

    def _pieces(self, virtual_stage: int, kinds: tuple[Kind, ...]) -> list[tuple[Kind, Kind, int]]:
        """Return the ``allocated_units`` of a microbatch with ops of these kinds."""
        way, fused = self._way(kinds)
        held = allocated_units(self.instance, virtual_stage, way, self.scale, fused=fused)
        return [(first, last, units) for (first, last), units in held.items()]

    def _groups(self) -> dict[tuple[int, int, int | None], dict[Kind, int]]:
        """Return the places of a microbatch's ops, by iteration, virtual stage and microbatch."""
        groups: dict[tuple[int, int, int | None], dict[Kind, int]] = {}
        count = self.instance.virtual_stages
        for i, e in enumerate(self.events):
            v = e.virtual_stage
            if v is not None and 0 <= v < count:
                key = (e.iteration, v, e.microbatch)
                if key in groups:
                    groups[key].setdefault(e.kind, i)
                else:
                    groups[key] = {e.kind: i}
        return groups

    def _way(self, kinds: Collection[Kind]) -> tuple[ActivationPolicy, bool]:
        """Return the policy of an activation and whether its backward is one BW, as the ops that are there say."""
        way = next((way for kind, way in POLICY_OF.items() if kind in kinds), ActivationPolicy.KEEP)
        split = Kind.B in kinds or Kind.W in kinds
        return way, (Kind.BW in kinds and not split) or not self.instance.may_split

    def _parts(self, virtual_stage: int, group: dict[Kind, int]) -> tuple[Allocation, ...]:
        way, fused = self._way(group)
        return allocations(self.instance, virtual_stage, way, fused=fused)
