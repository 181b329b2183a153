"""The action tables of ``torch.distributed.pipelining``, as text: one row a rank, one cell an action.

PyTorch calls our virtual stage a stage, our B ``I`` and our BW ``B``; the letters here are PyTorch's. The loader in
PyTorch reads a cell's beginning only (``0F0xyz`` passes); this reader takes whole cells or none.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Op(StrEnum):
    """What an action does, in PyTorch's letters."""

    FORWARD = "F"
    INPUT_GRAD = "I"
    WEIGHT_GRAD = "W"
    BACKWARD = "B"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"


COMPUTE = frozenset({Op.FORWARD, Op.INPUT_GRAD, Op.WEIGHT_GRAD, Op.BACKWARD})
WHOLE_STAGE = frozenset({Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD})
"""Actions without a microbatch."""

_CELL = re.compile(r"(\d+)(F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)(\d*)")


@dataclass(frozen=True, slots=True)
class Action:
    """One cell. ``microbatch`` is ``None`` for an action of a whole virtual stage."""

    virtual_stage: int
    op: Op
    microbatch: int | None = None

    def __str__(self) -> str:
        micro = "" if self.microbatch is None else str(self.microbatch)
        return f"{self.virtual_stage}{self.op.value}{micro}"


Rows = tuple[tuple[Action, ...], ...]
"""Actions by rank, in the order in which the rank runs them."""


def parse_action(text: str) -> Action:
    """The action that ``text`` names.

    Raises:
        ValueError: The text is no action, or the microbatch is missing or too many.
    """
    match = _CELL.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no action; write such as 2F0, 1I3, 0SEND_F1 or 0REDUCE_GRAD")
    op = Op(match[2])
    if (op in WHOLE_STAGE) == bool(match[3]):
        need = "no microbatch" if op in WHOLE_STAGE else "a microbatch"
        raise ValueError(f"{text!r}: {op.value} takes {need}")
    return Action(int(match[1]), op, int(match[3]) if match[3] else None)


def write_rows(rows: Sequence[Sequence[Action]], path: Path | str) -> None:
    """Write a ``compute_comms`` table, which PyTorch's loader and ``read_rows`` take."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[str(action) for action in row] for row in rows])


def read_rows(path: Path | str) -> Rows:
    """Read a table of either of PyTorch's formats; empty cells, which mean idle, are dropped.

    Raises:
        ValueError: A cell is no action; names row and column.
    """
    rows = []
    with Path(path).open(newline="", encoding="utf-8") as file:
        for number, cells in enumerate(csv.reader(file)):
            try:
                rows.append(tuple(parse_action(cell) for cell in cells if cell.strip()))
            except ValueError as error:
                raise ValueError(f"{path}: row {number}: {error}") from None
    return tuple(rows)
