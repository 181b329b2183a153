"""What a state leaves to do at least, and states that others stand in for."""

from __future__ import annotations

import numpy as np

from zbopt.bounds.valley.kept import Full, Integers, Kept
from zbopt.bounds.valley.layers import NEVER, Layer

_MOST_KEY = 2**62
"""Numbers for keys; where more are needed, those that occur are numbered anew."""


def least_ends(kept: Kept, layer: Layer) -> Integers:
    """No step that goes on from a state ends earlier, by state."""
    rest = np.append(kept.rest, -NEVER)
    ends: Integers = np.maximum(layer.ended, (layer.time[:, None] + layer.ready + rest[layer.place]).max(axis=1))
    for number, full in enumerate(kept.full):
        ends = np.maximum(ends, _least_end(kept, full, number, layer))
    return ends


def _least_end(kept: Kept, full: Full, number: int, layer: Layer) -> Integers:
    """Least end by the work that is left on a full stage, and by when it can be done."""
    rows, busy, waiting = layer.place + 1, layer.busy[:, full.stage], layer.waiting[:, number]
    new = kept.microbatches - layer.begun
    work = new * full.work + full.work_left[rows].sum(axis=1)
    work += (-waiting if kept.backward else waiting) * full.weight
    forwards = 2 * new + full.forwards_left[rows].sum(axis=1)
    after = np.where(forwards > 0, max(full.after_forward, full.after_weight), full.after_weight)
    ends: Integers = layer.time + busy + work
    if kept.backward:
        return ends
    # Before the k-th gradient that is still to come only k - 1 others, what waits, and F that memory lets begin.
    gradients = _gradients(kept, full, layer)
    earlier = np.arange(gradients.shape[1])
    begun = np.minimum(forwards[:, None], (full.most - full.held[rows].sum(axis=1))[:, None] + earlier)
    done = (waiting[:, None] + earlier) * full.weight + earlier * full.gradient + begun * full.forward
    tails = np.where(begun < forwards[:, None], after[:, None], full.after_weight)
    later = np.where(gradients < NEVER, gradients + work[:, None] - done + tails, 0)
    ends += np.maximum(after, layer.time + later.max(axis=1) - ends)
    return ends


def _gradients(kept: Kept, full: Full, layer: Layer) -> Integers:
    """Earliest starts of gradient ops to come on a full stage in order, up to the first of a new microbatch."""
    way, none = kept.from_first, layer.place < 0
    arrivals = [
        np.where(none | (layer.place > place), NEVER, layer.ready + way[place] - way[layer.place])
        for place in full.gradients
    ]
    found = np.sort(np.concatenate(arrivals, axis=1), axis=1)
    found = np.maximum(found, layer.busy[:, [full.stage]])
    new = layer.busy[:, kept.stage[0]] + way[min(full.gradients)]
    new = np.where(layer.begun < kept.microbatches, new, NEVER)
    return np.where(found < new[:, None], found, NEVER)


def undominated(layer: Layer) -> Layer:
    """The states for which no other, with the same ops begun, has all its times no later; of equal ones the first."""
    time = layer.time[:, None]
    times = np.concatenate([time + layer.ready, time + layer.busy, time, layer.ended[:, None]], axis=1)
    key = _key(layer)
    # What stands in for a state comes before it in this order.
    order = np.lexsort((times.sum(axis=1), layer.time, key))
    key, times = key[order], times[order]
    rank = np.arange(len(key))
    rank -= np.maximum.accumulate(np.where(np.append(True, key[1:] != key[:-1]), rank, 0))
    stays = np.ones(len(key), dtype=bool)
    rows, before = np.nonzero(rank)[0], 1
    while len(rows):
        worse = (times[rows - before] <= times[rows]).all(axis=1)
        stays[rows[worse]] = False
        before += 1
        rows = rows[~worse & (rank[rows] >= before)]
    return layer.take(order[stays])


def _key(layer: Layer) -> Integers:
    """A number for each set of ops begun: equal where ``place`` and ``waiting`` are."""
    key, most = np.zeros(layer.count, dtype=np.int64), 1
    for column in np.concatenate([layer.place + 1, layer.waiting], axis=1).T:
        values = int(column.max()) + 1
        if most * values > _MOST_KEY:
            distinct, key = np.unique(key, return_inverse=True)
            most = len(distinct)
        key, most = key * values + column, most * values
    return key
