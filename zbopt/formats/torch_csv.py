"""Action tables of ``torch.distributed.pipelining``, as text: one row a rank, one cell an action.

PyTorch calls our virtual stage a stage, our B ``I`` and our BW ``B``; the letters here are PyTorch's. The loader in
PyTorch reads a cell's beginning only (``0F0xyz`` passes); this reader takes whole cells or none. Rows and cells count
from 0, as ranks do.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path

from zbopt.formats.order import Cell, Order, order_of
from zbopt.problem.atomic import write_text
from zbopt.problem.instance import Instance, Kind


class Op(StrEnum):
    """Name what an action does, in PyTorch's letters."""

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

_CELL = re.compile(r"([0-9]{1,9})(F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)([0-9]{0,9})")
_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
"""PyTorch's container of a forward and a backward; it runs them one after the other."""
KIND_OF = {Op.FORWARD: Kind.F, Op.INPUT_GRAD: Kind.B, Op.WEIGHT_GRAD: Kind.W, Op.BACKWARD: Kind.BW}
_SENDS = {Op.SEND_F: (1, Op.RECV_F), Op.SEND_B: (-1, Op.RECV_B)}
_RECEIVES = {Op.RECV_F: (-1, Op.SEND_F), Op.RECV_B: (1, Op.SEND_B)}


@dataclass(frozen=True, slots=True)
class Action:
    """Represent one cell. ``microbatch`` is ``None`` for an action of a whole virtual stage."""

    virtual_stage: int
    op: Op
    microbatch: int | None = None

    def __str__(self) -> str:
        micro = "" if self.microbatch is None else str(self.microbatch)
        return f"{self.virtual_stage}{self.op.value}{micro}"

    def as_whole(self) -> Action:
        """Return the action with PyTorch's B for its I: both give the gradient of the input."""
        return replace(self, op=Op.BACKWARD) if self.op is Op.INPUT_GRAD else self


Rows = tuple[tuple[Action, ...], ...]
"""Actions by rank, in the order in which the rank runs them."""


def parse_action(text: str) -> Action:
    """Return the action that ``text`` names.

    Raises:
        ValueError: The text is no action, or the microbatch is missing or too many.
    """
    match = _CELL.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no action; write such as 2F0, 1I3, 0SEND_F1 or 0REDUCE_GRAD")
    op = Op(match[2])
    if (op in WHOLE_STAGE) == bool(match[3]):
        need, such = ("no microbatch", "") if op in WHOLE_STAGE else ("a microbatch", "0")
        raise ValueError(f"{text!r}: {op.value} takes {need}; write such as {match[1]}{op.value}{such}")
    return Action(int(match[1]), op, int(match[3]) if match[3] else None)


def rows_text(rows: Sequence[Sequence[Action]]) -> str:
    """Return a table as text that PyTorch's loader, ``read_rows`` and ``order_from_csv`` read."""
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def compute_only(rows: Rows) -> Rows:
    """Return the table without transfers and parameter handling: the format that torchtitan reads."""
    return tuple(tuple(action for action in row if action.op in COMPUTE) for row in rows)


def write_rows(rows: Sequence[Sequence[Action]], path: Path | str) -> None:
    """Write a ``compute_comms`` table, which PyTorch's loader and ``read_rows`` take."""
    write_text(path, rows_text(rows))


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


@dataclass(frozen=True, slots=True)
class _Placed:
    """Hold an action with its place in the table."""

    action: Action
    where: str


def order_from_csv(text: str, instance: Instance | None = None) -> Order:
    """Return the order of compute ops in a table of either of PyTorch's formats, after checking it.

    Empty cells mean idle, spaces around a cell mean nothing, and an OVERLAP_F_B cell counts as its parts in turn. In a
    table with transfers each has to have its other end, and both ranks of a pair the same sequence of them: on NCCL a
    pair shares one queue.

    Args:
        text: The table.
        instance: What the order has to fit; ``None``: placement and microbatches are what the table uses.

    Raises:
        ValueError: One line that names row and cell.
    """
    rows = [list(_placed(number, cells)) for number, cells in enumerate(_cells(text))]
    order = order_of([list(_computes(row)) for row in rows], instance)
    links = _Links(rows, order.stage_of)
    if links.sequences:
        links.check_pairs()
        links.run()
    return order


def _cells(text: str) -> list[list[str]]:
    try:
        return list(csv.reader(text.splitlines(), strict=True))
    except csv.Error as error:
        raise ValueError(f"not a table of comma-separated cells: {error}; give one row a rank") from None


def _placed(row: int, cells: Sequence[str]) -> Iterator[_Placed]:
    for number, cell in enumerate(cells):
        if not cell.strip():
            continue
        where = f"row {row}, cell {number}"
        overlap = _OVERLAP.fullmatch(cell.strip())
        ops: list[Op] = []
        for part in overlap[1].split(";") if overlap else [cell]:
            try:
                action = parse_action(part)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            yield _Placed(action, f"{where} ({action})")
            ops.append(action.op)
        if overlap and (len(ops) != 2 or ops.count(Op.FORWARD) != 1 or not {Op.BACKWARD, Op.INPUT_GRAD} & set(ops)):
            raise ValueError(f"{where}: OVERLAP_F_B takes a forward and a backward; write such as (0F1;1B0)OVERLAP_F_B")


def _computes(row: Iterable[_Placed]) -> Iterator[Cell]:
    for placed in row:
        action = placed.action
        if action.op in COMPUTE:
            assert action.microbatch is not None, "the grammar gives every compute op a microbatch"
            yield Cell((KIND_OF[action.op], action.virtual_stage, action.microbatch), placed.where)


class _Links:
    """Hold the sends and receives of a table, each with its other end."""

    def __init__(self, rows: Sequence[Sequence[_Placed]], stage_of: tuple[int, ...]) -> None:
        self.rows, self.stage_of = rows, stage_of
        self.all: dict[Action, _Placed] = {}
        self.sequences: dict[tuple[int, int], list[tuple[_Placed, Action]]] = defaultdict(list)
        for rank, row in enumerate(rows):
            for placed in row:
                self._add(rank, placed)

    def _add(self, rank: int, placed: _Placed) -> None:
        action = placed.action
        if action.virtual_stage >= len(self.stage_of):
            limit = f"virtual stages 0 to {len(self.stage_of) - 1} have ops"
            raise ValueError(f"{placed.where}: {limit}; drop it, or add the ops")
        if self.stage_of[action.virtual_stage] != rank:
            stage = self.stage_of[action.virtual_stage]
            raise ValueError(f"{placed.where}: virtual stage {action.virtual_stage} is on row {stage}; move it there")
        if action.op in COMPUTE or action.op in (
            Op.UNSHARD,
            Op.RESHARD,
        ):  # parameters come and go as often as they like
            return
        if self.all.setdefault(action, placed) is not placed:
            raise ValueError(f"{placed.where} is there twice, first as {self.all[action].where}; keep one")
        if action.op is Op.REDUCE_GRAD:
            return
        other = _other_end(action)
        if not 0 <= other.virtual_stage < len(self.stage_of):
            raise ValueError(f"{placed.where}: there is no virtual stage {other.virtual_stage}; drop it")
        peer = self.stage_of[other.virtual_stage]
        if peer == rank:
            raise ValueError(f"{placed.where}: virtual stage {other.virtual_stage} is on the same row; drop it")
        self.sequences[rank, peer].append((placed, other))

    def check_pairs(self) -> None:
        """Refuse a pair of ranks whose two sequences of transfers differ, at the first that does."""
        for low, high in sorted({(min(pair), max(pair)) for pair in self.sequences}):
            ends = zip_longest(self.sequences[low, high], self.sequences[high, low])
            for here, there in ends:
                if here is None or there is None or here[1] != there[0].action:
                    self._refuse([(end, row) for end, row in ((here, high), (there, low)) if end is not None])

    def _refuse(self, ends: Sequence[tuple[tuple[_Placed, Action], int]]) -> None:
        for (placed, other), row in ends:
            if other not in self.all:
                raise ValueError(f"{placed.where} has no other end; add {other} to row {row}, or drop it")
        (first, _), (second, _) = (end for end, _ in ends)
        raise ValueError(
            f"{first.where} stands where {second.where} does on the other rank: the two wait for each other; "
            "give both rows their transfers in the same order"
        )

    def run(self) -> None:
        """Refuse a table with actions that never start, where transfers are posted without waiting, as PyTorch does."""
        done: set[Action] = set()
        heads = [0] * len(self.rows)
        moved = True
        while moved:
            moved = False
            for rank, row in enumerate(self.rows):
                while heads[rank] < len(row) and self._needs(row[heads[rank]].action) <= done:
                    done.add(row[heads[rank]].action.as_whole())
                    heads[rank] += 1
                    moved = True
        stuck = [(rank, row[heads[rank]]) for rank, row in enumerate(self.rows) if heads[rank] < len(row)]
        for rank, placed in sorted(stuck, key=lambda pair: not self._own(pair[0], pair[1], done)):
            missing = min(self._own(rank, placed, done) or map(str, self._needs(placed.action) - done))
            raise ValueError(
                f"{placed.where} can never start: {missing} does not come before it; add it, or change the order"
            )

    def _own(self, rank: int, placed: _Placed, done: set[Action]) -> list[str]:
        """Return the missing actions of a row that its own action waits for: the fault is there, others only wait."""
        missing = self._needs(placed.action) - done
        return [str(action) for action in missing if self.stage_of[action.virtual_stage] == rank]

    def _needs(self, action: Action) -> set[Action]:
        """Return the actions that have to come first: the producer of a sent tensor, or both ends of a transfer."""
        v, micro = action.virtual_stage, action.microbatch
        if action.op in _SENDS:
            return {Action(v, Op.FORWARD if action.op is Op.SEND_F else Op.BACKWARD, micro)}
        receive = {Op.FORWARD: Op.RECV_F, Op.INPUT_GRAD: Op.RECV_B, Op.BACKWARD: Op.RECV_B}.get(action.op)
        if receive is None:
            return set()
        sender = v + _RECEIVES[receive][0]
        if not 0 <= sender < len(self.stage_of) or self.stage_of[sender] == self.stage_of[v]:
            return set()
        return {Action(v, receive, micro), _other_end(Action(v, receive, micro))}


def _other_end(action: Action) -> Action:
    step, op = _SENDS[action.op] if action.op in _SENDS else _RECEIVES[action.op]
    return Action(action.virtual_stage + step, op, action.microbatch)
