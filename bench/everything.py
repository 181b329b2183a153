"""Steps with every field that takes time or memory switched on, under ever tighter caps.

python bench/everything.py --time-limit 60
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from zbopt import Instance, solve

FIELDS: dict[str, Any] = {
    "comm_ticks": 1,
    "communication": "link",
    "transfer_occupies": "port",
    "boundary": "1/2",
    "bandwidth": "1/2",
    "loss_ticks": 1,
    "reduction_ticks": 2,
    "reduction_occupies": "port",
    "barrier": "global",
    "barrier_ticks": 1,
    "optimizer_ticks": 2,
    "activation": 4,
    "weight_share": "1/2",
    "gradient_state": 1,
    "receive_buffers": 2,
    "parameters": 3,
    "gradients": 3,
    "optimizer_state": 6,
    "workspace": 1,
    "reserve": 1,
    "recompute": "choose",
    "checkpoint": 1,
    "offload": "choose",
    "offload_ticks": 3,
    "offload_rest": 1,
}
SMALL = ((48, 44, 40, 36), (44, 41, 38, 35), (38, 36, 34, 32), (36, 34, 33, 31), (34, 32, 31, 30), (32, 30, 29, 28))
LARGE = (64, 60, 56, 52, 48, 44, 40, 36)
SCALES = (1.25, 1.0, 0.85, 0.75)


def problem(microbatches: int, caps: tuple[int, ...]) -> Instance:
    """As many stages as ``caps``, two on each link to the host; the first a little faster, the last a little slower."""
    stages = len(caps)
    middle = stages - 2
    times = {
        "forward_ticks": [4, *[5] * middle, 6],
        "backward_ticks": [4, *[5] * middle, 6],
        "weight_ticks": [3, *[4] * middle, 4],
        "fused_backward_ticks": [7, *[9] * middle, 10],
    }
    return Instance.model_validate(
        FIELDS
        | times
        | {
            "stages": stages,
            "microbatches": microbatches,
            "input_ready_ticks": list(range(microbatches)),
            "host_link": [stage // 2 for stage in range(stages)],
            "memory_cap": caps,
        }
    )


def problems() -> Iterator[tuple[str, Instance]]:
    """4 stages with 8 microbatches, 8 stages with 24."""
    for caps in SMALL:
        yield f"4 x 8, caps {', '.join(map(str, caps))}", problem(8, caps)
    for scale in SCALES:
        yield f"8 x 24, caps x {scale}", problem(24, tuple(round(scale * cap) for cap in LARGE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=60.0)
    limit = parser.parse_args().time_limit
    for name, instance in problems():
        result = solve(instance, time_limit_s=limit)
        first = result.best_heuristic.value if result.best_heuristic else None
        gap = "" if result.gap is None else f"{result.gap:.2%}"
        cells = (
            name,
            first,
            result.value,
            result.bound.value,
            result.bound.proved_by,
            gap,
            round(result.wall_time_s, 1),
        )
        print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
