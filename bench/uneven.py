"""Measure how far zbopt goes below the best of all heuristics where stages differ in time by up to a factor of 2.

    python bench/uneven.py [--objective makespan] [--time-limit 20] [--instances 100] [--first 0] > FILE.csv

Instance k is made from seed k: p of 4 to 8 stages; F, B and W of each stage take 50 to 100 ticks, each drawn by itself;
2p microbatches; a cap of 3p/4 activations, held until W. The last line on stderr sums up.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from random import Random
from statistics import mean, quantiles

from zbopt import Instance, solve
from zbopt.analysis.metrics import figures
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError

COLUMNS = ("seed", "stages", "microbatches", "cap", "heuristic", "best_heuristic", "value", "lower_bound", "saved")


def uneven(seed: int, objective: str) -> Instance:
    """Return the instance of one seed."""
    random = Random(f"{seed}")
    p = random.randint(4, 8)
    fields = ("forward_ticks", "backward_ticks", "weight_ticks")
    times = {name: [random.randint(50, 100) for _ in range(p)] for name in fields}
    sizes = {"stages": p, "microbatches": 2 * p, "memory_cap": 3 * p // 4, "objective": objective}
    return Instance.model_validate(sizes | times | {"name": f"uneven-{seed}"})


def best_heuristic(instance: Instance) -> tuple[int, str]:
    """Return the least value of all heuristics that fit the cap, and the first heuristic that has it."""
    found = []
    for name, heuristic in HEURISTICS.items():
        try:
            found.append((figures(heuristic(instance)).value(instance.objective), name))
        except (CannotFitError, NotApplicableError):
            continue
    return min(found, key=lambda pair: pair[0])


def solved(seed: int, objective: str, time_limit_s: float) -> tuple[list[object], float, bool]:
    """Return a row of the table, the share that was saved, and whether the value is proved optimal."""
    instance = uneven(seed, objective)
    best, name = best_heuristic(instance)
    result = solve(instance, time_limit_s=time_limit_s, workers=2)
    assert result.value is not None
    assert instance.memory_cap is not None
    saved = (best - result.value) / best
    sizes = (instance.stages, instance.microbatches, instance.memory_cap[0])
    row = [seed, *sizes, name, best, result.value, result.bound.value, f"{saved:.4f}"]
    return row, saved, result.value == result.bound.value


def summary(saved: Sequence[float], optimal: int) -> str:
    """Return one line: the distribution of what is saved over the best heuristic, and how much is proved optimal."""
    low, middle, high = quantiles(saved, n=4)
    return (
        f"{len(saved)} instances: saved {100 * mean(saved):.2f} % on average, least {100 * min(saved):.2f} %, "
        f"quartiles {100 * low:.2f}, {100 * middle:.2f}, {100 * high:.2f} %, most {100 * max(saved):.2f} %; "
        f"{optimal} proved optimal"
    )


def main() -> None:
    """Print the table to stdout and its summary to stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objective", choices=("makespan", "max_stage_span"), default="makespan")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds an instance (20)")
    parser.add_argument("--instances", type=int, default=100, help="2 at least")
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    flags = parser.parse_args()
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(COLUMNS)
    found = []
    for seed in range(flags.first, flags.first + flags.instances):
        found.append(solved(seed, flags.objective, flags.time_limit))
        table.writerow(found[-1][0])
        sys.stdout.flush()
    sys.stderr.write(summary([saved for _, saved, _ in found], sum(proved for _, _, proved in found)) + "\n")


if __name__ == "__main__":
    main()
