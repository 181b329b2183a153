"""The order in which a best step runs F and B on the stages below the one whose memory limits."""

from __future__ import annotations

from zbopt.bounds.crossings.front import Front
from zbopt.bounds.crossings.moves import State
from zbopt.problem.instance import Kind

StageOrder = list[tuple[Kind, int]]
"""(kind, microbatch) in order."""


def orders(front: Front, microbatches: int) -> dict[int, StageOrder]:
    """By stage, the F and B of a best step of so many microbatches; nothing of the first kept stage."""
    stages = len(front.pipe.forward)
    rows: list[StageOrder] = [[] for _ in range(stages)]
    place: dict[int, int] = {}
    for microbatch, (raw, settled) in enumerate(front.path(microbatches)):
        _rise(rows, place, raw, microbatch)
        for row in rows:
            row.append((Kind.F, microbatch))
        place[microbatch] = stages - 1
        _rise(rows, place, settled, microbatch)
    for microbatch, stage in place.items():
        for s in range(stage, 0, -1):
            rows[s].append((Kind.B, microbatch))
    return {front.pipe.first + s: row for s, row in enumerate(rows) if s}


def _rise(rows: list[StageOrder], place: dict[int, int], state: State, last: int) -> None:
    """Put in the B that run between ``place`` and ``state``, whose last rising microbatch is ``last``."""
    first = last + 1 - len(state.rising)
    for microbatch, stage in list(place.items()):
        reached = state.rising[microbatch - first].stage if microbatch >= first else 0
        for s in range(stage, reached, -1):
            rows[s].append((Kind.B, microbatch))
        place[microbatch] = reached
        if microbatch < first:
            del place[microbatch]
