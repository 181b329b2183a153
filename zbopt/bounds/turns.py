"""Turns: the round trip of a stage that holds several virtual stages, such as both arms of a V.

models/bounds.md, "turns". Before the first gradient comes back to a stage's first virtual stage, and after the last
gradient has left the others, memory and the way between them limit what the stage can do.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from zbopt.bounds.stage import Slices, held_for_weight, optimizer_tail, over_stages, slots
from zbopt.instance import Instance, Objective
from zbopt.memory import least_left, static_memory
from zbopt.result import Bound


def turns(instance: Instance) -> Bound | None:
    """The largest over the stages that hold several virtual stages; ``None`` if none does."""
    stated = instance.alike and instance.routes is None and instance.overlapped_ticks is None
    value = over_stages(instance, _of_stage) if stated else None
    return None if value is None else Bound(value, "bound:turns")


def _of_stage(slices: Slices, stage: int) -> int | None:
    instance = slices.instance
    first, *others = instance.virtual_stages_of(stage)
    if not others:
        return None
    m, own = instance.microbatches, slices.forward(first) + slices.again(first)
    count = slots(instance, first)
    rest = slices.work(stage) // m - own - slices.backward_work(first)
    begun = m if count is None else count
    way = slices.heads[others[0]] - slices.heads[first]
    before = max(0, way - begun * own, slices.round_trips[first] - begun * (own + rest))
    after = 0 if count is None else max(0, _way_back(slices, first, others[0]) - int(_most_work(slices, stage)))
    head = slices.heads[first] if instance.objective is Objective.MAKESPAN else 0
    return head + slices.work(stage) + before + after + optimizer_tail(instance, stage)


def _way_back(slices: Slices, first: int, other: int) -> int:
    """Least time from the end of the gradient op of ``other`` to the arrival of the gradient on ``first``."""
    lags = sum(slices.instance.lag_ticks(v, v - 1) for v in range(first + 1, other + 1))
    return lags + sum(slices.gradient(v) for v in range(first + 1, other))


def _most_work(slices: Slices, stage: int) -> Fraction:
    """Most work of what can be live beside one microbatch whose gradient is on its way to the stage's first part."""
    instance = slices.instance
    assert instance.memory_cap is not None, "asked only where memory limits"
    first = instance.virtual_stages_of(stage)[0]
    room = instance.memory_cap[stage] - static_memory(instance, stage) - least_left(instance, first)
    count, most = instance.microbatches, Fraction(0)
    # As if ops could be cut to fill the room: the work per memory decides, each kind at most once a microbatch.
    for size, ticks in sorted(_live(slices, stage), key=lambda one: _rate(*one), reverse=True):
        taken = Fraction(count) if size == 0 else min(Fraction(count), max(room, Fraction(0)) / size)
        most += taken * ticks
        room -= taken * size
    return most


def _live(slices: Slices, stage: int) -> Iterator[tuple[Fraction, int]]:
    """(memory, work left) of a microbatch that waits for its gradient on the first part, or for a W on any."""
    instance = slices.instance
    first = instance.virtual_stages_of(stage)[0]
    yield least_left(instance, first), slices.again(first) + slices.backward_work(first)
    for v in instance.virtual_stages_of(stage):
        yield held_for_weight(instance, v), slices.weight(v)


def _rate(size: Fraction, ticks: int) -> tuple[bool, Fraction]:
    return size == 0, Fraction(ticks) if size == 0 else ticks / size
