"""Figures of a schedule: makespan, spans, bubble ratios by denominator, and the memory ledger.

They describe what the events say, whether the schedule is valid or not. Events on stages that do not exist count for
nothing. Times are in ticks, memory in the instance's unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from zbopt.instance import Instance, Kind, Objective
from zbopt.schedule import Event, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a schedule costs. Tuples are by stage; ratios are ``None`` where the denominator is zero."""

    makespan: int
    stage_spans: tuple[int, ...]
    busy_ticks: tuple[int, ...]
    peak_memory: tuple[Fraction, ...]

    @property
    def max_stage_span(self) -> int:
        """Largest time from a stage's first start to its last end."""
        return max(self.stage_spans)

    @property
    def bubble_over_makespan(self) -> float | None:
        """Idle share of all stages over the makespan."""
        return self._idle_share(self.makespan)

    @property
    def bubble_over_stage_span(self) -> float | None:
        """Idle share of all stages over the largest stage span: the zero-bubble papers' bubble rate."""
        return self._idle_share(self.max_stage_span)

    def _idle_share(self, ticks: int) -> float | None:
        total = ticks * len(self.busy_ticks)
        return 1 - sum(self.busy_ticks) / total if total else None

    def value(self, objective: Objective) -> int:
        """Value of ``objective``, in ticks."""
        return self.makespan if objective is Objective.MAKESPAN else self.max_stage_span


def figures(schedule: Schedule) -> Figures:
    """The figures of ``schedule``."""
    rows = schedule.by_stage()
    events = [event for row in rows for event in row]
    return Figures(
        makespan=_span(events),
        stage_spans=tuple(map(_span, rows)),
        busy_ticks=tuple(sum(e.end - e.start for e in row) for row in rows),
        peak_memory=tuple(
            max((live for _, live in memory_curve(schedule.instance, row)), default=Fraction(0)) for row in rows
        ),
    )


def _span(events: Sequence[Event]) -> int:
    return max(e.end for e in events) - min(e.start for e in events) if events else 0


def memory_curve(instance: Instance, events: Sequence[Event]) -> Iterator[tuple[int, Fraction]]:
    """Live memory of one stage after each change: (time, amount). Releases at a time come before allocations.

    Args:
        instance: The instance, for the activations' sizes.
        events: The events of one stage.
    """
    changes: list[tuple[int, Fraction]] = []
    split = {(e.virtual_stage, e.microbatch) for e in events if e.kind is Kind.B}
    for e in events:
        v = e.virtual_stage
        if v is None or not 0 <= v < instance.virtual_stages:
            continue
        whole, held = instance.activation[v], instance.activation[v] * instance.weight_share[v]
        if e.kind is Kind.F:
            changes.append((e.start, whole))
        elif e.kind is Kind.BW:
            changes.append((e.end, -whole))
        elif e.kind is Kind.B:
            changes.append((e.end, held - whole))
        elif e.kind is Kind.W:
            changes.append((e.end, -held if (v, e.microbatch) in split else -whole))
    live = Fraction(0)
    for time, change in sorted(changes):
        live += change
        yield time, live
