"""The published integer program and zbopt on the same small instances, each solve a process of its own.

The set is given by a rule, not picked: every combination of ``STAGES``, microbatches p and 2p, caps half of p (rounded
up), p and 2p, and ``TIMES``; activations are held until W. What the integer program does not prove within the limit is
listed and counts for nothing else. Prints a table, then the median ratios.

    python bench/against_milp.py --time-limit 60
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

STAGES = (3, 4, 5, 6)
TIMES = {"unit": (1, 1, 1, 0), "10/11/8/1": (10, 11, 8, 1), "1.5B us": (18522, 18086, 9337, 601)}
"""Ticks of F, B, W and a transfer; the last are those of the 1.5B model (arXiv 2401.10241, tables 4, 5 and 9)."""


@dataclass(frozen=True)
class Case:
    times: str
    stages: int
    microbatches: int
    cap: int

    def flags(self) -> list[str]:
        f, b, w, comm = TIMES[self.times]
        fields = {
            "stages": self.stages,
            "micro": self.microbatches,
            "mem-limit": self.cap,
            "forward": f,
            "backward": b,
            "weight": w,
            "comm": comm,
        }
        return [part for name, value in fields.items() for part in (f"--{name}", str(value))]

    def __str__(self) -> str:
        return f"{self.times} p={self.stages} m={self.microbatches} cap {self.cap}"


@dataclass(frozen=True)
class Run:
    """``whole_s`` from the process's start to its end, ``solve_s`` of the solve in it alone."""

    status: str
    value: int
    bound: int
    whole_s: float
    solve_s: float


def cases() -> Iterator[Case]:
    for times in TIMES:
        for p in STAGES:
            for m in (p, 2 * p):
                for cap in (-(-p // 2), p, 2 * p):
                    yield Case(times, p, m, cap)


def run(case: Case, engine: str, time_limit_s: float) -> Run:
    before = time.monotonic()
    limits = ["--engine", engine, "--time-limit", f"{time_limit_s:g}", "--seed", "0", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "zbopt", "solve", *case.flags(), *limits],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    whole_s = time.monotonic() - before
    said = json.loads(done.stdout)
    return Run(said["status"], said["value"], said["lower_bound"], whole_s, said["wall_time_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of each solve (default 60)")
    limit_s = parser.parse_args().time_limit
    print("| instance | value | milp whole | milp solve | zbopt whole | zbopt solve | ratio whole | ratio solve |")
    print("|---|---|---|---|---|---|---|---|")
    whole, solve, unproved, ours_open = [], [], [], []
    for case in cases():
        milp = run(case, "milp", limit_s)
        if milp.status != "optimal":
            unproved.append(case)
            continue
        ours = run(case, "cp-sat", limit_s)
        assert ours.value >= milp.bound, f"{case}: {ours.value} is below {milp.bound}, which milp proves"
        if ours.status != "optimal":
            ours_open.append(case)
        assert ours.status != "optimal" or ours.value == milp.value, f"{case}: two optima, {ours.value}, {milp.value}"
        whole.append(milp.whole_s / ours.whole_s)
        solve.append(milp.solve_s / max(ours.solve_s, 0.001))
        print(
            f"| {case} | {milp.value} | {milp.whole_s:.2f} | {milp.solve_s:.2f} | {ours.whole_s:.2f} | "
            f"{ours.solve_s:.3f} | {whole[-1]:.1f} | {solve[-1]:.1f} |",
            flush=True,
        )
    print(f"\nNot proved by milp within {limit_s:g} s: {len(unproved)} of {len(unproved) + len(whole)}.")
    print(f"Not proved by zbopt, of those that milp proves: {len(ours_open)}.")
    print(f"Median ratio: whole process {median(whole):.1f}, solve alone {median(solve):.1f}.")


if __name__ == "__main__":
    main()
