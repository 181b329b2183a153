"""Measure the list heuristic where microbatches differ, and all that ``solve`` tries on long steps over links.

    python bench/heuristics.py

Each line says the instance, processor seconds, and the value. Times are drawn with seed 1; heuristics have no seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from zbopt.analysis.metrics import figures
from zbopt.bounds import lower_bound
from zbopt.heuristics import HEURISTICS, candidates_of
from zbopt.portfolio.heuristic_phase import try_heuristics
from zbopt.portfolio.limits import Limits
from zbopt.portfolio.state import SolveState
from zbopt.problem.instance import Instance

TIMES = {"forward_ticks": 10, "backward_ticks": 11, "weight_ticks": 8}


def instance(stages: int, microbatches: int, **fields: Any) -> Instance:
    """Return an instance of equal stages, with transfers of a tick unless the fields say otherwise."""
    return Instance.model_validate({"stages": stages, "microbatches": microbatches, "comm_ticks": 1} | TIMES | fields)


def own_times(stages: int, microbatches: int) -> list[dict[str, Any]]:
    """Return times for each microbatch, the same on all stages."""
    random = Random(1)
    return [
        {
            "microbatches": [j],
            "forward_ticks": [random.randint(8, 14)] * stages,
            "backward_ticks": [random.randint(9, 15)] * stages,
            "weight_ticks": [random.randint(6, 10)] * stages,
        }
        for j in range(microbatches)
    ]


def listed(problem: Instance) -> int:
    """Return the value of the list schedule."""
    return figures(HEURISTICS["list"](problem)).makespan


def without_search(problem: Instance) -> int:
    """Return the value of ``solve`` before any engine starts, with a limit of 20 s."""
    state = SolveState.begin(problem, Limits(20.0), lambda progress: None)
    state.incumbent.prove(lower_bound(problem))
    try_heuristics(state, candidates_of(problem))
    assert state.incumbent.value is not None
    return state.incumbent.value


def measurements() -> Iterator[tuple[str, Callable[[Instance], int], Instance]]:
    """Yield a name, the function to measure, and its instance."""
    choose = {"recompute": "choose", "checkpoint": "1/10"}
    for p, m in ((8, 64), (16, 128)):
        own = own_times(p, m)
        yield f"list, p={p} m={m}, own times", listed, instance(p, m, memory_cap=p // 2, microbatch_times=own)
    own = own_times(8, 64)
    yield "list, p=8 m=64, choices", listed, instance(8, 64, memory_cap=4, **choose)
    yield "list, p=8 m=64, both", listed, instance(8, 64, memory_cap=4, microbatch_times=own, **choose)
    for name in ("link", "blocking"):
        made = instance(8, 512, memory_cap=8, communication=name, comm_ticks=1 if name == "link" else 2)
        yield f"all, p=8 m=512, {name}", without_search, made


if __name__ == "__main__":
    for name, run, problem in measurements():
        begin = time.process_time()
        value = run(problem)
        print(f"{name:32} {time.process_time() - begin:6.2f} s  {value}", flush=True)
