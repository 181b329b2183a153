"""Task tables for JaxPP (jaxpp.schedules, commit cf9e386), as JSON.

``tasks`` holds a list a device of [task type, stage, microbatch], in JaxPP's words: its stage is our virtual stage, its
BWD_I our B, its BWD our BW. The class that feeds the table to JaxPP is in docs/jaxpp-and-sail.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

from zbopt.formats.order import Cell, Order, OrderedOp, order_of, order_of_schedule
from zbopt.formats.table import TaskTable, is_index
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule

SCHEMA = "zbopt.jaxpp/1"
_TYPE_OF = {Kind.F: "FWD", Kind.B: "BWD_I", Kind.W: "BWD_W", Kind.BW: "BWD"}
_KIND_OF = {name: kind for kind, name in _TYPE_OF.items()}


def to_jaxpp(schedule: Schedule) -> str:
    """Return the task table of a valid schedule.

    Where any backward is split, JaxPP wants all in two tasks: BW becomes BWD_I and BWD_W, one after the other.

    Raises:
        ValueError: A B of the first virtual stage is not followed by its own W at once. JaxPP computes the two together
            there, and raises NotImplementedError otherwise.
    """
    order = order_of_schedule(schedule)
    partial = any(kind in (Kind.B, Kind.W) for ops in order.rows for kind, _, _ in ops)
    orders = [list(_in_two(ops) if partial else ops) for ops in order.rows]
    _check_first_stage(orders)
    document = {
        "schema": SCHEMA,
        "num_stages": len(order.stage_of),
        "num_mubatches": order.microbatches,
        "is_partial_bwd": partial,
        "mpmd_idx": order.stage_of,
    }
    head = "".join(f'  "{name}": {json.dumps(value)},\n' for name, value in document.items())
    body = ",\n".join(f"    {json.dumps([[_TYPE_OF[kind], v, j] for kind, v, j in ops])}" for ops in orders)
    return f'{{\n{head}  "tasks": [\n{body}\n  ]\n}}\n'


def _in_two(ops: Sequence[OrderedOp]) -> Iterator[OrderedOp]:
    """Yield the ops with every backward as B and W; where the first virtual stage has no B, one is put before its W."""
    split = {(v, j) for kind, v, j in ops if kind is Kind.B}
    for kind, v, j in ops:
        if kind is Kind.BW or (kind is Kind.W and (v, j) not in split):
            yield from ((Kind.B, v, j), (Kind.W, v, j))
        else:
            yield (kind, v, j)


def _check_first_stage(orders: Sequence[Sequence[OrderedOp]]) -> None:
    for stage, ops in enumerate(orders):
        for step, after in pairwise((*ops, None)):
            if step is not None and step[:2] == (Kind.B, 0) and after != (Kind.W, 0, step[2]):
                j = step[2]
                raise ValueError(
                    f"it0/s{stage}/v0/mb{j}/B: JaxPP computes B and W of the first virtual stage together, and here "
                    "its W does not follow at once; give virtual stage 0 no B in the instance (backward_ticks[0] null, "
                    "its time in weight_ticks), and solve again"
                )


def from_jaxpp(document: object, instance: Instance | None = None) -> Order:
    """Return the order in a task table, after checking it.

    Args:
        document: The parsed file.
        instance: What the order has to fit; ``None``: placement and microbatches are what the table uses.

    Raises:
        ValueError: One line that names the field, or the row and the task.
    """
    table = TaskTable(document, SCHEMA, "JaxPP", rows="tasks", of="tasks")
    cells = [[_cell(r, i, task) for i, task in enumerate(row)] for r, row in enumerate(table.rows)]
    order = order_of(cells, instance)
    table.agree(num_stages=len(order.stage_of), num_mubatches=order.microbatches, mpmd_idx=list(order.stage_of))
    return order


def _cell(row: int, number: int, task: object) -> Cell:
    where = f"row {row}, task {number} ({json.dumps(task)[:60]})"
    if not (isinstance(task, list) and len(task) == 3 and isinstance(task[0], str) and task[0] in _KIND_OF):
        raise ValueError(f'{where} is no task; write such as ["BWD_I", 2, 0], of {", ".join(_KIND_OF)}')
    if not all(map(is_index, task[1:])):
        raise ValueError(f"{where}: stage and microbatch are numbers from 0; correct it")
    return Cell((_KIND_OF[task[0]], task[1], task[2]), where)
