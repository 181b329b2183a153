"""Memory ledger of a stage: the life of every tensor, read off the events of a schedule, valid or not."""

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
    """Say that ``amount`` of a tensor is live from tick ``begin`` to ``end``; ``end`` is ``None`` where no op frees it.

    The op ``taken_by`` takes it at its start, ``freed_by`` frees it at its end; ``None``: live through the whole step.
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
    """Hold the memory of one stage over time.

    Attributes:
        stage: The stage.
        lives: Every tensor's life; those through the whole step first, then by begin.
        curve: (time in ticks, live memory from then on), by time.
        peak: The most memory that is live at a time.
        peak_at: The first tick of the peak; ``None`` without events.
        holders: The lives whose amounts sum to the peak.
    """

    stage: int
    lives: tuple[Life, ...]
    curve: tuple[tuple[int, Fraction], ...]
    peak: Fraction
    peak_at: int | None
    holders: tuple[Life, ...]


def stage_ledgers(schedule: Schedule) -> tuple[StageLedger, ...]:
    """Return the ledger of every stage of ``schedule``."""
    return tuple(_stage_ledger(ledger, stage) for stage, ledger in enumerate(ledgers(schedule)))


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


def ledgers(schedule: Schedule) -> Iterator[Ledger]:
    """Yield the memory of each stage. The scale, which looks at all virtual stages, is found once for all of them."""
    scale = memory_scale(schedule.instance)
    for stage, events in enumerate(schedule.holders_by_stage()):
        yield Ledger(schedule.instance, events, stage, scale)


class Ledger:
    """Read the memory of one stage off its events, in integer units of which ``scale`` make one of the instance.

    Where several events stand for the same op, the first counts. Memory whose first op is missing is never taken;
    memory whose last op is missing is never freed.

    Args:
        instance: The instance, for the sizes of tensors.
        events: The events of one stage.
        stage: The stage; ``None``: that of the first event.
        scale: ``memory_scale(instance)`` where it is known; ``None``: it is worked out here.
    """

    def __init__(
        self, instance: Instance, events: Sequence[Event], stage: int | None = None, scale: int | None = None
    ) -> None:
        self.instance, self.events = instance, events
        self.scale = memory_scale(instance) if scale is None else scale
        if stage is None and events:
            stage = events[0].stage
        exists = stage is not None and 0 <= stage < instance.stages
        self.static_allocations = static_allocations(instance, stage) if stage is not None and exists else ()
        self.static = sum(int(amount * self.scale) for _, amount in self.static_allocations)
        self._pieces_by_kinds: dict[tuple[int, tuple[Kind, ...]], list[tuple[Kind, Kind, int]]] = {}

    def changes(self) -> list[tuple[int, int, int]]:
        """Return (time, units, index of the event) by time, releases before allocations; static memory left out."""
        taken: dict[int, int] = {}
        freed: dict[tuple[int, int], int] = {}
        for first, last, units in self._lifetimes():
            taken[first] = taken.get(first, 0) + units
            if last is not None:
                key = max(self.events[first].start, self.events[last].end), last
                freed[key] = freed.get(key, 0) - units
        found = [(self.events[i].start, units, i) for i, units in taken.items()]
        found += [(time, units, i) for (time, i), units in freed.items()]
        found.sort()
        return found

    def lives(self) -> Iterator[Life]:
        """Yield every tensor's life, those through the whole step first, then by begin."""
        begin = min((e.start for e in self.events), default=0)
        for tensor, amount in self.static_allocations:
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

    def _lifetimes(self) -> Iterator[tuple[int, int | None, int]]:
        """Yield (index of the op that takes memory, index of the one that frees it, units)."""
        for (_, virtual_stage, _), group in self._groups().items():
            kinds = virtual_stage, tuple(group)
            if kinds not in self._pieces_by_kinds:
                self._pieces_by_kinds[kinds] = self._pieces(*kinds)
            for first, last, units in self._pieces_by_kinds[kinds]:
                if first in group:
                    yield group[first], group.get(last), units

    def _pieces(self, virtual_stage: int, kinds: tuple[Kind, ...]) -> list[tuple[Kind, Kind, int]]:
        """Return the ``pieces`` of a microbatch with ops of these kinds."""
        policy, fused = self._policy_of(kinds)
        held = allocated_units(self.instance, virtual_stage, policy, self.scale, fused=fused)
        return [(first, last, units) for (first, last), units in held.items()]

    def _groups(self) -> dict[tuple[int, int, int | None], dict[Kind, int]]:
        """Return the indices of ops by iteration, virtual stage and microbatch, then kind."""
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

    def _policy_of(self, kinds: Collection[Kind]) -> tuple[ActivationPolicy, bool]:
        """Return the policy of an activation, and whether its backward is one BW, as the ops that are there show."""
        policy = next((policy for kind, policy in POLICY_OF.items() if kind in kinds), ActivationPolicy.KEEP)
        split = Kind.B in kinds or Kind.W in kinds
        return policy, (Kind.BW in kinds and not split) or not self.instance.may_split

    def _parts(self, virtual_stage: int, group: dict[Kind, int]) -> tuple[Allocation, ...]:
        policy, fused = self._policy_of(group)
        return allocations(self.instance, virtual_stage, policy, fused=fused)
