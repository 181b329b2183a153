"""Valid schedules with transfers, reductions, inputs and iterations, each damaged in one way, and what is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from random_instances import random_schedule, with_events
from random_time import timed_instance

from zbopt.problem.instance import Kind
from zbopt.problem.schedule import Event, Schedule
from zbopt.validator import Code, validate

SEEDS = range(150)
RULES = (
    Code.LINK_OVERLAP,
    Code.PORT_OVERLAP,
    Code.COMPUTE_BLOCKED,
    Code.CHANNEL_ORDER,
    Code.REDUCTION_BEFORE_WEIGHT,
    Code.REDUCTION_OVERLAP,
    Code.OPTIMIZER_BEFORE_GRADIENT,
    Code.ITERATION_OVERLAP,
    Code.INPUT_NOT_READY,
    Code.DEPENDENCY_VIOLATION,
)
SENDS = (Kind.SEND_F, Kind.SEND_B)


def schedule_of_seed(seed: int) -> Schedule:
    random = Random(f"mutant {seed}")
    return random_schedule(random, timed_instance(random))


def codes(schedule: Schedule, events: list[Event]) -> set[Code]:
    return {violation.code for violation in validate(schedule.instance, with_events(schedule, events)).violations}


def moved(schedule: Schedule, event: Event, ticks: int) -> list[Event]:
    other = replace(event, start=event.start + ticks, end=event.end + ticks)
    return [other if e is event else e for e in schedule.events]


def test_each_rule_is_the_only_one_to_object_to_something() -> None:
    """One event moved by up to eight ticks: for every rule there are moves that it alone refuses, at least two.

    That a stage's order then contradicts the rule makes a circle too, which follows from it.
    """
    alone: Counter[Code] = Counter()
    for seed in range(100):
        schedule = schedule_of_seed(seed)
        for event in schedule.events:
            for ticks in (-8, -3, -1, 2, 5):
                if event.start + ticks >= 0:
                    found = codes(schedule, moved(schedule, event, ticks)) - {Code.CYCLE}
                    if len(found) == 1:
                        alone[found.pop()] += 1
    assert {code: alone[code] for code in RULES if alone[code] < 2} == {}


def _first(schedule: Schedule, *kinds: Kind) -> Event | None:
    return next((e for e in schedule.events if e.kind in kinds), None)


def drop_send(schedule: Schedule) -> list[Event] | None:
    gone = _first(schedule, *SENDS)
    return None if gone is None else [e for e in schedule.events if e is not gone]


def drop_reduction(schedule: Schedule) -> list[Event] | None:
    gone = _first(schedule, Kind.G)
    return None if gone is None else [e for e in schedule.events if e is not gone]


def longer_send(schedule: Schedule) -> list[Event] | None:
    """The last transfer takes a tick more than latency and size say."""
    sends = [e for e in schedule.events if e.kind in SENDS]
    if not sends:
        return None
    last = max(sends, key=lambda e: e.start)
    return [replace(e, end=e.end + 1) if e is last else e for e in schedule.events]


def send_on_one_stage(schedule: Schedule) -> list[Event] | None:
    """A transfer after the last virtual stage, where nothing is sent."""
    last, end = schedule.instance.virtual_stages - 1, max(e.end for e in schedule.events)
    extra = Event(Kind.SEND_F, schedule.instance.stage_of[last], last, 0, end, end + 1)
    return [*schedule.events, extra]


def send_twice(schedule: Schedule) -> list[Event] | None:
    sent, end = _first(schedule, *SENDS), max(e.end for e in schedule.events)
    if sent is None:
        return None
    return [*schedule.events, replace(sent, start=end, end=end + sent.end - sent.start)]


def reduction_uncalled(schedule: Schedule) -> list[Event] | None:
    if schedule.instance.reduction_ticks is not None:
        return None
    end = max(e.end for e in schedule.events)
    return [*schedule.events, Event(Kind.G, schedule.instance.stage_of[0], 0, None, end, end + 1)]


def send_from_another_stage(schedule: Schedule) -> list[Event] | None:
    sent = _first(schedule, *SENDS)
    if sent is None:
        return None
    other = (sent.stage + 1) % schedule.instance.stages
    return [replace(e, stage=other) if e is sent else e for e in schedule.events]


def iteration_too_many(schedule: Schedule) -> list[Event] | None:
    """An event of an iteration after the last."""
    first, end = schedule.events[0], max(e.end for e in schedule.events)
    times = {"start": end, "end": end + first.end - first.start}
    return [*schedule.events, replace(first, iteration=schedule.instance.iterations, **times)]


DAMAGES: dict[Callable[[Schedule], list[Event] | None], tuple[Code, set[Code]]] = {
    drop_send: (Code.MISSING_TASK, {Code.MISSING_DEPENDENCY}),
    drop_reduction: (Code.MISSING_TASK, {Code.MISSING_DEPENDENCY}),
    longer_send: (
        Code.WRONG_DURATION,
        {Code.DEPENDENCY_VIOLATION, Code.LINK_OVERLAP, Code.PORT_OVERLAP, Code.COMPUTE_BLOCKED},
    ),
    send_on_one_stage: (Code.UNKNOWN_TASK, set()),
    send_twice: (Code.DUPLICATE_TASK, set()),
    reduction_uncalled: (Code.UNKNOWN_TASK, set()),
    send_from_another_stage: (Code.INVALID_STAGE, set()),
    iteration_too_many: (Code.UNKNOWN_TASK, set()),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_named(damage: Callable[[Schedule], list[Event] | None]) -> None:
    """An event that is missing, too many or of the wrong length is named, and nothing that does not follow from it."""
    expected, allowed = DAMAGES[damage]
    tried = 0
    for seed in SEEDS:
        schedule = schedule_of_seed(seed)
        events = damage(schedule)
        if events is not None:
            tried += 1
            found = codes(schedule, events)
            assert expected in found, f"seed {seed}: {found}"
            assert found <= allowed | {expected}, f"seed {seed}: {found}"
    assert tried >= 20
