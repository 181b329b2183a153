"""How far zbopt goes below the best of all heuristics where stages differ in time by up to a factor of 2.

    python bench/uneven.py [--time-limit 10] [--instances 100] [--first 0] > bench/uneven.csv

Instance k is made from seed k: p of 4 to 8 stages, 2p microbatches, cap p/2, 3p/4 or p activations held until W.
Each stage has one factor from 50 to 100; its F, B and W take that times 0.8 to 1.2 each, rounded. The last line on
stderr sums up.
"""

from __future__ import annotations

import argparse
import csv
import sys
from fractions import Fraction
from random import Random
from statistics import mean, quantiles

from zbopt import Instance, Result, solve
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.metrics import figures

COLUMNS = ("seed", "stages", "microbatches", "cap", "best_heuristic", "heuristic", "value", "lower_bound", "saved")


def uneven(seed: int) -> Instance:
    """The instance of one seed."""
    random = Random(f"uneven {seed}")
    p = random.randint(4, 8)
    factors = [random.randint(50, 100) for _ in range(p)]
    times = {
        name: [max(1, round(factor * random.uniform(0.8, 1.2))) for factor in factors]
        for name in ("forward_ticks", "backward_ticks", "weight_ticks")
    }
    cap = int(p * random.choice((Fraction(1, 2), Fraction(3, 4), Fraction(1))))
    return Instance(stages=p, microbatches=2 * p, memory_cap=cap, name=f"uneven-{seed}", **times)


def best_heuristic(instance: Instance) -> tuple[int, str]:
    """The least value of all heuristics that fit the cap, and the first one that has it."""
    found = []
    for name, heuristic in HEURISTICS.items():
        try:
            found.append((figures(heuristic(instance)).value(instance.objective), name))
        except (CannotFitError, NotApplicableError):
            continue
    return min(found, key=lambda pair: pair[0])


def row(seed: int, result: Result, best: int, name: str) -> list[object]:
    instance = result.instance
    assert result.value is not None
    assert instance.memory_cap is not None
    saved = f"{(best - result.value) / best:.4f}"
    sizes = (instance.stages, instance.microbatches, instance.memory_cap[0])
    return [seed, *sizes, name, best, result.value, result.bound.value, saved]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds an instance (10)")
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    flags = parser.parse_args()
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(COLUMNS)
    rows = []
    for seed in range(flags.first, flags.first + flags.instances):
        instance = uneven(seed)
        rows.append(row(seed, solve(instance, time_limit_s=flags.time_limit, workers=2), *best_heuristic(instance)))
        table.writerow(rows[-1])
        sys.stdout.flush()
    saved = [float(str(r[-1])) for r in rows]
    print(summary(saved, [(int(str(r[6])), int(str(r[7]))) for r in rows]), file=sys.stderr)


def summary(saved: list[float], values: list[tuple[int, int]]) -> str:
    """One line: the distribution of what is saved over the best heuristic, and how much is proved optimal."""
    low, middle, high = quantiles(saved, n=4) if len(saved) > 1 else saved * 3
    optimal = sum(value == bound for value, bound in values)
    return (
        f"{len(saved)} instances: saved {100 * mean(saved):.2f} % on average, least {100 * min(saved):.2f} %, "
        f"quartiles {100 * low:.2f}, {100 * middle:.2f}, {100 * high:.2f} %, most {100 * max(saved):.2f} %; "
        f"{optimal} proved optimal"
    )


if __name__ == "__main__":
    main()
