"""Distance of a schedule from the best one, and the bubble that causes it, for ``zbopt import --explain``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zbopt.analysis.difference import Divergence, Parting, divergences, first_divergence
from zbopt.analysis.idle import Avoidable, Cause, Explanation, Idle, explain
from zbopt.analysis.metrics import figures
from zbopt.portfolio.result import Result
from zbopt.problem.numbers import counted
from zbopt.problem.schedule import Event, Schedule, Status
from zbopt.reports.explain import idle_record
from zbopt.reports.record import Record
from zbopt.reports.words import percent, ticks_text


@dataclass(frozen=True, slots=True)
class Distance:
    """Hold how far a schedule is from the best one found for its instance, and why.

    Attributes:
        value: Value of the schedule.
        result: Result of the solve, which has a schedule.
        explained: Causes of the schedule's idle time.
        bubble: First idle interval that the stage could use, by preference one before whose end the better schedule
            has another order on that stage; ``None`` where no interval could be used.
        wait: First wait between two ops, where no interval could be used.
        parting: First difference from the better schedule on that stage, or else on any stage.

    The last three are ``None`` where nothing better is known.
    """

    value: int
    result: Result
    explained: Explanation
    bubble: Avoidable | None = None
    wait: Idle | None = None
    parting: Divergence | None = None

    @property
    def above_bound(self) -> float:
        """Return (value - bound) / bound; the bound is the optimum where the result is optimal."""
        return (self.value - self.result.bound.value) / self.result.bound.value

    @property
    def above_best(self) -> float:
        """Return (value - best value found) / best value found."""
        assert self.result.value is not None
        return (self.value - self.result.value) / self.result.value


def distance_of(schedule: Schedule, result: Result) -> Distance:
    """Compare ``schedule`` with ``result``, the best that was found for its instance; it must have a schedule."""
    assert result.schedule is not None
    explained = explain(schedule)
    value = figures(schedule).value(schedule.instance.objective)
    if result.value is None or value <= result.value:
        return Distance(value, result, explained)
    partings = divergences(schedule, result.schedule)
    bubble = _bubble(schedule, explained, partings)
    ends = (Cause.FILL, Cause.DRAIN)
    wait = None if bubble else next((idle for idle in explained.idle if idle.cause not in ends), None)
    where = bubble.idle if bubble else wait
    parting = None if where is None else partings[where.stage]
    parting = parting or first_divergence(schedule, result.schedule)
    return Distance(value, result, explained, bubble, wait, parting)


def _bubble(schedule: Schedule, explained: Explanation, partings: tuple[Divergence | None, ...]) -> Avoidable | None:
    """Return the first bubble whose stage has another order in the better schedule before the bubble ends.

    If there is none such, return the first bubble; ``None`` where there is none at all.
    """
    position = {id(e): i for order in schedule.by_stage() for i, e in enumerate(order)}
    first = None
    for bubble in explained.all_avoidable():
        first = first or bubble
        parting = partings[bubble.idle.stage]
        before = bubble.idle.before
        if parting is not None and before is not None and parting.position <= position[id(before)]:
            return bubble
    return first


def idle_text(explained: Explanation, makespan: int) -> str:
    """Sum up idle time by cause, as in ``36 of 132 ticks, all stages together: dependency 18, drain 12, fill 6``."""
    sums = explained.by_cause()
    largest_first = sorted(sums.items(), key=lambda item: -item[1])
    causes = ", ".join(f"{cause.value} {ticks}" for cause, ticks in largest_first if ticks)
    total = makespan * explained.schedule.instance.stages
    return f"{sum(sums.values())} of {total} ticks, all stages together" + (f": {causes}" if causes else "")


def distance_page(distance: Distance) -> Iterator[tuple[str, str]]:
    """Yield the labelled lines on a distance."""
    instance, result = distance.explained.schedule.instance, distance.result
    bound, tick = result.bound, instance.tick
    yield "value", f"{ticks_text(distance.value, tick)} of {instance.objective.value.replace('_', ' ')}"
    optimal = result.status is Status.OPTIMAL
    name = "optimum" if optimal else "lower bound"
    above = distance.value - bound.value
    share = f"{percent(above / bound.value)} above the {name}" if above > 0 else f"it is the {name}"
    yield "distance", f"{share}, {ticks_text(bound.value, tick)}, proved by {bound.proved_by}"
    if not optimal and result.value is not None:
        better = distance.value - result.value
        text = f"{percent(better / result.value)} above" if better > 0 else "no worse than"
        yield "best found", f"{text} the best found, {ticks_text(result.value, tick)}; raise --time-limit for more"
    yield from _cause_lines(distance)


def _cause_lines(distance: Distance) -> Iterator[tuple[str, str]]:
    if distance.bubble is not None:
        yield "because of", bubble_text(distance.bubble)
    elif distance.wait is not None:
        text = idle_interval_text(distance.wait)
        yield (
            "because of",
            f"{text}; no later op of the stage had its input by then, so the cause lies before",
        )
    elif distance.parting is not None:
        yield "because of", "no wait between two ops; stages begin or end later than they need to"
    if distance.parting is not None:
        yield "better schedule", parting_text(distance.parting, "here", "there")


def bubble_text(bubble: Avoidable) -> str:
    """Say where the bubble is, why, and which op could use it."""
    text = idle_interval_text(bubble.idle)
    if bubble.by_split:
        return f"{text}; split into B and W, the BW would pass on its gradient {bubble.ticks} ticks earlier"
    if bubble.op is bubble.idle.before:
        return f"{text}; it could have started at {bubble.usable_from}"
    return f"{text}; {bubble.op.id}, which runs at {bubble.op.start}, could run there from {bubble.usable_from} on"


def idle_interval_text(idle: Idle) -> str:
    """Describe an idle interval.

    For example ``stage 0 idles 6 ticks, 4 to 10, before it0/s0/v0/mb0/BW: dependency, waits for it0/s1/v1/mb0/BW``.
    """
    before = "" if idle.before is None else f" before {idle.before.id}"
    waits = "" if idle.waits_for is None else f", {_WAITS_FOR[idle.cause]} {idle.waits_for.id}"
    length = counted(idle.ticks, "tick")
    return f"stage {idle.stage} idles {length}, {idle.start} to {idle.end},{before}: {idle.cause.value}{waits}"


_WAITS_FOR = dict.fromkeys(Cause, "waits for") | {
    Cause.MEMORY: "the cap has no room for its next F until the end of",
    Cause.TRANSFER: "waits for the transfer from",
}


def parting_text(parting: Divergence, first: str, second: str) -> str:
    """Say where the orders or times of a stage begin to differ; ``first`` and ``second`` name the two schedules."""
    place = f"stage {parting.stage} parts at op {parting.position}"
    if parting.parting is Parting.TIME:
        assert parting.first is not None
        assert parting.second is not None
        times = f"{parting.first.start} {first}, {parting.second.start} {second}"
        return f"{place}: the same order to the end, {parting.first.id} starts at {times}"
    return f"{place}: {_op_text(parting.first)} {first}, {_op_text(parting.second)} {second}"


def _op_text(e: Event | None) -> str:
    return "nothing more" if e is None else f"{e.id} at {e.start}"


def distance_record(distance: Distance) -> Record:
    """Return a distance as JSON."""
    result = distance.result
    return {
        "value": distance.value,
        "status": result.status.value,
        "lower_bound": result.bound.value,
        "proved_by": result.bound.proved_by,
        "best_value": result.value,
        "above_bound": distance.above_bound,
        "above_best": distance.above_best,
        "bubble": None if distance.bubble is None else _bubble_record(distance.bubble),
        "wait": None if distance.wait is None else _wait_record(distance.wait),
        "parting": None if distance.parting is None else parting_record(distance.parting),
    }


def _bubble_record(bubble: Avoidable) -> Record:
    use = {"usable_from": bubble.usable_from, "op": bubble.op.id, "by_split": bubble.by_split}
    return _wait_record(bubble.idle) | use


def _wait_record(idle: Idle) -> Record:
    return idle_record(idle) | {"ticks": idle.ticks}


def parting_record(parting: Divergence) -> Record:
    """Return a difference between two schedules as JSON, with id and start of its ops."""

    def op(e: Event | None) -> Record | None:
        return None if e is None else {"id": e.id, "start": e.start}

    return {
        "stage": parting.stage,
        "position": parting.position,
        "parting": parting.parting.value,
        "first": op(parting.first),
        "second": op(parting.second),
    }
