"""Valid schedules, each damaged in one way: the validator names that damage and only what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from random import Random

import pytest
from random_instances import random_instance, random_schedule, with_events, with_memory

from zbopt.analysis.metrics import figures
from zbopt.problem.instance import Barrier, Drop, Instance, Kind
from zbopt.problem.schedule import Event, Schedule
from zbopt.validator import Code, validate

SEEDS = range(480)
WITH_MEMORY = 240
"""From this seed on, instances have the memory fields too."""
Damaged = tuple[Instance, list[Event]]
Damage = Callable[[Random, Schedule], Damaged | None]
"""Function that damages the events (and instance) of a valid schedule; ``None``: it found nothing to damage."""

# What follows from an event that is early, late or longer than it should be.
TIMES = frozenset({Code.DEPENDENCY_VIOLATION, Code.STAGE_OVERLAP, Code.MEMORY_EXCEEDED, Code.CYCLE})
TIMES |= {Code.OPTIMIZER_BEFORE_GRADIENT, Code.RECOMPUTE_BEFORE_FORWARD, Code.BACKWARD_BEFORE_RECOMPUTE}
TIMES |= {Code.OFFLOAD_BEFORE_FORWARD, Code.RELOAD_BEFORE_OFFLOAD, Code.BACKWARD_BEFORE_RELOAD, Code.HOST_LINK_OVERLAP}
HOSTS = (Kind.OUT, Kind.IN)
# What follows from an event that is not there.
ABSENT = frozenset({Code.MISSING_TASK, Code.MISSING_DEPENDENCY, Code.UNFINISHED_ACTIVATION, Code.MEMORY_EXCEEDED})


def _pick(random: Random, schedule: Schedule, *kinds: Kind) -> Event | None:
    found = [event for event in schedule.events if event.kind in kinds]
    return random.choice(found) if found else None


def _swap(schedule: Schedule, old: Event, new: Event) -> Damaged:
    return schedule.instance, [new if event is old else event for event in schedule.events]


def _at(event: Event, start: int) -> Event:
    return replace(event, start=start, end=start + event.end - event.start)


def _find(schedule: Schedule, like: Event, kind: Kind) -> Event | None:
    """Return the event of ``kind`` with the virtual stage and microbatch of ``like``."""
    key = (kind, like.virtual_stage, like.microbatch)
    return next((e for e in schedule.events if (e.kind, e.virtual_stage, e.microbatch) == key), None)


def _end(schedule: Schedule) -> int:
    return max(event.end for event in schedule.events)


def drop(random: Random, schedule: Schedule) -> Damaged:
    gone = random.choice([event for event in schedule.events if event.kind not in (Kind.R, *HOSTS)])
    return schedule.instance, [event for event in schedule.events if event is not gone]


def drop_forward(random: Random, schedule: Schedule) -> Damaged | None:
    gone = _pick(random, schedule, Kind.F)
    return schedule.instance, [event for event in schedule.events if event is not gone]


def drop_weight(random: Random, schedule: Schedule) -> Damaged | None:
    gone = _pick(random, schedule, Kind.W, Kind.BW)
    return schedule.instance, [event for event in schedule.events if event is not gone]


def repeat(random: Random, schedule: Schedule) -> Damaged:
    return schedule.instance, [*schedule.events, random.choice(schedule.events)]


def repeat_later(random: Random, schedule: Schedule) -> Damaged:
    event = random.choice(schedule.events)
    return schedule.instance, [*schedule.events, _at(event, _end(schedule))]


def forward_before_input(random: Random, schedule: Schedule) -> Damaged | None:
    """An F of a later virtual stage one tick before its input arrives."""
    forward = _pick(random, schedule, Kind.F)
    if forward is None or not forward.virtual_stage:
        return None
    before = _find(schedule, replace(forward, virtual_stage=forward.virtual_stage - 1), Kind.F)
    assert before is not None
    lag = schedule.instance.lag_ticks(forward.virtual_stage - 1, forward.virtual_stage)
    return _swap(schedule, forward, _at(forward, before.end + lag - 1))


def backward_before_forward(random: Random, schedule: Schedule) -> Damaged | None:
    """A backward that starts with its own F."""
    backward = _pick(random, schedule, Kind.B, Kind.BW)
    forward = backward and _find(schedule, backward, Kind.F)
    return None if backward is None or forward is None else _swap(schedule, backward, _at(backward, forward.start))


def backward_before_gradient(random: Random, schedule: Schedule) -> Damaged | None:
    """A backward one tick before the gradient of the next virtual stage arrives."""
    taker = _pick(random, schedule, Kind.B, Kind.BW)
    if taker is None or taker.virtual_stage in (None, schedule.instance.virtual_stages - 1):
        return None
    assert taker.virtual_stage is not None
    above = replace(taker, virtual_stage=taker.virtual_stage + 1)
    giver = _find(schedule, above, Kind.B) or _find(schedule, above, Kind.BW)
    assert giver is not None
    lag = schedule.instance.lag_ticks(taker.virtual_stage, taker.virtual_stage + 1)
    return _swap(schedule, taker, _at(taker, giver.end + lag - 1))


def weight_before_backward(random: Random, schedule: Schedule) -> Damaged | None:
    weight = _pick(random, schedule, Kind.W)
    backward = weight and _find(schedule, weight, Kind.B)
    if weight is None or backward is None:
        return None
    return _swap(schedule, weight, _at(weight, max(0, backward.start - 1)))


def overlap(random: Random, schedule: Schedule) -> Damaged | None:
    """An op of positive length starts together with another of its stage."""
    event = random.choice(schedule.events)
    others = [e for e in schedule.events if e.stage == event.stage and e is not event and e.end > e.start]
    others = [e for e in others if e.kind not in HOSTS]
    if event.end == event.start or not others or event.kind in HOSTS:
        return None
    return _swap(schedule, event, _at(event, random.choice(others).start))


def change_duration(random: Random, schedule: Schedule) -> Damaged:
    event = random.choice(schedule.events)
    return _swap(schedule, event, replace(event, end=event.end + random.randint(1, 3)))


def wrong_stage(random: Random, schedule: Schedule) -> Damaged | None:
    """An op on another stage that exists."""
    event = _pick(random, schedule, Kind.F, Kind.B, Kind.W, Kind.BW)
    others = [stage for stage in range(schedule.instance.stages) if event and stage != event.stage]
    return _swap(schedule, event, replace(event, stage=random.choice(others))) if event and others else None


def no_such_stage(random: Random, schedule: Schedule) -> Damaged | None:
    event = _pick(random, schedule, Kind.F, Kind.B, Kind.W, Kind.BW)
    stage = random.choice((-1, schedule.instance.stages, 10**30))
    return _swap(schedule, event, replace(event, stage=stage)) if event else None


def no_such_virtual_stage(random: Random, schedule: Schedule) -> Damaged:
    event = Event(Kind.F, 0, schedule.instance.virtual_stages, 0, _end(schedule), _end(schedule) + 1)
    return schedule.instance, [*schedule.events, event]


def no_such_microbatch(random: Random, schedule: Schedule) -> Damaged:
    number = random.choice((-1, schedule.instance.microbatches, 10**30))
    end = _end(schedule)
    return schedule.instance, [*schedule.events, Event(Kind.F, schedule.instance.stage_of[0], 0, number, end, end + 1)]


def other_iteration(random: Random, schedule: Schedule) -> Damaged:
    event = _at(random.choice(schedule.events), _end(schedule))
    return schedule.instance, [*schedule.events, replace(event, iteration=1)]


def swapped_interval(random: Random, schedule: Schedule) -> Damaged | None:
    event = random.choice(schedule.events)
    return (
        None if event.end == event.start else _swap(schedule, event, replace(event, start=event.end, end=event.start))
    )


def before_time(random: Random, schedule: Schedule) -> Damaged:
    event = random.choice(schedule.events)
    return _swap(schedule, event, _at(event, -5))


def cap_below_peak(random: Random, schedule: Schedule) -> Damaged | None:
    """Keep the events and set a cap a little below what one stage holds."""
    peaks = list(figures(schedule).peak_memory)
    stage = random.randrange(len(peaks))
    peaks[stage] -= Fraction(1, 1000)
    if peaks[stage] < 0:
        return None
    return schedule.instance.model_copy(update={"memory_cap": tuple(peaks)}), list(schedule.events)


def fused_beside_split(random: Random, schedule: Schedule) -> Damaged | None:
    """A BW of a microbatch whose B and W are there."""
    weight = _pick(random, schedule, Kind.W)
    fused = schedule.instance.fused_backward_ticks
    if weight is None or weight.virtual_stage is None:
        return None
    end = _end(schedule)
    ticks = (fused and fused[weight.virtual_stage]) or 1
    return schedule.instance, [*schedule.events, replace(weight, kind=Kind.BW, start=end, end=end + ticks)]


def split_beside_fused(random: Random, schedule: Schedule) -> Damaged | None:
    """A lone B or W of a microbatch whose BW is there."""
    fused = _pick(random, schedule, Kind.BW)
    if fused is None or fused.virtual_stage is None:
        return None
    kind, end = random.choice((Kind.B, Kind.W)), _end(schedule)
    times = schedule.instance.backward_ticks if kind is Kind.B else schedule.instance.weight_ticks
    ticks = (times and times[fused.virtual_stage]) or 1
    return schedule.instance, [*schedule.events, replace(fused, kind=kind, start=end, end=end + ticks)]


def optimizer_early(random: Random, schedule: Schedule) -> Damaged | None:
    """An O that starts a tick before the last gradient that it waits for ends."""
    step = _pick(random, schedule, Kind.O)
    if step is None:
        return None
    everywhere = schedule.instance.barrier is Barrier.GLOBAL
    gradients = [e for e in schedule.events if e.kind in (Kind.W, Kind.BW) and (everywhere or e.stage == step.stage)]
    return _swap(schedule, step, _at(step, max(e.end for e in gradients) - 1))


def optimizer_uncalled(random: Random, schedule: Schedule) -> Damaged | None:
    if schedule.instance.barrier is not Barrier.NONE:
        return None
    end = _end(schedule)
    return schedule.instance, [*schedule.events, Event(Kind.O, 0, None, None, end, end + 1)]


def backward_of_first(random: Random, schedule: Schedule) -> Damaged | None:
    """A B of the first virtual stage of an instance where that has none."""
    backward = schedule.instance.backward_ticks
    if backward is None or backward[0] is not None:
        return None
    end = _end(schedule)
    return schedule.instance, [*schedule.events, Event(Kind.B, schedule.instance.stage_of[0], 0, 0, end, end + 1)]


def order_that_deadlocks(random: Random, schedule: Schedule) -> Damaged | None:
    """A W moved wholly before its F, which comes before it by the dependencies: they wait for each other."""
    weight = _pick(random, schedule, Kind.W, Kind.BW)
    forward = weight and _find(schedule, weight, Kind.F)
    if weight is None or forward is None:
        return None
    ticks = weight.end - weight.start
    later = [replace(e, start=e.start + ticks, end=e.end + ticks) for e in schedule.events if e is not weight]
    return schedule.instance, [*later, _at(weight, 0)]


def recompute_left_out(random: Random, schedule: Schedule) -> Damaged | None:
    """An R less, on a virtual stage that always recomputes."""
    modes = schedule.instance.recompute or ()
    found = [e for e in schedule.events if e.kind is Kind.R and modes[e.virtual_stage or 0] is Drop.ALWAYS]
    gone = random.choice(found) if found else None
    return gone and (schedule.instance, [event for event in schedule.events if event is not gone])


def recompute_uncalled(random: Random, schedule: Schedule) -> Damaged | None:
    """An R on a virtual stage that never recomputes."""
    modes = schedule.instance.recompute or (Drop.NEVER,) * schedule.instance.virtual_stages
    found = [e for e in schedule.events if e.kind is Kind.F and modes[e.virtual_stage or 0] is Drop.NEVER]
    if not found:
        return None
    like, end = random.choice(found), _end(schedule)
    return schedule.instance, [*schedule.events, replace(like, kind=Kind.R, start=end, end=end + 1)]


def recompute_early(random: Random, schedule: Schedule) -> Damaged | None:
    """An R before everything."""
    again = _pick(random, schedule, Kind.R)
    if again is None:
        return None
    ticks = again.end - again.start
    later = [replace(e, start=e.start + ticks, end=e.end + ticks) for e in schedule.events if e is not again]
    return schedule.instance, [*later, _at(again, 0)]


def recompute_late(random: Random, schedule: Schedule) -> Damaged | None:
    """An R after everything."""
    again = _pick(random, schedule, Kind.R)
    return None if again is None else _swap(schedule, again, _at(again, _end(schedule)))


def offload_left_out(random: Random, schedule: Schedule) -> Damaged | None:
    """An OUT or IN less, on a virtual stage that always offloads."""
    modes = schedule.instance.offload or ()
    found = [e for e in schedule.events if e.kind in HOSTS and modes[e.virtual_stage or 0] is Drop.ALWAYS]
    gone = random.choice(found) if found else None
    return gone and (schedule.instance, [event for event in schedule.events if event is not gone])


def offload_without_reload(random: Random, schedule: Schedule) -> Damaged | None:
    """An OUT or IN less, where the schedule chose to offload."""
    modes = schedule.instance.offload or ()
    found = [e for e in schedule.events if e.kind in HOSTS and modes[e.virtual_stage or 0] is Drop.CHOOSE]
    gone = random.choice(found) if found else None
    return gone and (schedule.instance, [event for event in schedule.events if event is not gone])


def offload_uncalled(random: Random, schedule: Schedule) -> Damaged | None:
    """An OUT on a virtual stage that never offloads."""
    modes = schedule.instance.offload or (Drop.NEVER,) * schedule.instance.virtual_stages
    found = [e for e in schedule.events if e.kind is Kind.F and modes[e.virtual_stage or 0] is Drop.NEVER]
    if not found:
        return None
    like, end = random.choice(found), _end(schedule)
    return schedule.instance, [*schedule.events, replace(like, kind=Kind.OUT, start=end, end=end + 1)]


def offload_early(random: Random, schedule: Schedule) -> Damaged | None:
    """An OUT that starts a tick before its F ends."""
    out = _pick(random, schedule, Kind.OUT)
    forward = out and _find(schedule, out, Kind.F)
    return None if out is None or forward is None else _swap(schedule, out, _at(out, forward.end - 1))


def reload_early(random: Random, schedule: Schedule) -> Damaged | None:
    """An IN before everything."""
    back = _pick(random, schedule, Kind.IN)
    if back is None:
        return None
    ticks = back.end - back.start
    later = [replace(e, start=e.start + ticks, end=e.end + ticks) for e in schedule.events if e is not back]
    return schedule.instance, [*later, _at(back, 0)]


def reload_late(random: Random, schedule: Schedule) -> Damaged | None:
    """An IN after everything."""
    back = _pick(random, schedule, Kind.IN)
    return None if back is None else _swap(schedule, back, _at(back, _end(schedule)))


def dropped_twice(random: Random, schedule: Schedule) -> Damaged | None:
    """An offloaded activation that is recomputed too, where both may be: the R right on its F, and long before."""
    instance = schedule.instance
    may = [v for v, mode in enumerate(instance.recompute or ()) if mode is not Drop.NEVER]
    found = [e for e in schedule.events if e.kind is Kind.IN and e.virtual_stage in may]
    if not found or instance.recompute_ticks is None:
        return None
    back = random.choice(found)
    forward = _find(schedule, back, Kind.F)
    assert forward is not None
    again = replace(forward, kind=Kind.R, start=forward.end)
    again = replace(again, end=again.start + instance.recompute_ticks[back.virtual_stage or 0])
    ticks = again.end - again.start
    moved = [
        e if e.end <= forward.end else replace(e, start=e.start + ticks, end=e.end + ticks) for e in schedule.events
    ]
    return instance, [*moved, again]


def one_host_link_for_all(random: Random, schedule: Schedule) -> Damaged | None:
    """Keep the events and give all stages one link to the host, if two transfers are then on it at once."""
    instance = schedule.instance
    hosts = sorted((e for e in schedule.events if e.kind in HOSTS), key=lambda e: e.start)
    if not any(after.start < before.end for before, after in pairwise(hosts)):
        return None
    return instance.model_copy(update={"host_link": (0,) * instance.stages}), list(schedule.events)


def more_of(*fields: str) -> Damage:
    """Keep the events, under the caps that they need, and count a little more in one field."""

    def damage(random: Random, schedule: Schedule) -> Damaged | None:
        instance = schedule.instance
        field = random.choice(fields)
        amounts = getattr(instance, field)
        if amounts is None:
            return None
        peaks = figures(schedule).peak_memory
        more = {field: tuple(amount + Fraction(1, 1000) for amount in amounts)}
        larger = instance.model_copy(update=more)
        if figures(schedule.model_copy(update={"instance": larger})).peak_memory == peaks:
            return None
        return larger.model_copy(update={"memory_cap": peaks}), list(schedule.events)

    damage.__name__ = f"more_{fields[0]}"
    return damage


def another_receive_buffer(random: Random, schedule: Schedule) -> Damaged | None:
    """Keep the events, under the caps that they need, and give one microbatch more a receive buffer."""
    instance = schedule.instance
    if instance.receive_buffers not in (None, 1) or not any(instance.boundary or ()):
        return None
    peaks = figures(schedule).peak_memory
    larger = instance.model_copy(update={"receive_buffers": (instance.receive_buffers or 0) + 1})
    if figures(schedule.model_copy(update={"instance": larger})).peak_memory == peaks:
        return None
    return larger.model_copy(update={"memory_cap": peaks}), list(schedule.events)


CASES: dict[Damage, tuple[Code, frozenset[Code]]] = {
    drop: (Code.MISSING_TASK, ABSENT),
    drop_forward: (Code.MISSING_DEPENDENCY, ABSENT),
    drop_weight: (Code.UNFINISHED_ACTIVATION, ABSENT),
    repeat: (Code.DUPLICATE_TASK, frozenset({Code.STAGE_OVERLAP})),
    repeat_later: (Code.DUPLICATE_TASK, frozenset()),
    forward_before_input: (Code.DEPENDENCY_VIOLATION, TIMES),
    backward_before_forward: (Code.DEPENDENCY_VIOLATION, TIMES),
    backward_before_gradient: (Code.DEPENDENCY_VIOLATION, TIMES),
    weight_before_backward: (Code.DEPENDENCY_VIOLATION, TIMES),
    overlap: (Code.STAGE_OVERLAP, TIMES),
    change_duration: (Code.WRONG_DURATION, TIMES),
    wrong_stage: (Code.INVALID_STAGE, frozenset({Code.STAGE_OVERLAP})),
    no_such_stage: (Code.INVALID_STAGE, frozenset()),
    no_such_virtual_stage: (Code.INVALID_STAGE, frozenset()),
    no_such_microbatch: (Code.UNKNOWN_TASK, frozenset()),
    other_iteration: (Code.UNKNOWN_TASK, frozenset()),
    swapped_interval: (Code.INVALID_INTERVAL, TIMES),
    before_time: (Code.INVALID_INTERVAL, TIMES),
    cap_below_peak: (Code.MEMORY_EXCEEDED, frozenset()),
    fused_beside_split: (Code.UNKNOWN_TASK, frozenset()),
    split_beside_fused: (Code.UNKNOWN_TASK, frozenset()),
    optimizer_early: (Code.OPTIMIZER_BEFORE_GRADIENT, TIMES | {Code.INVALID_INTERVAL}),
    optimizer_uncalled: (Code.UNKNOWN_TASK, frozenset()),
    backward_of_first: (Code.UNKNOWN_TASK, frozenset()),
    order_that_deadlocks: (Code.CYCLE, TIMES),
    recompute_left_out: (Code.RECOMPUTE_MISSING, frozenset({Code.MEMORY_EXCEEDED})),
    recompute_uncalled: (Code.RECOMPUTE_FORBIDDEN, frozenset()),
    recompute_early: (Code.RECOMPUTE_BEFORE_FORWARD, frozenset({Code.CYCLE, Code.MEMORY_EXCEEDED})),
    recompute_late: (Code.BACKWARD_BEFORE_RECOMPUTE, frozenset({Code.CYCLE, Code.MEMORY_EXCEEDED})),
    offload_left_out: (Code.OFFLOAD_MISSING, frozenset({Code.MEMORY_EXCEEDED})),
    offload_without_reload: (Code.OFFLOAD_UNPAIRED, frozenset({Code.MEMORY_EXCEEDED})),
    offload_uncalled: (Code.OFFLOAD_FORBIDDEN, frozenset()),
    offload_early: (Code.OFFLOAD_BEFORE_FORWARD, TIMES),
    reload_early: (Code.RELOAD_BEFORE_OFFLOAD, frozenset({Code.MEMORY_EXCEEDED})),
    reload_late: (Code.BACKWARD_BEFORE_RELOAD, frozenset({Code.MEMORY_EXCEEDED})),
    dropped_twice: (Code.DROPPED_TWICE, TIMES),
    one_host_link_for_all: (Code.HOST_LINK_OVERLAP, frozenset()),
    more_of("boundary"): (Code.MEMORY_EXCEEDED, frozenset()),
    more_of("gradient_state"): (Code.MEMORY_EXCEEDED, frozenset()),
    more_of("checkpoint", "offload_rest"): (Code.MEMORY_EXCEEDED, frozenset()),
    more_of("parameters", "gradients", "optimizer_state", "workspace", "reserve"): (
        Code.MEMORY_EXCEEDED,
        frozenset(),
    ),
    another_receive_buffer: (Code.MEMORY_EXCEEDED, frozenset()),
}


NEVER_ALONE = {drop_forward, drop_weight, backward_before_forward, order_that_deadlocks}
"""Further codes: an op that is missing is missed by those that need it; a backward with its F is two ops at a time."""


@cache
def _instance_and_schedule(seed: int) -> tuple[Instance, Schedule]:
    random = Random(seed)
    instance = random_instance(random)
    if seed >= WITH_MEMORY:
        instance = with_memory(random, instance)
    return instance, random_schedule(random, instance)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules_are_valid(seed: int) -> None:
    """They are valid by construction from the task graph, which the validator does not read. The figures agree too."""
    instance, schedule = _instance_and_schedule(seed)
    verdict = validate(instance, schedule)
    known = figures(schedule)
    assert verdict.violations == ()
    assert (verdict.makespan, verdict.busy_ticks) == (known.makespan, known.busy_ticks)
    assert (verdict.peak_memory, verdict.unfinished_activations) == (known.peak_memory, 0)


@pytest.mark.parametrize("damage", CASES, ids=lambda damage: damage.__name__)
def test_damage_is_named(damage: Damage) -> None:
    """Each kind of damage is named on each of 480 random schedules that it can damage, at least 8 of them."""
    expected, allowed = CASES[damage]
    tried, alone = 0, False
    for seed in SEEDS:
        _, schedule = _instance_and_schedule(seed)
        damaged = damage(Random(seed), schedule)
        if damaged is None:
            continue
        tried += 1
        instance, events = damaged
        codes = {violation.code for violation in validate(instance, with_events(schedule, events)).violations}
        assert expected in codes, f"seed {seed}: {codes}"
        assert codes <= allowed | {expected}, f"seed {seed}: {codes}"
        alone = alone or codes - {Code.CYCLE} == {expected}
    assert tried >= 8
    # Somewhere no other rule says it; a circle is only the same waits seen as a whole.
    assert alone or damage in NEVER_ALONE
