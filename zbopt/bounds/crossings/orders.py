"""Orders in which a best step of the crossings runs F and B, on the stages below the one whose memory limits."""

from __future__ import annotations

from zbopt.bounds.crossings.front import Front
from zbopt.bounds.crossings.moves import State
from zbopt.problem.instance import Kind

StageOrder = list[tuple[Kind, int]]
"""(kind, microbatch) in order."""


def orders(front: Front, microbatches: int) -> dict[int, StageOrder]:
    """Return the F and B of a best step of so many microbatches, by stage; nothing of the first kept stage."""
    stages = len(front.pipe.forward)
    by_stage: list[StageOrder] = [[] for _ in range(stages)]
    place: dict[int, int] = {}
    for microbatch, (raw, settled) in enumerate(front.path(microbatches)):
        _run_risen(by_stage, place, raw, microbatch)
        for order in by_stage:
            order.append((Kind.F, microbatch))
        place[microbatch] = stages - 1
        _run_risen(by_stage, place, settled, microbatch)
    for microbatch, stage in place.items():
        for s in range(stage, 0, -1):
            by_stage[s].append((Kind.B, microbatch))
    return {front.pipe.first + s: order for s, order in enumerate(by_stage) if s}


def _run_risen(by_stage: list[StageOrder], place: dict[int, int], state: State, last: int) -> None:
    """Put in the B that run between ``place`` and ``state``, whose last rising microbatch is ``last``."""
    first = last + 1 - len(state.rising)
    for microbatch, stage in list(place.items()):
        reached = state.rising[microbatch - first].stage if microbatch >= first else 0
        for s in range(stage, reached, -1):
            by_stage[s].append((Kind.B, microbatch))
        place[microbatch] = reached
        if microbatch < first:
            del place[microbatch]
