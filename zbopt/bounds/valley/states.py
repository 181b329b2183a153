"""States of a step of which a few stages are kept, and what follows them: compiled code, and the layout of its arrays.

models/bounds.md, "valley", has the rules, their proofs, and a diagram of how a state becomes the next ones.

The problem is one matrix of whole numbers, ``table``, whose rows ``Row`` names; compiled code reads one array several
times as fast as many. A state is one row of another matrix, whose columns ``Column`` names. These enums, with
``first_columns``, are the only definition of both layouts: compiled code and Python code read them. All compiled
functions are in this file, and so are the enums, because what is compiled is kept on disk, and made anew only when
this file changes: a layout elsewhere could change unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, cast

import numpy as np
from numba import njit

from zbopt.bounds.valley.relaxation import NEVER, Integers


class Row(IntEnum):
    """Name the rows of the table; those up to ``AFTER_FORWARD`` hold the field of ``Relaxation`` of the same name."""

    # By place: one column for each op on the way of a microbatch.
    STAGE = 0
    FORWARD = 1
    TICKS = 2
    ONWARD = 3
    FROM_FIRST = 4
    REST = 5
    # By stage: one column for each kept stage.
    FULL = 6
    EACH = 7
    WAITING = 8
    ROOM = 9
    MOST = 10
    WEIGHT = 11
    LONGEST_FORWARD = 12
    LONGEST_GRADIENT = 13
    AFTER_WEIGHT = 14
    AFTER_FORWARD = 15
    # One column for each ``Size``.
    SIZES = 16
    # By stage: places of its two F and its two B, one row each.
    FIRST_F = 17
    SECOND_F = 18
    FIRST_B = 19
    SECOND_B = 20
    # By place, the rows of ``Left`` of the first stage, then those of the second, and so on.
    OF_STAGES = 21


class Left(IntEnum):
    """Name the rows that each stage has from ``Row.OF_STAGES`` on: ``Relaxation`` says what they hold."""

    HELD = 0
    WORK_LEFT = 1
    FORWARDS_LEFT = 2


_ROWS_A_STAGE = len(Left)


class Size(IntEnum):
    """Name the columns of ``Row.SIZES``: how much there is of each, and in which columns of a state parts begin."""

    MICROBATCHES = 0
    SLOTS = 1
    """Microbatches that can be under way."""
    STAGES = 2
    PLACES = 3
    """Ops of a microbatch."""
    READY = 4
    BUSY = 5
    OWED = 6


class Column(IntEnum):
    """Name the columns of a state; from ``AT`` on there are four parts, each of as many columns as its things.

    By slot, the microbatch that is furthest first: the place of its next op (``AT``; -1: the slot is empty), and when
    that op can start at the earliest (``Size.READY``). By stage: when it is free (``Size.BUSY``), and ticks of W that
    are owed at that time (``Size.OWED``).
    """

    LATEST_START = 0
    """The latest start of all ops begun; no other one starts before."""
    LAST_END = 1
    """The least end of all as the last microbatch tells it; 0 while it is under way."""
    BEGUN = 2
    """Microbatches begun."""
    LEAST_END = 3
    """No step that goes on from here ends earlier."""
    TIME_SUM = 4
    """The sum of all times: of two states, only one of no smaller sum can be nowhere earlier."""
    KEY = 5
    """A number that is the same where the same ops were begun, and hardly ever else."""
    NEXT = 6
    """The next state of its bucket, or ``LAST``, or ``LEFT_OUT`` of one for which another stands in."""
    AT = 7


LAST, LEFT_OUT = -1, -2


class FirstColumns(NamedTuple):
    """Hold in which columns the parts of a state begin, and how many columns there are."""

    at: int
    ready: int
    busy: int
    owed: int
    width: int


def first_columns(slots: int, stages: int) -> FirstColumns:
    """Return where the parts of a state begin that has so many slots and stages."""
    ready = Column.AT + slots
    busy = ready + slots
    return FirstColumns(Column.AT.value, ready, busy, busy + stages, busy + 2 * stages)


_compiled = njit(nogil=True)
"""Compiles at the first call, not here. Without the interpreter's lock, so that the search goes on meanwhile."""


@_compiled
def extend(
    table: Integers, layer: Integers, horizon: int, found: Integers, heads: Integers, count: int
) -> tuple[int, int]:
    """Add the states that follow those of ``layer`` to the ``count`` states found, while there is room.

    Args:
        table: The problem.
        layer: States, one a row.
        horizon: States that cannot end before are left out.
        found: Room for states, the first ``count`` of them filled.
        heads: The first state of each bucket of ``found``; their number is a power of 2.
        count: How many states of ``found`` are filled.

    Returns:
        How many states of the layer were gone through, and how many are filled now.
    """
    slots, number = table[Row.SIZES, Size.SLOTS], 0
    # Room for one state and for each step below is taken once: a loop that allocates is several times as slow.
    state, starts = np.empty(layer.shape[1], dtype=layer.dtype), np.empty(slots + 1, dtype=np.int64)
    held, gradients = np.empty(table[Row.SIZES, Size.STAGES], dtype=np.int64), np.empty(2 * slots, dtype=np.int64)
    # Each state has a next one a slot at most, and one more for a new microbatch.
    while number < len(layer) and count + slots < len(found):
        _count_held(table, layer[number], held)
        before = _find_starts(table, layer[number], held, starts)
        for slot in range(slots + 1):
            # "Ops not tried": a harmless op that would end by then can be put before this one.
            if starts[slot] >= before:
                continue
            for column in range(len(state)):
                state[column] = layer[number, column]
            _begin(table, state, slot, starts[slot])
            _tighten(table, state, held, gradients)
            if state[Column.LEAST_END] < horizon:
                count += _enter(table, found, heads, count, state)
        number += 1
    return number, count


@_compiled
def _ready(table: Integers, slot: int) -> int:
    """Return the column of the time when the next op of the microbatch in ``slot`` can start."""
    return table[Row.SIZES, Size.READY] + slot


@_compiled
def _busy(table: Integers, stage: int) -> int:
    """Return the column of the time when ``stage`` is free."""
    return table[Row.SIZES, Size.BUSY] + stage


@_compiled
def _owed(table: Integers, stage: int) -> int:
    """Return the column of the ticks of W that ``stage`` owes when it is free."""
    return table[Row.SIZES, Size.OWED] + stage


@_compiled
def _row_of(stage: int, which: int) -> int:
    """Return the row of the table that holds ``which`` of ``Left`` of a stage."""
    return Row.OF_STAGES + _ROWS_A_STAGE * stage + which


@_compiled
def _comes_first(state: Integers, slot: int) -> bool:
    """Return whether no microbatch before this one has the same next op: microbatches go in order. [D1]"""
    return slot == 0 or state[Column.AT + slot - 1] > state[Column.AT + slot]


@_compiled
def _count_held(table: Integers, state: Integers, held: Integers) -> None:
    """Count in ``held`` the activations that each stage holds until the end of their B."""
    held[:] = 0
    for slot in range(table[Row.SIZES, Size.SLOTS]):
        place = state[Column.AT + slot]
        if place < 0:
            break
        for stage in range(table[Row.SIZES, Size.STAGES]):
            held[stage] += table[_row_of(stage, Left.HELD), place]


@_compiled
def _find_starts(table: Integers, state: Integers, held: Integers, starts: Integers) -> int:
    """Find the earliest start of the next op in each slot, and of a new microbatch; ``NEVER`` where it may not be next.

    Returns:
        When the first harmless one of these ops could end: no op that starts then or later need be tried.
    """
    slots, before, under_way = table[Row.SIZES, Size.SLOTS], NEVER, 0
    for slot in range(slots + 1):
        starts[slot] = NEVER
        place = -1
        if slot < slots and state[Column.AT + slot] >= 0:
            under_way += 1
            if _comes_first(state, slot):
                place = state[Column.AT + slot]
        elif slot == slots and _may_begin(table, state, under_way):
            place = 0
        if place < 0:
            continue
        ready = state[_ready(table, slot)] if slot < slots else state[Column.LATEST_START]
        starts[slot] = _start(table, state, held, place, ready)
        if starts[slot] < NEVER and _is_harmless(table, state, place, starts[slot]):
            before = min(before, starts[slot] + table[Row.TICKS, place])
    return before


@_compiled
def _may_begin(table: Integers, state: Integers, under_way: int) -> bool:
    """Return whether a new microbatch can begin, memory aside."""
    return under_way < table[Row.SIZES, Size.SLOTS] and state[Column.BEGUN] < table[Row.SIZES, Size.MICROBATCHES]


@_compiled
def _start(table: Integers, state: Integers, held: Integers, place: int, ready: int) -> int:
    """Return the earliest start of the op at ``place``; ``NEVER``: memory has no room for it before a B ends. [C4]"""
    stage = table[Row.STAGE, place]
    busy = state[_busy(table, stage)]
    start = max(ready, busy)
    if table[Row.FORWARD, place] and table[Row.FULL, stage]:
        room = table[Row.ROOM, stage] - table[Row.EACH, stage] * held[stage]
        if room < 0:
            return NEVER
        if table[Row.WAITING, stage] > 0:
            # As many may await their W; so W must be done until no more is owed. Twice the microbatches is all of them.
            many = min(room // table[Row.WAITING, stage], 2 * table[Row.SIZES, Size.MICROBATCHES])
            start = max(start, busy + state[_owed(table, stage)] - many * table[Row.WEIGHT, stage])
    return start


@_compiled
def _is_harmless(table: Integers, state: Integers, place: int, start: int) -> bool:
    """Return whether the op at ``place`` leaves no less room to any F than there was, whatever W it puts off."""
    stage = table[Row.STAGE, place]
    if not table[Row.FULL, stage] or table[Row.FORWARD, place]:
        return not table[Row.FULL, stage]
    owed = state[_owed(table, stage)] - (start - state[_busy(table, stage)])
    put_off = min(owed, table[Row.TICKS, place])
    # B gives one activation back, and makes its own W and those put off wait.
    many = 1 if put_off <= 0 else 1 + (put_off + table[Row.WEIGHT, stage] - 1) // table[Row.WEIGHT, stage]
    return many * table[Row.WAITING, stage] <= table[Row.EACH, stage]


@_compiled
def _begin(table: Integers, state: Integers, slot: int, start: int) -> None:
    """Let the next op of the microbatch in ``slot`` start; the slot after the last stands for a new microbatch."""
    slots, ready = table[Row.SIZES, Size.SLOTS], table[Row.SIZES, Size.READY]
    state[Column.LATEST_START] = start
    if slot == slots:
        slot = 0
        while state[Column.AT + slot] >= 0:
            slot += 1
        state[Column.AT + slot] = 0
        state[Column.BEGUN] += 1
    place = state[Column.AT + slot]
    stage = table[Row.STAGE, place]
    _free_later(table, state, stage, start)
    state[_busy(table, stage)] = start + table[Row.TICKS, place]
    if table[Row.FULL, stage] and not table[Row.FORWARD, place]:
        state[_owed(table, stage)] += table[Row.WEIGHT, stage]
    if place < table[Row.SIZES, Size.PLACES] - 1:
        state[Column.AT + slot] = place + 1
        state[ready + slot] = start + table[Row.ONWARD, place]
        return
    # Its last op: the first slot, since microbatches go in order. The others move up.
    for later in range(1, slots):
        state[Column.AT + later - 1] = state[Column.AT + later]
        state[ready + later - 1] = state[ready + later]
    state[Column.AT + slots - 1], state[ready + slots - 1] = -1, 0
    if state[Column.BEGUN] == table[Row.SIZES, Size.MICROBATCHES] and state[Column.AT] < 0:
        state[Column.LAST_END] = start + table[Row.REST, place]


@_compiled
def _free_later(table: Integers, state: Integers, stage: int, time: int) -> None:
    """Let no F or B start on ``stage`` before ``time``, so that it does W that it owes until then."""
    busy, owed = _busy(table, stage), _owed(table, stage)
    if time > state[busy]:
        state[owed] = max(0, state[owed] - (time - state[busy]))
        state[busy] = time


@_compiled
def _tighten(table: Integers, state: Integers, held: Integers, gradients: Integers) -> None:
    """Put all times of ``state`` off to where something can happen at the earliest, and find when it can end."""
    under_way = 0
    while under_way < table[Row.SIZES, Size.SLOTS] and state[Column.AT + under_way] >= 0:
        under_way += 1
    _count_held(table, state, held)
    # Each puts off what the other starts from. Any number of rounds is valid: not measured; chosen.
    for _ in range(2):
        _put_off_stages(table, state, under_way)
        _put_off_ops(table, state, under_way)
    _go_to_next_start(table, state, under_way)
    state[Column.LEAST_END] = max(_least_end(table, state), _least_end_by_gradients(table, state, held, gradients))


@_compiled
def _put_off_stages(table: Integers, state: Integers, under_way: int) -> None:
    """Let no stage be free before the first op can start there."""
    for stage in range(table[Row.SIZES, Size.STAGES]):
        first = NEVER
        for slot in range(under_way):
            first = min(first, _arrival(table, state, slot, stage))
        if state[Column.BEGUN] < table[Row.SIZES, Size.MICROBATCHES]:
            new = state[_busy(table, table[Row.STAGE, 0])]
            if under_way == table[Row.SIZES, Size.SLOTS]:
                # It takes the slot of the first one, whose last op has to start before.
                last = table[Row.SIZES, Size.PLACES] - 1
                until_last = table[Row.FROM_FIRST, last] - table[Row.FROM_FIRST, state[Column.AT]]
                new = max(new, state[_ready(table, 0)] + until_last)
            first = min(first, new + table[Row.FROM_FIRST, table[Row.FIRST_F, stage]])
        if first < NEVER:
            _free_later(table, state, stage, first)


@_compiled
def _put_off_ops(table: Integers, state: Integers, under_way: int) -> None:
    """Let no op start before its stage is free, nor before the same op of the microbatch before has ended."""
    ready, busy = table[Row.SIZES, Size.READY], table[Row.SIZES, Size.BUSY]
    for slot in range(under_way):
        place = state[Column.AT + slot]
        stage = table[Row.STAGE, place]
        start = max(state[ready + slot], state[busy + stage])
        if slot > 0 and state[Column.AT + slot - 1] == place:
            start = max(start, state[ready + slot - 1] + table[Row.TICKS, place])
        state[ready + slot] = start


@_compiled
def _arrival(table: Integers, state: Integers, slot: int, stage: int) -> int:
    """Return the earliest start of the next op on ``stage`` of the microbatch in ``slot``; ``NEVER``: there is none."""
    place = state[Column.AT + slot]
    for number in range(4):
        next_place = table[Row.FIRST_F + number, stage]
        if next_place >= place:
            until_then = table[Row.FROM_FIRST, next_place] - table[Row.FROM_FIRST, place]
            return state[_ready(table, slot)] + until_then
    return NEVER


@_compiled
def _go_to_next_start(table: Integers, state: Integers, under_way: int) -> None:
    """Let the latest start be that of the next op, since nothing starts before it, and put off all times to it."""
    ready, start = table[Row.SIZES, Size.READY], NEVER
    for slot in range(under_way):
        if _comes_first(state, slot):
            start = min(start, state[ready + slot])
    if _may_begin(table, state, under_way):
        start = min(start, state[_busy(table, table[Row.STAGE, 0])])
    if start == NEVER:
        return
    state[Column.LATEST_START] = max(state[Column.LATEST_START], start)
    for slot in range(under_way):
        state[ready + slot] = max(state[ready + slot], state[Column.LATEST_START])
    last = 0 if state[Column.BEGUN] < table[Row.SIZES, Size.MICROBATCHES] else state[Column.AT + under_way - 1]
    for stage in range(table[Row.SIZES, Size.STAGES]):
        # A stage with no F or B to come waits for nothing: a step or a reduction may follow at once.
        if table[Row.SECOND_B, stage] >= last:
            _free_later(table, state, stage, state[Column.LATEST_START])


@_compiled
def _least_end(table: Integers, state: Integers) -> int:
    """Return the least end of all, by what each microbatch has before it, and by the load of each full stage."""
    least = max(state[Column.LAST_END], state[Column.LATEST_START])
    for slot in range(table[Row.SIZES, Size.SLOTS]):
        if state[Column.AT + slot] < 0:
            break
        least = max(least, state[_ready(table, slot)] + table[Row.REST, state[Column.AT + slot]])
    for stage in range(table[Row.SIZES, Size.STAGES]):
        if table[Row.FULL, stage]:
            work, forwards = _work_left(table, state, stage)
            least = max(least, state[_busy(table, stage)] + work + _after(table, stage, forwards))
    return least


@_compiled
def _least_end_by_gradients(table: Integers, state: Integers, held: Integers, gradients: Integers) -> int:
    """Return the least end of all, by when the work left on the last full stage can be done.

    The other full stages would hardly ever say more.
    """
    stage = table[Row.SIZES, Size.STAGES] - 1
    while stage >= 0 and not table[Row.FULL, stage]:
        stage -= 1
    if stage < 0:
        return 0
    work, forwards = _work_left(table, state, stage)
    owed, room, least = state[_owed(table, stage)], table[Row.MOST, stage] - held[stage], 0
    for earlier in range(_gradients(table, state, stage, gradients)):
        # Before the next B only those before it, what is owed, and F that memory lets begin.
        begun = min(forwards, room + earlier)
        later = work - owed - begun * table[Row.LONGEST_FORWARD, stage]
        later -= earlier * (table[Row.WEIGHT, stage] + table[Row.LONGEST_GRADIENT, stage])
        least = max(least, gradients[earlier] + later + _after(table, stage, forwards - begun))
    return least


@_compiled
def _after(table: Integers, stage: int, forwards: int) -> int:
    """Return the least time from the end of a full stage's work to the end of all, if so many F are still to come."""
    after = table[Row.AFTER_WEIGHT, stage]
    return max(after, table[Row.AFTER_FORWARD, stage]) if forwards > 0 else after


@_compiled
def _work_left(table: Integers, state: Integers, stage: int) -> tuple[int, int]:
    """Return the work, and the number of F, that are left on a full stage."""
    new = table[Row.SIZES, Size.MICROBATCHES] - state[Column.BEGUN]
    work, forwards = new * table[_row_of(stage, Left.WORK_LEFT), 0], 2 * new
    work += state[_owed(table, stage)]
    for slot in range(table[Row.SIZES, Size.SLOTS]):
        place = state[Column.AT + slot]
        if place < 0:
            break
        work += table[_row_of(stage, Left.WORK_LEFT), place]
        forwards += table[_row_of(stage, Left.FORWARDS_LEFT), place]
    return work, forwards


@_compiled
def _gradients(table: Integers, state: Integers, stage: int, found: Integers) -> int:
    """Find the earliest starts of B to come on a stage, in order, up to the first one of a new microbatch.

    Returns:
        How many were put into ``found``.
    """
    busy, most = state[_busy(table, stage)], NEVER
    if state[Column.BEGUN] < table[Row.SIZES, Size.MICROBATCHES]:
        begin = state[_busy(table, table[Row.STAGE, 0])]
        most = begin + table[Row.FROM_FIRST, table[Row.FIRST_B, stage]]
    count = 0
    for slot in range(table[Row.SIZES, Size.SLOTS]):
        place = state[Column.AT + slot]
        if place < 0:
            break
        for row in (Row.FIRST_B, Row.SECOND_B):
            gradient = table[row, stage]
            if gradient < place:
                continue
            until_then = table[Row.FROM_FIRST, gradient] - table[Row.FROM_FIRST, place]
            start = max(busy, state[_ready(table, slot)] + until_then)
            if start >= most:
                continue
            # There are few: each is put in its place among those found.
            at = count
            while at > 0 and found[at - 1] > start:
                found[at] = found[at - 1]
                at -= 1
            found[at] = start
            count += 1
    return count


@_compiled
def _sum_up(table: Integers, state: Integers) -> None:
    """Set the sum of the times, and the key of the ops begun: their hash (FNV-1a), in 31 bits that any state holds."""
    key, total = np.uint64(14695981039346656037), state[Column.LATEST_START] + state[Column.LAST_END]
    for slot in range(table[Row.SIZES, Size.SLOTS]):
        key = (key ^ np.uint64(state[Column.AT + slot] + 1)) * np.uint64(1099511628211)
    for column in range(table[Row.SIZES, Size.READY], table[Row.SIZES, Size.OWED]):
        total += state[column]
    state[Column.TIME_SUM], state[Column.KEY] = total, np.int64((key ^ (key >> np.uint64(29))) & np.uint64(0x7FFFFFFF))


@_compiled
def _enter(table: Integers, found: Integers, heads: Integers, count: int, state: Integers) -> int:
    """Add ``state`` as number ``count``, unless one found stands in for it; leave out those for which it stands in.

    Returns:
        1 where it was added, else 0.
    """
    _sum_up(table, state)
    head = state[Column.KEY] & (len(heads) - 1)
    # A bucket is a linked list: its head in ``heads``, each next one in ``Column.NEXT``.
    before, other = LAST, heads[head]
    while other != LAST:
        after = found[other, Column.NEXT]
        if found[other, Column.KEY] == state[Column.KEY] and _same_ops(table, found[other], state):
            if _stands_in(table, found[other], state):
                return 0
            if _stands_in(table, state, found[other]):
                found[other, Column.NEXT] = LEFT_OUT
                if before == LAST:
                    heads[head] = after
                else:
                    found[before, Column.NEXT] = after
                other = after
                continue
        before = other
        other = after
    for column in range(len(state)):
        found[count, column] = state[column]
    found[count, Column.NEXT], heads[head] = heads[head], count
    return 1


@_compiled
def _same_ops(table: Integers, state: Integers, other: Integers) -> bool:
    """Return whether the same ops were begun, both after equally many."""
    for column in range(Column.AT, table[Row.SIZES, Size.READY]):  # noqa: SIM110 (a generator takes longer to compile)
        if state[column] != other[column]:
            return False
    return True


@_compiled
def _stands_in(table: Integers, state: Integers, other: Integers) -> bool:
    """Return whether no time of ``state`` is later than that of ``other``, and no more W is owed then."""
    # The sum tells most pairs apart at once.
    if state[Column.TIME_SUM] > other[Column.TIME_SUM]:
        return False
    if state[Column.LATEST_START] > other[Column.LATEST_START] or state[Column.LAST_END] > other[Column.LAST_END]:
        return False
    busy, owed = table[Row.SIZES, Size.BUSY], table[Row.SIZES, Size.OWED]
    for column in range(table[Row.SIZES, Size.READY], owed):
        if state[column] > other[column]:
            return False
    for stage in range(table[Row.SIZES, Size.STAGES]):
        # Until the other one's stage is free this one does as much W.
        done = other[busy + stage] - state[busy + stage]
        if state[owed + stage] - done > other[owed + stage]:
            return False
    return True


def extend_from_disk() -> Callable[..., tuple[int, int]]:
    """Return ``extend`` as it was compiled before, where there is a place to keep it; else ``extend`` itself."""
    try:
        return cast(Callable[..., tuple[int, int]], njit(cache=True, nogil=True)(extend.py_func))
    except RuntimeError:  # numba finds no folder that it may write
        return extend
