"""Figures of a schedule: makespan, spans, bubble ratios by denominator, and memory over time.

They describe what the events say, whether the schedule is valid or not. Events on stages that do not exist count for
nothing. Times are in ticks, memory in the instance's unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from zbopt.analysis.ledger import Ledger
from zbopt.problem.instance import Instance, Objective
from zbopt.problem.schedule import Event, Schedule, second_halves


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a schedule costs. Tuples are by stage; ratios are ``None`` where the denominator is zero.

    ``period`` is the most that an iteration starts after the one before, on any stage; ``None``: one iteration.
    """

    makespan: int
    stage_spans: tuple[int, ...]
    period: int | None
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
        if objective is Objective.PERIOD:
            return self.period or 0
        return self.makespan if objective is Objective.MAKESPAN else self.max_stage_span


def figures(schedule: Schedule) -> Figures:
    """The figures of ``schedule``."""
    rows = schedule.by_stage()
    starts = [[e.start for e in row] for row in rows]
    ends = [[e.end for e in row] for row in rows]
    return Figures(
        makespan=_makespan(schedule),
        period=_period(rows),
        stage_spans=tuple(map(_span, starts, ends)),
        busy_ticks=tuple(_busy(schedule, row) for row in rows),
        peak_memory=tuple(
            _peak(Ledger(schedule.instance, row, stage)) for stage, row in enumerate(schedule.holders_by_stage())
        ),
    )


def _busy(schedule: Schedule, row: Sequence[Event]) -> int:
    """Ticks of all ops of a stage; an F and a BW that are one op count once."""
    twice = sum(e.end - e.start for e in second_halves(schedule.instance, row))
    return sum(e.end - e.start for e in row) - twice


def value_of(schedule: Schedule) -> int:
    """Value of the instance's objective, in ticks: what ``figures`` says, without the memory."""
    if schedule.instance.objective is Objective.MAKESPAN:
        return _makespan(schedule)
    rows = schedule.by_stage()
    if schedule.instance.objective is Objective.PERIOD:
        return _period(rows) or 0
    return max(_span([e.start for e in row], [e.end for e in row]) for row in rows)


def _peak(ledger: Ledger) -> Fraction:
    live = accumulate((change for _, change, _ in ledger.changes()), initial=ledger.static)
    return Fraction(max(live), ledger.scale)


def _makespan(schedule: Schedule) -> int:
    """From the first start, or the first input where their times are given, to the last end of all events."""
    events = [e for e in schedule.events if 0 <= e.stage < schedule.instance.stages]
    if not events:
        return 0
    first = min(e.start for e in events) if schedule.instance.input_ready_ticks is None else 0
    return max(e.end for e in events) - first


def _period(rows: Sequence[Sequence[Event]]) -> int | None:
    """[T6] The most that an iteration starts after the one before, on any stage."""
    steps = []
    for row in rows:
        firsts: dict[int, int] = {}
        for e in row:
            firsts[e.iteration] = min(e.start, firsts.get(e.iteration, e.start))
        times = [firsts[iteration] for iteration in sorted(firsts)]
        steps += [after - before for before, after in pairwise(times)]
    return max(steps, default=None)


def _span(starts: Sequence[int], ends: Sequence[int]) -> int:
    return max(ends) - min(starts) if starts else 0


def memory_curve(instance: Instance, events: Sequence[Event]) -> Iterator[tuple[int, Fraction]]:
    """Live memory of one stage after each change: (time, amount). Releases at a time come before allocations.

    Args:
        instance: The instance, for the sizes of what is held.
        events: The events of one stage.
    """
    ledger = Ledger(instance, events)
    live = ledger.static
    for time, change, _ in ledger.changes():
        live += change
        yield time, Fraction(live, ledger.scale)


def memory_changes(instance: Instance, events: Sequence[Event]) -> Iterator[tuple[int, Fraction, Event]]:
    """The changes on one stage: (time, what is taken, or given back below zero, and the op that does), in that order.

    Static memory is in none of them.

    Args:
        instance: The instance, for the sizes of what is held.
        events: The events of one stage.
    """
    ledger = Ledger(instance, events)
    for time, change, i in ledger.changes():
        yield time, Fraction(change, ledger.scale), events[i]
