"""Solve the set of steps with every field that takes time or memory, beside the best heuristic.

python bench/everything.py --time-limit 60
"""

from __future__ import annotations

import argparse
from pathlib import Path

from zbopt import read_instance, solve
from zbopt.bench import instance_files

SET = Path(__file__).parents[1] / "instances" / "everything"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=60.0)
    limit = parser.parse_args().time_limit
    for file in instance_files(SET):
        result = solve(read_instance(file), time_limit_s=limit)
        first = result.best_heuristic.value if result.best_heuristic else None
        gap = "" if result.gap is None else f"{result.gap:.2%}"
        proved = (result.value, result.bound.value, result.bound.proved_by, gap)
        print("|", " | ".join(map(str, (file.stem, first, *proved, round(result.wall_time_s, 1)))), "|", flush=True)


if __name__ == "__main__":
    main()
