"""Layers of states of a step of which a few stages are kept, one op after the other."""

from __future__ import annotations

import logging
from pickle import UnpicklingError

import numpy as np

from zbopt.bounds.valley.kept import Integers, Kept
from zbopt.bounds.valley.states import LAST, LEAST, LEFT_OUT, NEXT, PLACES, extend, extend_from_disk

log = logging.getLogger(__name__)

__all__ = ["LEAST", "after", "nothing_begun", "table"]


def table(kept: Kept) -> Integers:
    """``kept`` as one table: compiled code reads it several times as fast as many."""
    stages, places = len(kept.full), len(kept.stage)
    rows = [kept.stage, kept.forward, kept.ticks, kept.onward, kept.from_first, kept.rest]
    rows += [kept.full, kept.each, kept.waiting, kept.room, kept.most, kept.weight]
    rows += [kept.longest_forward, kept.longest_gradient, kept.after_weight, kept.after_forward]
    slots = kept.most_under_way
    parts = np.cumsum([PLACES + slots, slots, stages])
    rows += [np.array([kept.microbatches, slots, stages, places, *parts]), *kept.places.T]
    for stage in range(stages):
        rows += [kept.held[stage], kept.work_left[stage], kept.forwards_left[stage]]
    found = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found


def nothing_begun(kept: Kept, horizon: int) -> Integers:
    """The layer before all ops, of one state, in numbers that hold a sum of all its times up to ``horizon``."""
    slots, stages = kept.most_under_way, len(kept.full)
    columns = PLACES + 2 * slots + 2 * stages
    # What is half as long is looked at in half the time; a sum that wrapped would only leave out too little.
    state = np.zeros((1, columns), dtype=np.int32 if columns * horizon < 2**30 else np.int64)
    state[0, PLACES : PLACES + slots] = -1
    state[0, PLACES + 2 * slots + kept.stage[0]] = kept.head
    return state


def after(kept: Integers, layer: Integers, horizon: int) -> Integers:
    """The states that follow those of ``layer`` by one op, each as early as its stage, its input and memory allow.

    No op that takes no memory is passed by if it could end before the start of the one that is begun. Left out is what
    cannot end before ``horizon``, and what another state stands in for: the same ops begun, and all no later.
    """
    found = np.empty((2 * len(layer) + 64, layer.shape[1]), dtype=layer.dtype)
    heads = np.full(1 << (2 * len(layer)).bit_length(), LAST, dtype=np.int64)
    count = 0
    while True:
        done, count = _extend(kept, layer, horizon, found, heads, count)
        layer = layer[done:]
        if not len(layer):
            following: Integers = found[:count][found[:count, NEXT] != LEFT_OUT]
            return following
        found = np.concatenate((found, np.empty_like(found)))


_fast = extend_from_disk()


def _extend(
    kept: Integers, layer: Integers, horizon: int, found: Integers, heads: Integers, count: int
) -> tuple[int, int]:
    """``extend``, compiled anew where what is on disk cannot be read, or cannot be written."""
    global _fast
    try:
        return _fast(kept, layer, horizon, found, heads, count)
    except (OSError, EOFError, UnpicklingError) as fault:
        log.info("compiled code cannot be kept: %s", fault)
        _fast = extend
        return _fast(kept, layer, horizon, found, heads, count)
