"""Figures of a schedule: makespan, spans, bubble ratios by denominator, and memory over time.

They describe what the events say, whether the schedule is valid or not. Events on stages that do not exist count for
nothing. Times are in ticks, memory in the instance's unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from zbopt.analysis.ledger import Ledger, ledgers
from zbopt.problem.instance import Instance, Objective
from zbopt.problem.schedule import Event, Schedule, second_halves


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Hold the figures of a schedule. Tuples are by stage; ratios are ``None`` where the denominator is zero.

    ``period`` is the longest time from the start of one iteration to that of the next, on any stage; ``None``: the
    schedule has one iteration.
    """

    makespan: int
    stage_spans: tuple[int, ...]
    period: int | None
    busy_ticks: tuple[int, ...]
    peak_memory: tuple[Fraction, ...]

    @property
    def max_stage_span(self) -> int:
        """Return the largest time from a stage's first start to its last end."""
        return max(self.stage_spans)

    @property
    def bubble_over_makespan(self) -> float | None:
        """Return the idle share of all stages over the makespan."""
        return self._idle_share(self.makespan)

    @property
    def bubble_over_stage_span(self) -> float | None:
        """Return the idle share of all stages over the largest stage span: the zero-bubble papers' bubble rate."""
        return self._idle_share(self.max_stage_span)

    def _idle_share(self, ticks: int) -> float | None:
        total = ticks * len(self.busy_ticks)
        return 1 - sum(self.busy_ticks) / total if total else None

    def value(self, objective: Objective) -> int:
        """Return the value of ``objective``, in ticks."""
        if objective is Objective.PERIOD:
            return self.period or 0
        return self.makespan if objective is Objective.MAKESPAN else self.max_stage_span


def figures(schedule: Schedule) -> Figures:
    """Return the figures of ``schedule``."""
    stages = schedule.by_stage()
    starts = [[e.start for e in ops] for ops in stages]
    ends = [[e.end for e in ops] for ops in stages]
    return Figures(
        makespan=_makespan(schedule),
        period=_period(stages),
        stage_spans=tuple(map(_span, starts, ends)),
        busy_ticks=tuple(_busy(schedule, ops) for ops in stages),
        peak_memory=tuple(map(_peak, ledgers(schedule))),
    )


def _busy(schedule: Schedule, ops: Sequence[Event]) -> int:
    """Return the ticks of all ops of a stage; an F and a BW that run as one op count once."""
    twice = sum(e.end - e.start for e in second_halves(schedule.instance, ops))
    return sum(e.end - e.start for e in ops) - twice


def value_of(schedule: Schedule) -> int:
    """Return the value of the instance's objective, in ticks. It is faster than ``figures``, which needs the memory."""
    if schedule.instance.objective is Objective.MAKESPAN:
        return _makespan(schedule)
    stages = schedule.by_stage()
    if schedule.instance.objective is Objective.PERIOD:
        return _period(stages) or 0
    return max(_span([e.start for e in ops], [e.end for e in ops]) for ops in stages)


def _peak(ledger: Ledger) -> Fraction:
    live = accumulate((change for _, change, _ in ledger.changes()), initial=ledger.static)
    return Fraction(max(live), ledger.scale)


def _makespan(schedule: Schedule) -> int:
    """Return the ticks from the first start, or from 0 where inputs have times, to the last end of all events."""
    events = [e for e in schedule.events if 0 <= e.stage < schedule.instance.stages]
    if not events:
        return 0
    first = min(e.start for e in events) if schedule.instance.input_ready_ticks is None else 0
    return max(e.end for e in events) - first


def _period(stages: Sequence[Sequence[Event]]) -> int | None:
    """Return [T6] the longest time from the start of one iteration to that of the next, on any stage."""
    steps = []
    for ops in stages:
        firsts: dict[int, int] = {}
        for e in ops:
            firsts[e.iteration] = min(e.start, firsts.get(e.iteration, e.start))
        times = [firsts[iteration] for iteration in sorted(firsts)]
        steps += [after - before for before, after in pairwise(times)]
    return max(steps, default=None)


def _span(starts: Sequence[int], ends: Sequence[int]) -> int:
    return max(ends) - min(starts) if starts else 0


def memory_curve(instance: Instance, events: Sequence[Event]) -> Iterator[tuple[int, Fraction]]:
    """Yield (time, live memory of one stage) after each change. Releases at a time come before allocations.

    Args:
        instance: The instance, for the sizes of tensors.
        events: The events of one stage.
    """
    ledger = Ledger(instance, events)
    live = ledger.static
    for time, change, _ in ledger.changes():
        live += change
        yield time, Fraction(live, ledger.scale)


def memory_changes(instance: Instance, events: Sequence[Event]) -> Iterator[tuple[int, Fraction, Event]]:
    """Yield (time, amount taken, or freed where it is negative, op that does so) of one stage, by time.

    Static memory is left out.

    Args:
        instance: The instance, for the sizes of tensors.
        events: The events of one stage.
    """
    ledger = Ledger(instance, events)
    for time, change, i in ledger.changes():
        yield time, Fraction(change, ledger.scale), events[i]
