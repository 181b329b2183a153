"""States of a step of which a few stages are kept, and what follows them: compiled code.

A state is a row of whole numbers: what ``TIME`` to ``NEXT`` name; then, for each microbatch that can be under way, the
place of its next op (-1: there is none), the earliest first; when that op can start at the earliest; when each kept
stage is free; and how much W is owed there at that time. All compiled functions are in this file, for what is compiled
is kept on disk, and made anew when this file changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from numba import njit

from zbopt.bounds.valley.kept import NEVER, Integers

STAGE, FORWARD, TICKS, ONWARD, FROM_FIRST, REST = range(6)
FULL, EACH, WAITING, ROOM, MOST, WEIGHT, LONGEST_FORWARD, LONGEST_GRADIENT, AFTER_WEIGHT, AFTER_FORWARD = range(6, 16)
SIZES, PLACES_OF, BOTH = 16, 17, 21
"""Rows of the table that stands for ``Kept``: by place; by stage; sizes; four places by stage; by stage and place."""
MICROBATCHES, SLOTS, STAGES, OPS, READY, BUSY, OWED = range(7)
"""Sizes: microbatches, how many can be under way, stages, ops of a microbatch; and where parts of a state begin."""
HELD, WORK_LEFT, FORWARDS_LEFT = range(3)
"""Three rows for each stage, by place."""

TIME, ENDED, BEGUN, LEAST, SUM, KEY, NEXT, PLACES = range(8)
"""Latest start; least end of all as the last microbatch tells it, 0 while it is under way; microbatches begun; no step
that goes on from here ends earlier; sum of the times; a number for the ops begun; the next state of its bucket, or
``LAST``, or ``LEFT_OUT`` of one for which another stands in; where the places begin."""
LAST, LEFT_OUT = -1, -2

_compiled = njit(nogil=True)


@_compiled
def extend(
    kept: Integers, layer: Integers, horizon: int, found: Integers, heads: Integers, count: int
) -> tuple[int, int]:
    """Add what follows the states of ``layer`` to the ``count`` states found, while there is room.

    ``heads`` has the first state of each bucket. Returns how many states of the layer were gone through, and how many
    were found.
    """
    slots, number = kept[SIZES, SLOTS], 0
    state, starts = np.empty(layer.shape[1], dtype=layer.dtype), np.empty(slots + 1, dtype=np.int64)
    held, gradients = np.empty(kept[SIZES, STAGES], dtype=np.int64), np.empty(2 * slots, dtype=np.int64)
    while number < len(layer) and count + slots < len(found):
        _hold(kept, layer[number], held)
        before = _starts(kept, layer[number], held, starts)
        for slot in range(slots + 1):
            if starts[slot] >= before:
                continue
            for column in range(len(state)):
                state[column] = layer[number, column]
            _begin(kept, state, slot, starts[slot])
            _tighten(kept, state, held, gradients)
            if state[LEAST] < horizon:
                count += _enter(kept, found, heads, count, state)
        number += 1
    return number, count


@_compiled
def _hold(kept: Integers, state: Integers, held: Integers) -> None:
    """Count the activations that each full stage holds until the end of their B."""
    held[:] = 0
    for slot in range(kept[SIZES, SLOTS]):
        place = state[PLACES + slot]
        if place < 0:
            break
        for stage in range(kept[SIZES, STAGES]):
            held[stage] += kept[BOTH + 3 * stage + HELD, place]


@_compiled
def _starts(kept: Integers, state: Integers, held: Integers, starts: Integers) -> int:
    """Earliest start of the next op of each microbatch, and of a new one; ``NEVER`` where it may not be the next.

    Returns when the first harmless one of these ops could end.
    """
    slots, before, under_way = kept[SIZES, SLOTS], NEVER, 0
    for slot in range(slots + 1):
        starts[slot] = NEVER
        place = -1
        if slot < slots and state[PLACES + slot] >= 0:
            under_way += 1
            if slot == 0 or state[PLACES + slot - 1] > state[PLACES + slot]:
                place = state[PLACES + slot]
        elif slot == slots and _may_begin(kept, state, under_way):
            place = 0
        if place < 0:
            continue
        ready = state[kept[SIZES, READY] + slot] if slot < slots else state[TIME]
        starts[slot] = _start(kept, state, held, place, ready)
        if starts[slot] < NEVER and _is_harmless(kept, state, place, starts[slot]):
            before = min(before, starts[slot] + kept[TICKS, place])
    return before


@_compiled
def _may_begin(kept: Integers, state: Integers, under_way: int) -> bool:
    """Whether there is a new microbatch that can begin, memory aside."""
    return under_way < kept[SIZES, SLOTS] and state[BEGUN] < kept[SIZES, MICROBATCHES]


@_compiled
def _start(kept: Integers, state: Integers, held: Integers, place: int, ready: int) -> int:
    """Earliest start of the op at ``place``; ``NEVER`` where memory has no room for it before a B ends. [C4]"""
    stage = kept[STAGE, place]
    busy = state[kept[SIZES, BUSY] + stage]
    start = max(ready, busy)
    if kept[FORWARD, place] and kept[FULL, stage]:
        room = kept[ROOM, stage] - kept[EACH, stage] * held[stage]
        if room < 0:
            return NEVER
        if kept[WAITING, stage] > 0:
            many = min(room // kept[WAITING, stage], 2 * kept[SIZES, MICROBATCHES])
            start = max(start, busy + state[kept[SIZES, OWED] + stage] - many * kept[WEIGHT, stage])
    return start


@_compiled
def _is_harmless(kept: Integers, state: Integers, place: int, start: int) -> bool:
    """Whether the op at ``place`` leaves no less room to any F than there was, whatever W it puts off."""
    stage = kept[STAGE, place]
    if not kept[FULL, stage] or kept[FORWARD, place]:
        return not kept[FULL, stage]
    owed = state[kept[SIZES, OWED] + stage] - (start - state[kept[SIZES, BUSY] + stage])
    put_off = min(owed, kept[TICKS, place])
    many = 1 if put_off <= 0 else 1 + (put_off + kept[WEIGHT, stage] - 1) // kept[WEIGHT, stage]
    return many * kept[WAITING, stage] <= kept[EACH, stage]


@_compiled
def _begin(kept: Integers, state: Integers, slot: int, start: int) -> None:
    """The next op of the microbatch in ``slot``, or of a new one, starts then."""
    slots, ready = kept[SIZES, SLOTS], kept[SIZES, READY]
    state[TIME] = start
    if slot == slots:
        slot = 0
        while state[PLACES + slot] >= 0:
            slot += 1
        state[PLACES + slot] = 0
        state[BEGUN] += 1
    place = state[PLACES + slot]
    stage = kept[STAGE, place]
    _free_later(kept, state, stage, start)
    state[kept[SIZES, BUSY] + stage] = start + kept[TICKS, place]
    if kept[FULL, stage] and not kept[FORWARD, place]:
        state[kept[SIZES, OWED] + stage] += kept[WEIGHT, stage]
    if place < kept[SIZES, OPS] - 1:
        state[PLACES + slot] = place + 1
        state[ready + slot] = start + kept[ONWARD, place]
        return
    for later in range(1, slots):
        state[PLACES + later - 1] = state[PLACES + later]
        state[ready + later - 1] = state[ready + later]
    state[PLACES + slots - 1], state[ready + slots - 1] = -1, 0
    if state[BEGUN] == kept[SIZES, MICROBATCHES] and state[PLACES] < 0:
        state[ENDED] = start + kept[REST, place]


@_compiled
def _free_later(kept: Integers, state: Integers, stage: int, time: int) -> None:
    """No F or B starts on ``stage`` before ``time``, so that W that are owed are done until then."""
    busy, owed = kept[SIZES, BUSY] + stage, kept[SIZES, OWED] + stage
    if time > state[busy]:
        state[owed] = max(0, state[owed] - (time - state[busy]))
        state[busy] = time


@_compiled
def _tighten(kept: Integers, state: Integers, held: Integers, gradients: Integers) -> None:
    """Put all times of ``state`` off as far as nothing could happen before anyway, and see when it can end."""
    under_way = 0
    while under_way < kept[SIZES, SLOTS] and state[PLACES + under_way] >= 0:
        under_way += 1
    _hold(kept, state, held)
    for _ in range(2):
        _put_off_stages(kept, state, under_way)
        _put_off_ops(kept, state, under_way)
    _go_to_next_start(kept, state, under_way)
    state[LEAST] = max(_least_end(kept, state), _least_end_by_gradients(kept, state, held, gradients))


@_compiled
def _put_off_stages(kept: Integers, state: Integers, under_way: int) -> None:
    """No stage is free before the first op can start there."""
    ready, busy = kept[SIZES, READY], kept[SIZES, BUSY]
    for stage in range(kept[SIZES, STAGES]):
        first = NEVER
        for slot in range(under_way):
            first = min(first, _arrival(kept, state, slot, stage))
        if state[BEGUN] < kept[SIZES, MICROBATCHES]:
            new = state[busy + kept[STAGE, 0]]
            if under_way == kept[SIZES, SLOTS]:
                way = kept[FROM_FIRST, kept[SIZES, OPS] - 1] - kept[FROM_FIRST, state[PLACES]]
                new = max(new, state[ready] + way)
            first = min(first, new + kept[FROM_FIRST, kept[PLACES_OF, stage]])
        if first < NEVER:
            _free_later(kept, state, stage, first)


@_compiled
def _put_off_ops(kept: Integers, state: Integers, under_way: int) -> None:
    """No op starts before its stage is free, nor before the same op of the microbatch before has ended."""
    ready, busy = kept[SIZES, READY], kept[SIZES, BUSY]
    for slot in range(under_way):
        place = state[PLACES + slot]
        stage = kept[STAGE, place]
        start = max(state[ready + slot], state[busy + stage])
        if slot > 0 and state[PLACES + slot - 1] == place:
            start = max(start, state[ready + slot - 1] + kept[TICKS, place])
        state[ready + slot] = start


@_compiled
def _arrival(kept: Integers, state: Integers, slot: int, stage: int) -> int:
    """When the next op of a microbatch on ``stage`` can start at the earliest; ``NEVER`` where there is none."""
    place = state[PLACES + slot]
    for number in range(4):
        if kept[PLACES_OF + number, stage] >= place:
            way = kept[FROM_FIRST, kept[PLACES_OF + number, stage]] - kept[FROM_FIRST, place]
            return state[kept[SIZES, READY] + slot] + way
    return NEVER


@_compiled
def _go_to_next_start(kept: Integers, state: Integers, under_way: int) -> None:
    """Let the latest start be that of the next op: nothing starts before."""
    ready, start = kept[SIZES, READY], NEVER
    for slot in range(under_way):
        if slot == 0 or state[PLACES + slot - 1] > state[PLACES + slot]:
            start = min(start, state[ready + slot])
    if _may_begin(kept, state, under_way):
        start = min(start, state[kept[SIZES, BUSY] + kept[STAGE, 0]])
    if start == NEVER:
        return
    state[TIME] = max(state[TIME], start)
    for slot in range(under_way):
        state[ready + slot] = max(state[ready + slot], state[TIME])
    last = 0 if state[BEGUN] < kept[SIZES, MICROBATCHES] else state[PLACES + under_way - 1]
    for stage in range(kept[SIZES, STAGES]):
        # One with no F or B to come waits for nothing.
        if kept[PLACES_OF + 3, stage] >= last:
            _free_later(kept, state, stage, state[TIME])


@_compiled
def _least_end(kept: Integers, state: Integers) -> int:
    """No step that goes on from a state ends earlier, by the way of each microbatch and by load."""
    least = max(state[ENDED], state[TIME])
    for slot in range(kept[SIZES, SLOTS]):
        if state[PLACES + slot] < 0:
            break
        least = max(least, state[kept[SIZES, READY] + slot] + kept[REST, state[PLACES + slot]])
    for stage in range(kept[SIZES, STAGES]):
        if kept[FULL, stage]:
            work, forwards = _left(kept, state, stage)
            least = max(least, state[kept[SIZES, BUSY] + stage] + work + _after(kept, stage, forwards))
    return least


@_compiled
def _least_end_by_gradients(kept: Integers, state: Integers, held: Integers, gradients: Integers) -> int:
    """The same by when the work left on the last full stage can be done; the others would hardly ever say more."""
    stage = kept[SIZES, STAGES] - 1
    while stage >= 0 and not kept[FULL, stage]:
        stage -= 1
    if stage < 0:
        return 0
    work, forwards = _left(kept, state, stage)
    owed, room, least = state[kept[SIZES, OWED] + stage], kept[MOST, stage] - held[stage], 0
    for earlier in range(_gradients(kept, state, stage, gradients)):
        # Before the next B only those before it, what is owed, and F that memory lets begin.
        begun = min(forwards, room + earlier)
        later = work - owed - begun * kept[LONGEST_FORWARD, stage]
        later -= earlier * (kept[WEIGHT, stage] + kept[LONGEST_GRADIENT, stage])
        least = max(least, gradients[earlier] + later + _after(kept, stage, forwards - begun))
    return least


@_compiled
def _after(kept: Integers, stage: int, forwards: int) -> int:
    """Least time from the end of all work of a full stage to that of all, if so many F are still to come."""
    after = kept[AFTER_WEIGHT, stage]
    return max(after, kept[AFTER_FORWARD, stage]) if forwards > 0 else after


@_compiled
def _left(kept: Integers, state: Integers, stage: int) -> tuple[int, int]:
    """Work and F that are left on a full stage."""
    new = kept[SIZES, MICROBATCHES] - state[BEGUN]
    work, forwards = new * kept[BOTH + 3 * stage + WORK_LEFT, 0] + state[kept[SIZES, OWED] + stage], 2 * new
    for slot in range(kept[SIZES, SLOTS]):
        place = state[PLACES + slot]
        if place < 0:
            break
        work += kept[BOTH + 3 * stage + WORK_LEFT, place]
        forwards += kept[BOTH + 3 * stage + FORWARDS_LEFT, place]
    return work, forwards


@_compiled
def _gradients(kept: Integers, state: Integers, stage: int, found: Integers) -> int:
    """Earliest starts of B to come on a stage, in order, up to the first of a new microbatch; how many there are."""
    busy, most = state[kept[SIZES, BUSY] + stage], NEVER
    if state[BEGUN] < kept[SIZES, MICROBATCHES]:
        most = state[kept[SIZES, BUSY] + kept[STAGE, 0]] + kept[FROM_FIRST, kept[PLACES_OF + 2, stage]]
    count = 0
    for slot in range(kept[SIZES, SLOTS]):
        place = state[PLACES + slot]
        if place < 0:
            break
        for number in range(2, 4):
            gradient = kept[PLACES_OF + number, stage]
            if gradient < place:
                continue
            start = max(busy, state[kept[SIZES, READY] + slot] + kept[FROM_FIRST, gradient] - kept[FROM_FIRST, place])
            if start >= most:
                continue
            at = count
            while at > 0 and found[at - 1] > start:
                found[at] = found[at - 1]
                at -= 1
            found[at] = start
            count += 1
    return count


@_compiled
def _sum_up(kept: Integers, state: Integers) -> None:
    """Set the sum of the times, and a number that is the same where the same ops were begun, and hardly ever else."""
    key, total = np.uint64(14695981039346656037), state[TIME] + state[ENDED]
    for slot in range(kept[SIZES, SLOTS]):
        key = (key ^ np.uint64(state[PLACES + slot] + 1)) * np.uint64(1099511628211)
    for column in range(kept[SIZES, READY], kept[SIZES, OWED]):
        total += state[column]
    state[SUM], state[KEY] = total, np.int64((key ^ (key >> np.uint64(29))) & np.uint64(0x7FFFFFFF))


@_compiled
def _enter(kept: Integers, found: Integers, heads: Integers, count: int, state: Integers) -> int:
    """Add ``state`` as number ``count``, 1, unless one found stands in for it, 0; leave out those it stands in for."""
    _sum_up(kept, state)
    head = state[KEY] & (len(heads) - 1)
    before, here = LAST, heads[head]
    while here != LAST:
        later = found[here, NEXT]
        alike = found[here, KEY] == state[KEY] and _same(kept, found[here], state)
        if alike and found[here, SUM] <= state[SUM] and _no_later(kept, found[here], state):
            return 0
        if not (alike and found[here, SUM] >= state[SUM] and _no_later(kept, state, found[here])):
            before = here
        else:
            found[here, NEXT] = LEFT_OUT
            if before == LAST:
                heads[head] = later
            else:
                found[before, NEXT] = later
        here = later
    for column in range(len(state)):
        found[count, column] = state[column]
    found[count, NEXT], heads[head] = heads[head], count
    return 1


@_compiled
def _same(kept: Integers, state: Integers, other: Integers) -> bool:
    """Whether the same ops were begun, both after equally many."""
    for column in range(PLACES, kept[SIZES, READY]):  # noqa: SIM110 (a generator takes longer to compile)
        if state[column] != other[column]:
            return False
    return True


@_compiled
def _no_later(kept: Integers, state: Integers, other: Integers) -> bool:
    """Whether all times of ``state`` are no later than those of ``other``, and no more W is owed then."""
    if state[TIME] > other[TIME] or state[ENDED] > other[ENDED]:
        return False
    busy, owed = kept[SIZES, BUSY], kept[SIZES, OWED]
    for column in range(kept[SIZES, READY], owed):
        if state[column] > other[column]:
            return False
    for stage in range(kept[SIZES, STAGES]):
        done = other[busy + stage] - state[busy + stage]
        if state[owed + stage] - done > other[owed + stage]:
            return False
    return True


def extend_from_disk() -> Callable[..., tuple[int, int]]:
    """``extend`` as it was compiled before, where there is a place to keep it."""
    try:
        return cast(Callable[..., tuple[int, int]], njit(cache=True, nogil=True)(extend.py_func))
    except RuntimeError:  # numba finds no folder that it may write
        return extend
