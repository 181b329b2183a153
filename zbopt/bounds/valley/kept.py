"""What is kept of a V: F and B of some stages, and on a few of them W and the memory as well."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zbopt.bounds.stage import Slices, Waiting, held_for_weight, most_work, optimizer_tail, room_beside_forward
from zbopt.bounds.understood import COMMON, is_understood
from zbopt.graph.memory import least_left
from zbopt.problem.instance import Instance, Objective

Integers = NDArray[np.int64]
"""Ticks, counts or places."""

NEVER = 2**40
"""Ticks that no step takes."""

_MOST = 2**62
"""What compiled code counts up to, and as much again."""

_MANY = 6
"""Times as many microbatches as can be under way: of fewer, a horizon leaves out more than a repetition would skip."""


class Kept(NamedTuple):
    """Ops of some stages of a V in the order in which a microbatch passes them; times in ticks.

    Under the largest span all begins with the first op of stage 0 and ends with its last one, whatever else is left.

    What is kept of memory and W on a stage, the full ones, is the less of what its two virtual stages need. Tables by
    place on the way have an entry for each op, tables by stage one for each kept stage.

    Attributes:
        microbatches: How many there are.
        most_under_way: Microbatches that can be between their first and their last op here.
        head: Least time from the first start of all to the first kept op.
        stage: By place: number of the stage among the kept ones.
        forward: Whether the op is an F; else it is a B.
        ticks: Its time.
        onward: Least time from its start to that of the next kept op of the microbatch; 0 for the last.
        from_first: Least time from the start of the first op to that of this one.
        rest: Least time from its start to the end of all.
        places: By stage: places of its two F and its two B.
        full: Whether W and memory are kept.
        each: Memory that a microbatch holds on each virtual stage from its F to the end of its B.
        waiting: The same from there until the end of its W.
        room: What the start of an F leaves to others.
        most: Activations that fit while an F runs.
        weight: Time of W.
        longest_forward: Time of the longer F.
        longest_gradient: Time of the longer B.
        after_weight: Least time from the end of its last W to the end of all; below 0 it may come so much later.
        after_forward: Least time from the start of its last F to the end of all, less the most work in it.
        held: By stage and place: activations that a microbatch holds until the end of their B.
        work_left: Work that is left of a microbatch, its W with its B.
        forwards_left: F that are left of it.
    """

    microbatches: int
    most_under_way: int
    head: int
    stage: Integers
    forward: NDArray[np.bool_]
    ticks: Integers
    onward: Integers
    from_first: Integers
    rest: Integers
    places: Integers
    full: NDArray[np.bool_]
    each: Integers
    waiting: Integers
    room: Integers
    most: Integers
    weight: Integers
    longest_forward: Integers
    longest_gradient: Integers
    after_weight: Integers
    after_forward: Integers
    held: Integers
    work_left: Integers
    forwards_left: Integers


UNDERSTOOD = COMMON
"""States know of F, B and W on a V, one iteration, and microbatches that are alike and hold their activation until B or
W. So backwards that may be fused, dropped activations, several routes or iterations are not understood; transfers that
are events, and late inputs, could be (they only forbid schedules), but were never tried."""


def applies(instance: Instance) -> bool:
    """Return whether stages hold a V, memory has a limit, and every virtual stage has a B."""
    if not is_understood(instance, UNDERSTOOD) or instance.memory_cap is None or instance.stages == 1:
        return False
    half = range(instance.stages)
    is_v = instance.stage_of == (*half, *reversed(half))
    return is_v and all(instance.has_b(v) for v in range(instance.virtual_stages))


def can_be_full(instance: Instance, stage: int) -> bool:
    """Both virtual stages of ``stage`` hold something, and an F fits."""
    parts = instance.virtual_stages_of(stage)
    return all(least_left(instance, v) > 0 and room_beside_forward(instance, v) >= 0 for v in parts)


def is_long(kept: Kept) -> bool:
    """Whether there are so many microbatches that layers are expected to repeat."""
    return kept.microbatches >= _MANY * kept.most_under_way


def keep(instance: Instance, stages: Collection[int], full: Collection[int]) -> Kept:
    """F and B of ``stages``, with W and memory of those in ``full``.

    Args:
        instance: One to which this applies.
        stages: The stages to keep.
        full: Some of them that ``can_be_full``.
    """
    slices, kept = Slices(instance), tuple(sorted(stages))
    down = [v for v in range(instance.virtual_stages) if instance.stage_of[v] in kept]
    onward = _onward(slices, down)
    spans = instance.objective is Objective.MAX_STAGE_SPAN
    gradient_tails = slices.tails_on_first if spans else slices.gradient_tails
    tails = [0] * len(down) + [gradient_tails[v] for v in reversed(down)]
    rest = [tails[-1]]
    for lag, tail in zip(reversed(onward), reversed(tails[:-1]), strict=True):
        rest.append(max(lag + rest[-1], tail))
    rest.reverse()
    way = [*down, *reversed(down)]
    ticks = [*map(slices.forward, down), *map(slices.gradient, reversed(down))]
    places = [[place for place, v in enumerate(way) if instance.stage_of[v] == stage] for stage in kept]
    weights = [
        _weights(slices, stage, rest[at[1]] - ticks[at[1]] - ticks[at[2]]) if stage in full else _Weights()
        for stage, at in zip(kept, places, strict=True)
    ]

    def left(at: Sequence[int], amounts: Sequence[int]) -> list[int]:
        return [sum(amount for p, amount in zip(at, amounts, strict=True) if p >= place) for place in range(len(way))]

    return Kept(
        microbatches=instance.microbatches,
        most_under_way=_most_under_way(instance, kept[0]),
        head=slices.heads[down[0]],
        stage=np.array([kept.index(instance.stage_of[v]) for v in way]),
        forward=np.arange(len(way)) < len(down),
        ticks=np.array(ticks),
        onward=np.array([*onward, 0]),
        from_first=np.cumsum([0, *onward]),
        rest=np.array(rest),
        places=np.array(places),
        full=np.array([stage in full for stage in kept]),
        **{name: np.array([getattr(row, name) for row in weights]) for name in _Weights._fields},
        longest_forward=np.array([max(ticks[p] for p in at[:2]) for at in places]),
        longest_gradient=np.array([max(ticks[p] for p in at[2:]) for at in places]),
        held=np.array([left(at, (-1, -1, 1, 1)) for at in places]),
        work_left=np.array(
            [
                left(at, [ticks[p] + row.weight * (number > 1) for number, p in enumerate(at)])
                for at, row in zip(places, weights, strict=True)
            ]
        ),
        forwards_left=np.array([left(at, (1, 1, 0, 0)) for at in places]),
    )


def _most_under_way(instance: Instance, virtual_stage: int) -> int:
    """Microbatches that can be between F and the end of B on a virtual stage."""
    each = least_left(instance, virtual_stage)
    if not each:
        return instance.microbatches
    return min(instance.microbatches, 1 + int(max(room_beside_forward(instance, virtual_stage), Fraction(0)) / each))


def _onward(slices: Slices, down: Sequence[int]) -> list[int]:
    """Least times from the start of each op of the way to that of the next one."""
    instance = slices.instance
    forth = [slices.heads[v] - slices.heads[u] for u, v in pairwise(down)]
    back = [sum(slices.gradient(w) + instance.lag_ticks(w, w - 1) for w in range(v, u, -1)) for u, v in pairwise(down)]
    return [*forth, slices.round_trips[down[-1]], *reversed(back)]


class _Weights(NamedTuple):
    """W and memory of a full stage, as in ``Kept``."""

    each: int = 0
    waiting: int = 0
    room: int = 0
    most: int = 0
    weight: int = 0
    after_weight: int = 0
    after_forward: int = 0


def _unit(amounts: Sequence[Fraction], many: int) -> Fraction:
    """By what to multiply ``amounts`` of memory to get whole numbers of which ``many`` and one more are no overflow.

    Where there is no such number they are not quite whole: less is needed then, and there is more room.
    """
    exact = lcm(*(amount.denominator for amount in amounts))
    return min(Fraction(exact), Fraction(_MOST // (many + 2)) / max(amounts))


def _weights(slices: Slices, stage: int, idle: int) -> _Weights:
    """What is kept of a full stage, on which at least ``idle`` passes after its last F until all ends, its B aside."""
    instance, parts = slices.instance, slices.instance.virtual_stages_of(stage)
    each = min(least_left(instance, v) for v in parts)
    weight = min(slices.weight(v) for v in parts)
    # More than B gives back is not counted: no B may leave less room than there was. W of no time need not wait.
    waiting = min(each, *(held_for_weight(instance, v) for v in parts)) if weight else Fraction(0)
    room = max(room_beside_forward(instance, v) for v in parts)
    many = 2 * instance.microbatches
    unit = _unit((each, waiting, room), many)
    gradient = max(slices.gradient(v) for v in parts)
    live = most_work(room, [Waiting(each, gradient + weight, many), Waiting(waiting, weight, many)])
    return _Weights(
        each=floor(each * unit),
        waiting=floor(waiting * unit),
        room=ceil(room * unit),
        most=min(many, 1 + int(room / each)),
        weight=weight,
        after_weight=-NEVER if instance.objective is Objective.MAX_STAGE_SPAN else optimizer_tail(instance, stage),
        after_forward=idle - weight - live,
    )
