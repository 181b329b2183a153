"""Instances of unequal times, for tests only."""

from __future__ import annotations

from zbopt.problem.instance import Instance


def uneven(
    stages: int, microbatches: int, memory_cap: int | None, placement: str = "linear", *, objective: str = "makespan"
) -> Instance:
    """Return F, B, W, comm = 10, 11, 8, 1, with two virtual stages on a stage unless the placement is linear."""
    return Instance.uniform(
        stages=stages,
        microbatches=microbatches,
        forward_ticks=10,
        backward_ticks=11,
        weight_ticks=8,
        comm_ticks=1,
        memory_cap=memory_cap,
        placement=placement,
        virtual=1 if placement == "linear" else 2,
        objective=objective,
    )
