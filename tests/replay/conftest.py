"""Schedules for the replay tests, by hand order; their times follow from ``timing.earliest_starts``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zbopt.graph import Key, expand
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Provenance, Schedule
from zbopt.timing import earliest_starts, schedule_of

Order = list[list[tuple[Kind, int, int]]]


def timed(instance: Instance, order: Order) -> Schedule:
    """Return the schedule of (kind, virtual stage, microbatch) by stage, at earliest starts; O after all else."""
    graph = expand(instance)
    rows = [[graph.index[Key(*op)] for op in row] for row in order]
    if instance.optimizer_ticks is not None:
        for stage, row in enumerate(rows):
            row.append(graph.index[Key(Kind.O, stage, None)])
    return schedule_of(graph, earliest_starts(graph, rows), Provenance(source="hand"))


def zb_h1(stages: int = 4, microbatches: int = 8, **fields: object) -> Schedule:
    """Return ZB-H1: 1F1B's forwards, with the backward split and W late by the stage's number."""
    order: Order = []
    for s in range(stages):
        warm = min(stages - s, microbatches)
        row = [(Kind.F, s, j) for j in range(warm)]
        forwards, weights = warm, 0
        for j in range(microbatches):
            row.append((Kind.B, s, j))
            if j + 1 - weights > s:
                row.append((Kind.W, s, weights))
                weights += 1
            if forwards < microbatches:
                row.append((Kind.F, s, forwards))
                forwards += 1
        row += [(Kind.W, s, j) for j in range(weights, microbatches)]
        order.append(row)
    return timed(Instance.uniform(stages=stages, microbatches=microbatches, **fields), order)  # type: ignore[arg-type]


def one_f_one_b(stages: int = 4, microbatches: int = 8, **fields: object) -> Schedule:
    """Return 1F1B with whole backwards."""
    order: Order = []
    for s in range(stages):
        warm = min(stages - s, microbatches)
        row = [(Kind.F, s, j) for j in range(warm)]
        for j in range(microbatches):
            row.append((Kind.BW, s, j))
            if warm + j < microbatches:
                row.append((Kind.F, s, warm + j))
        order.append(row)
    times = {"backward_ticks": None, "weight_ticks": None, "fused_backward_ticks": 2} | fields
    return timed(Instance.uniform(stages=stages, microbatches=microbatches, **times), order)  # type: ignore[arg-type]


def all_forward(stage_of: tuple[int, ...], microbatches: int = 4, weights: list[int] | None = None) -> Schedule:
    """Return every F, then every B, then every W, on any placement. ``weights`` orders the microbatches of W."""
    stages, last = max(stage_of) + 1, len(stage_of) - 1
    order: Order = [[] for _ in range(stages)]
    micros = range(microbatches)
    for v, s in enumerate(stage_of):
        order[s] += [(Kind.F, v, j) for j in micros]
    for v in range(last, -1, -1):
        order[stage_of[v]] += [(Kind.B, v, j) for j in micros]
    for v, s in enumerate(stage_of):
        order[s] += [(Kind.W, v, j) for j in weights or micros]
    instance = Instance(
        stages=stages, microbatches=microbatches, stage_of=stage_of, forward_ticks=1, backward_ticks=1, weight_ticks=1
    )  # type: ignore[call-arg, arg-type]
    return timed(instance, order)


def greedy(instance: Instance) -> Schedule:
    """Return a list schedule on any placement: the op that can start soonest, B before F before W, in microbatch order.

    Forwards stay within one microbatch a virtual stage below 2 p in flight; every backward is split.
    """
    rank = {Kind.B: 0, Kind.F: 1, Kind.W: 2}
    n, last = instance.virtual_stages, instance.virtual_stages - 1
    end: dict[tuple[Kind, int, int], int] = {}
    free = [0] * instance.stages
    order: Order = [[] for _ in range(instance.stages)]
    todo = {(kind, v, j) for kind in rank for v in range(n) for j in range(instance.microbatches)}

    def ticks(op: tuple[Kind, int, int]) -> int:
        times = {Kind.F: instance.forward_ticks, Kind.B: instance.backward_ticks, Kind.W: instance.weight_ticks}
        return (times[op[0]] or ())[op[1]] or 0

    def ready(op: tuple[Kind, int, int]) -> int | None:
        kind, v, j = op
        before = [(kind, v, j - 1)] if j else []
        if kind is Kind.F:
            before += [(Kind.F, v - 1, j)] if v else []
            before += [(Kind.W, v, j - 2 * instance.stages)] if j >= 2 * instance.stages else []
        elif kind is Kind.B:
            before += [(Kind.B, v + 1, j)] if v < last else [(Kind.F, v, j)]
        else:
            before += [(Kind.B, v, j)]
        return max((end[op] for op in before), default=0) if all(op in end for op in before) else None

    while todo:
        at = {op: max(time, free[instance.stage_of[op[1]]]) for op in todo if (time := ready(op)) is not None}
        op = min(at, key=lambda op: (at[op], rank[op[0]], op[2], op[1]))
        end[op] = free[instance.stage_of[op[1]]] = at[op] + ticks(op)
        order[instance.stage_of[op[1]]].append(op)
        todo.remove(op)
    return timed(instance, order)


@pytest.fixture(scope="session")
def plans() -> SimpleNamespace:
    """Return the builders above. Tests in this folder cannot import them."""
    return SimpleNamespace(timed=timed, zb_h1=zb_h1, one_f_one_b=one_f_one_b, all_forward=all_forward, greedy=greedy)
