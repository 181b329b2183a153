"""What is kept of a V: F and B of some stages, and on a few of them W and the memory as well."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray

from zbopt.bounds.stage import Slices, Waiting, held_for_weight, most_work, optimizer_tail, room_beside_forward
from zbopt.instance import Instance, Objective
from zbopt.memory import Way, least_left, ways

Integers = NDArray[np.int64]
"""Ticks, counts or places."""


@dataclass(frozen=True, slots=True, eq=False)
class Full:
    """A stage of which everything is kept: of W and memory, the less of what its two virtual stages need.

    Tables by place have one row more: the last is that of a microbatch that is not under way, place -1.

    Attributes:
        stage: Number of the stage among the kept ones.
        forwards: Places of its F on the way of a microbatch.
        gradients: Places of its B.
        each: Memory that a microbatch holds on each virtual stage from its F to the end of its B.
        waiting: The same from there until the end of its W.
        room: What the start of an F leaves to others.
        weight: Time of W.
        forward: Time of the longer F.
        gradient: Time of the longer B.
        work: Work of one microbatch.
        after_weight: Least time from the end of its last W to the end of all.
        after_forward: Least time from the start of its last F to the end of all in which it does no op.
        held: Activations that a microbatch holds here, by place.
        work_left: Work that is left of a microbatch here, by place.
        forwards_left: F that are left of a microbatch here, by place.
    """

    stage: int
    forwards: tuple[int, int]
    gradients: tuple[int, int]
    each: int
    waiting: int
    room: int
    weight: int
    forward: int
    gradient: int
    work: int
    after_weight: int
    after_forward: int
    held: Integers
    work_left: Integers
    forwards_left: Integers

    @property
    def most(self) -> int:
        """Activations that fit while an F runs."""
        return 1 + self.room // self.each


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Ops of some stages of a V in the order in which a microbatch passes them; times in ticks, by place on that way.

    Attributes:
        stages: The kept stages.
        microbatches: How many there are.
        stage: Number of the stage among the kept ones.
        forward: Whether the op is an F; else it is a B.
        ticks: Its time.
        onward: Least time from its start to that of the next kept op of the microbatch; 0 for the last.
        from_first: Least time from the start of the first op to that of this one.
        rest: Least time from its start to the end of all.
        head: Least time from the first start of all to the first kept op.
        most_under_way: Microbatches that can be between their first and their last op here.
        full: Stages of which W and memory are kept.
        backward: Time runs backward: the way begins with the last B, starts are ends, W come before their B.
    """

    stages: tuple[int, ...]
    microbatches: int
    stage: Integers
    forward: NDArray[np.bool_]
    ticks: Integers
    onward: Integers
    from_first: Integers
    rest: Integers
    head: int
    most_under_way: int
    full: tuple[Full, ...]
    backward: bool = False


def applies(instance: Instance) -> bool:
    """A V of alike microbatches whose backward is always split and whose activations are kept, by its makespan."""
    half = range(instance.stages)
    return (
        instance.is_simple
        and instance.stages > 1
        and instance.stage_of == (*half, *reversed(half))
        and instance.alike
        and instance.overlapped_ticks is None
        and instance.objective is Objective.MAKESPAN
        and instance.memory_cap is not None
        and not instance.may_fuse
        and instance.backward_ticks is not None
        and None not in instance.backward_ticks
        and all(ways(instance, v) == (Way.KEEP,) for v in range(instance.virtual_stages))
    )


def can_be_full(instance: Instance, stage: int) -> bool:
    """Both virtual stages of ``stage`` hold something, and an F fits."""
    parts = instance.virtual_stages_of(stage)
    return all(least_left(instance, v) > 0 and room_beside_forward(instance, v) >= 0 for v in parts)


def keep(instance: Instance, stages: Collection[int], full: Collection[int], first: int | None = None) -> Kept:
    """F and B of ``stages``, with W and memory of those in ``full``.

    Args:
        instance: One to which this applies.
        stages: The stages to keep.
        full: Some of them that ``can_be_full``.
        first: A stage before them whose memory limits how many microbatches are under way; ``None``: the first of them.
    """
    slices, kept = Slices(instance), tuple(sorted(stages))
    down = [v for v in range(instance.virtual_stages) if instance.stage_of[v] in kept]
    onward = _onward(slices, down)
    tails = [0] * len(down) + [slices.gradient_tails[v] for v in reversed(down)]
    rest = [tails[-1]]
    for lag, tail in zip(reversed(onward), reversed(tails[:-1]), strict=True):
        rest.append(max(lag + rest[-1], tail))
    rest.reverse()
    way = [*down, *reversed(down)]
    number = {stage: i for i, stage in enumerate(kept)}
    return Kept(
        stages=kept,
        microbatches=instance.microbatches,
        stage=np.array([number[instance.stage_of[v]] for v in way]),
        forward=np.arange(len(way)) < len(down),
        ticks=np.array([*map(slices.forward, down), *map(slices.gradient, reversed(down))]),
        onward=np.array([*onward, 0]),
        from_first=np.cumsum([0, *onward]),
        rest=np.array(rest),
        head=slices.heads[down[0]],
        most_under_way=_most_under_way(instance, kept[0] if first is None else first),
        full=tuple(_full(slices, stage, number[stage], way, rest) for stage in sorted(full)),
    )


def _most_under_way(instance: Instance, virtual_stage: int) -> int:
    """Microbatches that can be between F and the end of B on a virtual stage."""
    each = least_left(instance, virtual_stage)
    if not each:
        return instance.microbatches
    return min(instance.microbatches, 1 + int(max(room_beside_forward(instance, virtual_stage), Fraction(0)) / each))


def backward(kept: Kept) -> Kept:
    """The same problem with time running backward from the end of all."""
    last = len(kept.stage) - 1
    lags = kept.onward[:-1] - kept.ticks[:-1] + kept.ticks[1:]
    onward = np.append(lags[::-1], 0)

    def turned(row: Integers) -> Integers:
        # At a place going backward, what is left is what was done before it going forward.
        return np.array([0, *row[1:-1][::-1], 0])

    full = [
        replace(
            part,
            forwards=(last - part.forwards[0], last - part.forwards[1]),
            gradients=(last - part.gradients[0], last - part.gradients[1]),
            after_weight=0,
            after_forward=0,
            held=turned(part.held),
            work_left=np.append(part.work - turned(part.work_left)[:-1], 0),
            forwards_left=np.append(2 - turned(part.forwards_left)[:-1], 0),
        )
        for part in kept.full
    ]
    return replace(
        kept,
        stage=kept.stage[::-1],
        forward=kept.forward[::-1],
        ticks=kept.ticks[::-1],
        onward=onward,
        from_first=np.append([0], np.cumsum(onward)[:-1]),
        rest=(kept.head + kept.from_first + kept.ticks)[::-1],
        head=int(kept.rest[-1] - kept.ticks[-1]),
        full=tuple(full),
        backward=True,
    )


def _onward(slices: Slices, down: Sequence[int]) -> list[int]:
    """Least times from the start of each op of the way to that of the next one."""
    instance = slices.instance
    forth = [slices.heads[v] - slices.heads[u] for u, v in pairwise(down)]
    back = [sum(slices.gradient(w) + instance.lag_ticks(w, w - 1) for w in range(v, u, -1)) for u, v in pairwise(down)]
    return [*forth, slices.round_trips[down[-1]], *reversed(back)]


def _full(slices: Slices, stage: int, number: int, way: Sequence[int], rest: Sequence[int]) -> Full:
    instance, parts = slices.instance, slices.instance.virtual_stages_of(stage)
    each = min(least_left(instance, v) for v in parts)
    # More than B gives back is not counted: no B may leave less room than there was.
    waiting = min(each, *(held_for_weight(instance, v) for v in parts))
    room = max(room_beside_forward(instance, v) for v in parts)
    unit = lcm(each.denominator, waiting.denominator, room.denominator)
    weight = min(slices.weight(v) for v in parts)
    (first, last), end = [way.index(v) for v in parts], len(way) - 1
    works = {place: slices.forward(way[place]) for place in (first, last)}
    works |= {end - place: slices.gradient(way[place]) + weight for place in (first, last)}
    gradient, many = max(slices.gradient(v) for v in parts), 2 * instance.microbatches
    live = most_work(room, [Waiting(each, gradient + weight, many), Waiting(waiting, weight, many)])
    places = range(len(way))
    return Full(
        stage=number,
        forwards=(first, last),
        gradients=(end - first, end - last),
        each=int(each * unit),
        waiting=int(waiting * unit),
        room=int(room * unit),
        weight=weight,
        forward=max(slices.forward(v) for v in parts),
        gradient=gradient,
        work=sum(works.values()),
        after_weight=optimizer_tail(instance, stage),
        after_forward=max(0, rest[last] - works[last] - works[end - last] - live),
        held=np.array([*(sum(place < at <= end - place for place in (first, last)) for at in places), 0]),
        work_left=np.array([*(sum(w for place, w in works.items() if place >= at) for at in places), 0]),
        forwards_left=np.array([*(sum(place >= at for place in (first, last)) for at in places), 0]),
    )
