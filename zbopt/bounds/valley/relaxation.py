"""Relaxation of a V to some stages: their F and B are kept, and on a few of them W and the memory as well."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zbopt.bounds.stage import LeastTimes, Waiting, held_for_weight, most_work, optimizer_tail, room_beside_forward
from zbopt.bounds.understood import COMMON, is_understood
from zbopt.graph.memory import least_left
from zbopt.problem.instance import Instance, Objective

Integers = NDArray[np.int64]
"""Ticks, counts or places."""

NEVER = 2**40
"""Ticks that no step takes. What is compiled is kept on disk with this value in it: with another one, change a line of
``states`` too."""

_LARGEST_NUMBER = 2**62
"""Half of what 64 bits hold: two such numbers can still be added."""

_LONG_STEP = 6
"""A step is long from so many times the microbatches that can be under way. With fewer, a horizon leaves out more
states than a repetition would skip. Not measured; chosen."""


class Relaxation(NamedTuple):
    """Hold the ops of some stages of a V in the order in which a microbatch passes them; times in ticks.

    Under the largest span all begins with the first op of stage 0 and ends with its last one, whatever else is left.

    On full stages, W and memory are kept too: the less of what the two virtual stages need. Arrays by place have an
    entry for each op that a microbatch passes, in order; arrays by stage have one for each kept stage. ``states.Row``
    and ``states.Left`` take these fields by name.

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
    """Return whether both virtual stages of ``stage`` hold something, and an F fits."""
    both = instance.virtual_stages_of(stage)
    return all(least_left(instance, v) > 0 and room_beside_forward(instance, v) >= 0 for v in both)


def is_long(relaxation: Relaxation) -> bool:
    """Return whether there are so many microbatches that layers are expected to repeat."""
    return relaxation.microbatches >= _LONG_STEP * relaxation.most_under_way


def relax(instance: Instance, stages: Collection[int], full: Collection[int]) -> Relaxation:
    """Keep F and B of ``stages``, and W and memory of those in ``full``.

    Args:
        instance: One for which ``applies`` is true.
        stages: The stages to keep.
        full: Some of them that ``can_be_full``.
    """
    times, kept_stages = LeastTimes(instance), tuple(sorted(stages))
    path = _path(times, [v for v in range(instance.virtual_stages) if instance.stage_of[v] in kept_stages])
    places = np.array([path.places_on(instance, stage) for stage in kept_stages])
    full_stages = [
        _full_stage(times, stage, path.least_after_last_forward(at)) if stage in full else _FullStage()
        for stage, at in zip(kept_stages, places, strict=True)
    ]
    memory = {name: np.array([getattr(one, name) for one in full_stages]) for name in _FullStage._fields}
    ticks, count = np.array(path.ticks), len(path.ticks)
    forwards, gradients = ticks[places[:, :2]], ticks[places[:, 2:]]
    work = np.hstack((forwards, gradients + memory["weight"][:, None]))
    return Relaxation(
        microbatches=instance.microbatches,
        most_under_way=_most_under_way(instance, kept_stages[0]),
        head=times.heads[path.virtual_stages[0]],
        stage=np.array([kept_stages.index(instance.stage_of[v]) for v in path.virtual_stages]),
        forward=np.arange(count) < count // 2,
        ticks=ticks,
        onward=np.array([*path.onward, 0]),
        from_first=np.cumsum([0, *path.onward]),
        rest=np.array(path.rest),
        places=places,
        full=np.array([stage in full for stage in kept_stages]),
        **memory,
        longest_forward=forwards.max(axis=1),
        longest_gradient=gradients.max(axis=1),
        held=_from_each_place(places, np.array([-1, -1, 1, 1]), count),
        work_left=_from_each_place(places, work, count),
        forwards_left=_from_each_place(places, np.array([1, 1, 0, 0]), count),
    )


class _Path(NamedTuple):
    """Hold the kept ops of a microbatch in the order in which it passes them, F down the V and back, then B.

    Attributes:
        virtual_stages: Where each op is.
        ticks: Its time.
        onward: Least time from its start to that of the next one; the last has none.
        rest: Least time from its start to the end of all.
    """

    virtual_stages: list[int]
    ticks: list[int]
    onward: list[int]
    rest: list[int]

    def places_on(self, instance: Instance, stage: int) -> list[int]:
        """Return the places of the two F and the two B on ``stage``."""
        return [place for place, v in enumerate(self.virtual_stages) if instance.stage_of[v] == stage]

    def least_after_last_forward(self, at: Sequence[int]) -> int:
        """Return the least time from the end of the second F at ``at`` to the end of all, less the first B."""
        return self.rest[at[1]] - self.ticks[at[1]] - self.ticks[at[2]]


def _path(times: LeastTimes, down: Sequence[int]) -> _Path:
    """Return the path over the virtual stages ``down``, given in forward order."""
    onward = _onward(times, down)
    spans = times.instance.objective is Objective.MAX_STAGE_SPAN
    gradient_tails = times.tails_on_first if spans else times.gradient_tails
    tails = [0] * len(down) + [gradient_tails[v] for v in reversed(down)]
    rest = [tails[-1]]
    for lag, tail in zip(reversed(onward), reversed(tails[:-1]), strict=True):
        rest.append(max(lag + rest[-1], tail))
    rest.reverse()
    ticks = [*map(times.forward, down), *map(times.gradient, reversed(down))]
    return _Path([*down, *reversed(down)], ticks, onward, rest)


def _from_each_place(places: Integers, amounts: Integers, count: int) -> Integers:
    """Return the sum of ``amounts`` over a stage's ops at a place and later ones, by stage and by each of all places.

    Args:
        places: By stage, the places of its four ops.
        amounts: By op, or by stage and op.
        count: How many places there are.
    """
    is_to_come = places[:, :, None] >= np.arange(count)
    found: Integers = np.where(is_to_come, amounts[..., None], 0).sum(axis=1)
    return found


def _most_under_way(instance: Instance, virtual_stage: int) -> int:
    """Return how many microbatches can be between F and the end of B on a virtual stage."""
    each = least_left(instance, virtual_stage)
    if not each:
        return instance.microbatches
    return min(instance.microbatches, 1 + int(max(room_beside_forward(instance, virtual_stage), Fraction(0)) / each))


def _onward(times: LeastTimes, down: Sequence[int]) -> list[int]:
    """Return the least times from the start of each op that a microbatch passes to that of the next one."""
    instance = times.instance
    forth = [times.heads[v] - times.heads[u] for u, v in pairwise(down)]
    back = [sum(times.gradient(w) + instance.lag_ticks(w, w - 1) for w in range(v, u, -1)) for u, v in pairwise(down)]
    return [*forth, times.round_trips[down[-1]], *reversed(back)]


class _FullStage(NamedTuple):
    """Hold W and memory of a full stage, by the names of ``Relaxation``."""

    each: int = 0
    waiting: int = 0
    room: int = 0
    most: int = 0
    weight: int = 0
    after_weight: int = 0
    after_forward: int = 0


def _unit(amounts: Sequence[Fraction], many: int) -> Fraction:
    """Return a factor that makes ``amounts`` of memory whole, small enough that ``many`` and one more of them fit.

    Where there is no such factor the products are not quite whole: the caller rounds what is needed down, and room up.
    """
    exact = lcm(*(amount.denominator for amount in amounts))
    return min(Fraction(exact), Fraction(_LARGEST_NUMBER // (many + 2)) / max(amounts))


def _full_stage(times: LeastTimes, stage: int, idle: int) -> _FullStage:
    """Return W and memory of a full stage.

    Args:
        times: Least times of the instance.
        stage: The stage.
        idle: Least time from the end of its last F to the end of all, that microbatch's B on the stage left out.
    """
    instance, both = times.instance, times.instance.virtual_stages_of(stage)
    each = min(least_left(instance, v) for v in both)
    weight = min(times.weight(v) for v in both)
    # More than B gives back is not counted: no B may leave less room than there was. W of no time need not wait.
    waiting = min(each, *(held_for_weight(instance, v) for v in both)) if weight else Fraction(0)
    room = max(room_beside_forward(instance, v) for v in both)
    many = 2 * instance.microbatches
    unit = _unit((each, waiting, room), many)
    gradient = max(times.gradient(v) for v in both)
    live = most_work(room, [Waiting(each, gradient + weight, many), Waiting(waiting, weight, many)])
    return _FullStage(
        each=floor(each * unit),
        waiting=floor(waiting * unit),
        room=ceil(room * unit),
        most=min(many, 1 + int(room / each)),
        weight=weight,
        after_weight=-NEVER if instance.objective is Objective.MAX_STAGE_SPAN else optimizer_tail(instance, stage),
        after_forward=idle - weight - live,
    )
