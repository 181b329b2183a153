"""Task tables for sail-sg's zero-bubble Megatron (commit 39f2c186), as JSON.

Each entry of ``rows`` holds the fields of that project's ``ScheduledNode``; its stage is ours, and its
``layer_group_idx`` is our virtual stage. Start and completion times are given, since its own timing takes a BW as long
as a B. The function that makes the nodes is in docs/jaxpp-and-sail.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from zbopt.formats.order import Cell, Order, order_of, require_kept, require_one_route
from zbopt.formats.table import TaskTable, is_index
from zbopt.problem.instance import Instance, Kind, placement_of
from zbopt.problem.schedule import Event, Schedule

SCHEMA = "zbopt.sail-zb/1"
_KIND_OF = {kind.value: kind for kind in (Kind.F, Kind.B, Kind.W, Kind.BW)}


def to_sail_zb(schedule: Schedule) -> str:
    """Return the nodes of a valid schedule, a row for each stage.

    Raises:
        ValueError: The runtime would not run it: a placement that is not linear, interleaved or v (it sends to
            neighbours only); B or W in another order than F on a virtual stage (it takes the oldest, whatever the node
            says); a microbatch with both whole and split backwards; a first virtual stage without B.
    """
    instance = schedule.instance
    require_one_route(instance, "the sail-zb runtime")
    require_kept(schedule, "the sail-zb runtime")
    chunks = _chunks(instance)
    rows = [[e for e in row if e.kind is not Kind.O and not e.iteration] for row in schedule.by_stage()]
    _check_queues(rows)
    _check_backwards(rows, instance)
    head = {
        "schema": SCHEMA,
        "n_stages": instance.stages,
        "n_micro": instance.microbatches,
        "max_chunks": chunks,
        "cost_comm": instance.comm_ticks,
    }
    lines = "".join(f'  "{name}": {json.dumps(value)},\n' for name, value in head.items())
    body = ",\n".join("    [" + ",\n     ".join(json.dumps(_node(e, instance)) for e in row) + "]" for row in rows)
    return f'{{\n{lines}  "rows": [\n{body}\n  ]\n}}\n'


def _chunks(instance: Instance) -> int:
    """Return the virtual stages of a stage; refuse a placement that the runtime does not have."""
    chunks, rest = divmod(instance.virtual_stages, instance.stages)
    named = [("interleaved", chunks)] if not rest else []
    named += [("v", 2)] if chunks == 2 and not rest else []
    if not any(instance.stage_of == placement_of(name, instance.stages, virtual) for name, virtual in named):
        far = next(
            (v for v in range(1, instance.virtual_stages) if _apart(instance, v) not in (1, instance.stages - 1)), 0
        )
        where = f" (virtual stage {far} is {_apart(instance, far)} stages from the one before)" if far else ""
        raise ValueError(
            f"stage_of: the sail-zb runtime sends to neighbours only{where}, in a linear, interleaved or v placement; "
            "take one of these"
        )
    return chunks


def _apart(instance: Instance, virtual_stage: int) -> int:
    return abs(instance.stage_of[virtual_stage] - instance.stage_of[virtual_stage - 1])


def _check_queues(rows: list[list[Event]]) -> None:
    """Refuse an order in which B does not take the oldest F of its virtual stage, or W the oldest B."""
    for row in rows:
        waiting: dict[tuple[str, int | None], list[Event]] = {}
        for e in row:
            if e.kind is Kind.F or e.kind is Kind.B:
                waiting.setdefault((e.kind.value, e.virtual_stage), []).append(e)
            taken = {Kind.B: "F", Kind.BW: "F", Kind.W: "B"}.get(e.kind)
            queue = waiting.get((taken, e.virtual_stage), []) if taken else []
            if queue and queue.pop(0).microbatch != e.microbatch:
                raise ValueError(
                    f"{e.id}: the sail-zb runtime runs B and W of a virtual stage in the order of its F, and this is "
                    "not the oldest; take a schedule in microbatch order"
                )


def _check_backwards(rows: list[list[Event]], instance: Instance) -> None:
    if instance.has_lone_w(0):
        raise ValueError(
            "backward_ticks[0] is null: the sail-zb runtime runs a B on the first virtual stage too; give it a time"
        )
    kinds: dict[int | None, Event] = {}
    for e in (e for row in rows for e in row if e.kind in (Kind.B, Kind.BW)):
        other = kinds.setdefault(e.microbatch, e)
        if other.kind is not e.kind:
            raise ValueError(
                f"{e.id}: the sail-zb runtime splits the backward of a microbatch everywhere or nowhere, and "
                f"{other.id} is otherwise; leave fused_backward_ticks or weight_ticks out of the instance"
            )


def _node(e: Event, instance: Instance) -> dict[str, object]:
    assert e.virtual_stage is not None, "only O has no virtual stage"
    return {
        "type": e.kind.value,
        "stage": e.stage,
        "microbatch": e.microbatch,
        "chunk": e.virtual_stage // instance.stages,
        "layer_group_idx": e.virtual_stage,
        "start_time": e.start,
        "completion_time": e.end,
    }


def from_sail_zb(document: object, instance: Instance | None = None) -> Order:
    """Return the order of the nodes, after checking it; their times are ignored.

    Args:
        document: The parsed file.
        instance: What the order has to fit; ``None``: placement and microbatches are what the nodes use.

    Raises:
        ValueError: One line that names the field, or the row and the node.
    """
    table = TaskTable(document, SCHEMA, "sail-zb", rows="rows", of="nodes")
    order = order_of([list(_cells(r, row)) for r, row in enumerate(table.rows)], instance)
    stages = len(table.rows)
    table.agree(n_stages=stages, n_micro=order.microbatches, max_chunks=len(order.stage_of) // stages)
    return order


def _cells(row: int, nodes: list[object]) -> Iterator[Cell]:
    for number, node in enumerate(nodes):
        where = f"row {row}, node {number}"
        if not isinstance(node, dict) or node.get("type") not in list(_KIND_OF):
            raise ValueError(f"{where}: its type is none of {', '.join(_KIND_OF)}; give a compute node")
        for name in ("stage", "microbatch", "layer_group_idx"):
            if not is_index(node.get(name)):
                raise ValueError(f"{where}: {name} is no number from 0; give it")
        if node["stage"] != row:
            raise ValueError(f"{where}: stage {node['stage']} stands in row {row}; move it there")
        kind, v, j = _KIND_OF[node["type"]], node["layer_group_idx"], node["microbatch"]
        yield Cell((kind, v, j), f"{where} ({kind.value} of microbatch {j} on virtual stage {v})")
