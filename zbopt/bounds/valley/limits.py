"""What a state leaves to do at least, and states that others stand in for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zbopt.bounds.valley.kept import Full, Integers, Kept
from zbopt.bounds.valley.layers import NEVER, Layer

_MOST_KEY = 2**62
"""Numbers for keys; where more are needed, those that occur are numbered anew."""

_WORD = 8
"""Truth values that are compared as one number."""

_ALL = np.uint64(0x0101010101010101)


def least_ends(kept: Kept, layer: Layer) -> Integers:
    """No step that goes on from a state ends earlier, by state; by the way of each microbatch and by load alone."""
    rest = np.append(kept.rest, -NEVER)
    ends: Integers = np.maximum(layer.ended, layer.time + (layer.ready + rest[layer.place]).max(axis=0))
    for number, full in enumerate(kept.full):
        work, _, after = _left(kept, full, number, layer)
        ends = np.maximum(ends, layer.time + layer.busy[full.stage] + work + (0 if kept.backward else after))
    return ends


def least_ends_by_gradients(kept: Kept, layer: Layer) -> Integers:
    """The same by when the work that is left on the last full stage can be done, going forward.

    The others would be asked in the same way, but hardly ever say more.
    """
    number, full = max(enumerate(kept.full), key=lambda entry: entry[1].stage)
    work, forwards, after = _left(kept, full, number, layer)
    waiting, room = layer.waiting[number] * full.weight, full.most - layer.total(full.held)
    least = np.zeros_like(layer.time)
    # Before the k-th of them only k - 1 others, what waits, and F that memory lets begin.
    for earlier, gradient in enumerate(_gradients(kept, full, layer)):
        begun = np.minimum(forwards, room + earlier)
        later = gradient + work - waiting - begun * full.forward
        later -= earlier * (full.weight + full.gradient)
        later += np.where(begun < forwards, after, full.after_weight)
        np.maximum(least, later, out=least, where=gradient < NEVER)
    return layer.time + least


def _left(kept: Kept, full: Full, number: int, layer: Layer) -> tuple[Integers, Integers, Integers]:
    """Work and F that are left on a full stage, and least time from the end of that work to that of all."""
    new = kept.microbatches - layer.begun
    waiting = layer.waiting[number]
    work = new * full.work + layer.total(full.work_left) + (-waiting if kept.backward else waiting) * full.weight
    forwards = 2 * new + layer.total(full.forwards_left)
    after = np.where(forwards > 0, max(full.after_forward, full.after_weight), full.after_weight)
    return work, forwards, after


def _gradients(kept: Kept, full: Full, layer: Layer) -> Integers:
    """Earliest starts of gradient ops to come on a full stage in order, up to the first of a new microbatch."""
    way, slots = np.append(kept.from_first, 0), len(layer.place)
    from_here, gone = layer.ready - way[layer.place], layer.place < 0
    found = np.empty((2 * slots, layer.count), dtype=np.int64)
    for half, place in zip((found[:slots], found[slots:]), full.gradients, strict=True):
        half[:] = np.where(gone | (layer.place > place), NEVER, from_here + way[place])
    found.sort(axis=0)
    found = np.maximum(found, layer.busy[full.stage])
    new = layer.busy[kept.stage[0]] + way[min(full.gradients)]
    found[found >= np.where(layer.begun < kept.microbatches, new, NEVER)] = NEVER
    some: Integers = found[: int((found < NEVER).any(axis=1).sum())]
    return some


def undominated(layer: Layer) -> Layer:
    """The states for which no other, with the same ops begun, has all its times no later; of equal ones the first."""
    key, most = _key(layer)
    times, total = _times(layer)
    # What stands in for a state comes before it in this order.
    order = _order(key, most, total)
    key, times = key[order], times.take(order, axis=0)
    rank = np.arange(len(key))
    rank -= np.maximum.accumulate(np.where(np.append(True, key[1:] != key[:-1]), rank, 0))
    stays = np.ones(len(key), dtype=bool)
    states, before = np.flatnonzero(rank), 1
    while len(states):
        worse = _no_later(times.take(states - before, axis=0), times.take(states, axis=0))
        stays[states[worse]] = False
        before += 1
        states = states[~worse & (rank[states] >= before)]
    return layer.take(order[stays])


def _times(layer: Layer) -> tuple[Integers | NDArray[np.int32], Integers]:
    """All times of each state, a row each, as whole words of truth values when compared; and their sums.

    An end that is known counts from the earliest latest start, as all do: what ends before that decides nothing.
    """
    slots, stages = len(layer.ready), len(layer.busy)
    time = layer.time - layer.time.min()
    ended = np.maximum(layer.ended - layer.time.min(), 0)
    total = layer.ready.sum(axis=0) + layer.busy.sum(axis=0) + (slots + stages + 1) * time + ended
    small = int(total.max()) < 2**31
    times = np.zeros((layer.count, -(-(slots + stages + 2) // _WORD) * _WORD), dtype=np.int32 if small else np.int64)
    times[:, :slots] = (time + layer.ready).T
    times[:, slots : slots + stages] = (time + layer.busy).T
    times[:, slots + stages] = time
    times[:, slots + stages + 1] = ended
    return times, total


def _no_later(times: Integers | NDArray[np.int32], others: Integers | NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether all of a row are no later than those of the row of ``others``."""
    words = (times <= others).view(np.uint64)
    together = words[:, 0]
    for word in words.T[1:]:
        together = together & word
    alike: NDArray[np.bool_] = together == _ALL
    return alike


def _order(key: Integers, most: int, then: Integers) -> Integers:
    """Order of states by ``key``, less than ``most``, and ``then``."""
    then = then - then.min()
    values = int(then.max()) + 1
    if most * values > _MOST_KEY:
        return np.lexsort((then, key))
    # One number is sorted several times as fast as two.
    return np.argsort(key * values + then)


def _key(layer: Layer) -> tuple[Integers, int]:
    """A number for each set of ops begun, equal where ``place`` and ``waiting`` are, and what all are less than."""
    key, most = np.zeros(layer.count, dtype=np.int64), 1
    for row in (*(layer.place + 1), *layer.waiting):
        values = int(row.max()) + 1
        if most * values > _MOST_KEY:
            distinct, key = np.unique(key, return_inverse=True)
            most = len(distinct)
        key, most = key * values + row, most * values
    return key, most
