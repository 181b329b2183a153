"""Layers of states of a step of which a few stages are kept, one op after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pickle import UnpicklingError

import numpy as np

from zbopt.bounds.valley.relaxation import Integers, Relaxation
from zbopt.bounds.valley.states import (
    LAST,
    LEFT_OUT,
    Column,
    Left,
    Row,
    Size,
    extend,
    extend_from_disk,
    first_columns,
)

log = logging.getLogger(__name__)

_compiled: Callable[..., tuple[int, int]] | None = None
"""``extend`` as this process calls it; ``None``: nobody has called it yet."""


def table(relaxation: Relaxation) -> Integers:
    """Return ``relaxation`` as the table that compiled code reads: ``states.Row`` says what each row holds."""
    stages, places = len(relaxation.full), len(relaxation.stage)
    columns = first_columns(relaxation.most_under_way, stages)
    sizes = {
        Size.MICROBATCHES: relaxation.microbatches,
        Size.SLOTS: relaxation.most_under_way,
        Size.STAGES: stages,
        Size.PLACES: places,
        Size.READY: columns.ready,
        Size.BUSY: columns.busy,
        Size.OWED: columns.owed,
    }
    found = np.zeros((Row.OF_STAGES + len(Left) * stages, max(places, stages, len(Size))), dtype=np.int64)

    def fill(row: int, values: Integers) -> None:
        found[row, : len(values)] = values

    for row in Row:
        if row < Row.SIZES:
            fill(row, getattr(relaxation, row.name.lower()))
    fill(Row.SIZES, np.array([sizes[size] for size in Size]))
    for row, values in zip((Row.FIRST_F, Row.SECOND_F, Row.FIRST_B, Row.SECOND_B), relaxation.places.T, strict=True):
        fill(row, values)
    by_stage = found[Row.OF_STAGES :].reshape(stages, len(Left), -1)
    for which in Left:
        by_stage[:, which, :places] = getattr(relaxation, which.name.lower())
    return found


def nothing_begun(relaxation: Relaxation, horizon: int) -> Integers:
    """Return the layer before all ops, of one state, in numbers that hold a sum of all its times up to ``horizon``."""
    columns = first_columns(relaxation.most_under_way, len(relaxation.full))
    # What is half as long is looked at in half the time; a sum that wrapped would only leave out too little.
    state = np.zeros((1, columns.width), dtype=np.int32 if columns.width * horizon < 2**30 else np.int64)
    state[0, columns.at : columns.ready] = -1
    state[0, columns.busy + relaxation.stage[0]] = relaxation.head
    return state


def after(table: Integers, layer: Integers, horizon: int) -> Integers:
    """Return the states that follow those of ``layer`` by one op, each as early as stage, input and memory allow.

    An op is not tried if a harmless one could end before it starts. States that cannot end before ``horizon`` are left
    out, and so are those that another one stands in for: the same ops begun, and nothing later.
    """
    found = np.empty((2 * len(layer) + 64, layer.shape[1]), dtype=layer.dtype)
    heads = np.full(1 << (2 * len(layer)).bit_length(), LAST, dtype=np.int64)
    count = 0
    while True:
        done, count = _extend(table, layer, horizon, found, heads, count)
        layer = layer[done:]
        if not len(layer):
            following: Integers = found[:count][found[:count, Column.NEXT] != LEFT_OUT]
            return following
        found = np.concatenate((found, np.empty_like(found)))


def least_end(layer: Integers) -> int:
    """Return the least end that a state of ``layer`` leads to."""
    return int(layer[:, Column.LEAST_END].min())


def _extend(
    table: Integers, layer: Integers, horizon: int, found: Integers, heads: Integers, count: int
) -> tuple[int, int]:
    """Call ``extend``, compiled anew where what is on disk cannot be read, or cannot be written."""
    global _compiled
    if _compiled is None:
        _compiled = extend_from_disk()
    try:
        return _compiled(table, layer, horizon, found, heads, count)
    except (OSError, EOFError, UnpicklingError) as fault:
        log.info("compiled code cannot be kept: %s", fault)
        _compiled = extend
        return _compiled(table, layer, horizon, found, heads, count)
