"""The published integer program and zbopt on the same small instances, each solve a process of its own.

The set is given by a rule, not picked: every combination of ``STAGES``, microbatches p and 2p, caps half of p (rounded
up), p and 2p, and ``TIMES``; activations are held until W. With ``--edge`` the microbatches go up from p by 2 until the
integer program does not prove one within the limit, and only the last that it proves counts: the edge of its reach.
What it does not prove is counted, and enters no ratio. Prints a table, then the median ratios: of seconds on the clock
and of the processor for whole processes (all their threads), and on the clock for the solve alone.

    python bench/against_milp.py --time-limit 60
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
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
    """``whole_s`` from the process's start to its end, ``cpu_s`` of the processor, ``solve_s`` of the solve alone."""

    status: str
    value: int
    bound: int
    whole_s: float
    cpu_s: float
    solve_s: float


@dataclass(frozen=True)
class Pair:
    """Both runs of a case that milp proves."""

    case: Case
    milp: Run
    ours: Run

    def ratios(self) -> tuple[float, float, float]:
        milp, ours = self.milp, self.ours
        return milp.whole_s / ours.whole_s, milp.cpu_s / ours.cpu_s, milp.solve_s / max(ours.solve_s, 0.001)


def rows(stages: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """(times, p, cap) of the set."""
    for times in TIMES:
        for p in stages:
            yield from ((times, p, cap) for cap in (-(-p // 2), p, 2 * p))


def proved(times: str, p: int, cap: int, limit_s: float, edge: bool) -> tuple[list[tuple[Case, Run]], int]:
    """What milp proves of one row of the set, and how many it tried and did not."""
    found: list[tuple[Case, Run]] = []
    for m in count(p, 2) if edge else (p, 2 * p):
        case = Case(times, p, m, cap)
        milp = run(case, "milp", limit_s)
        if milp.status == "optimal":
            found = [(case, milp)] if edge else [*found, (case, milp)]
        elif edge:
            return found, 1
    return found, 0 if edge else 2 - len(found)


def run(case: Case, engine: str, time_limit_s: float) -> Run:
    before, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    limits = ["--engine", engine, "--time-limit", f"{time_limit_s:g}", "--seed", "0", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "zbopt", "solve", *case.flags(), *limits],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    whole_s = time.monotonic() - before
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    said = json.loads(done.stdout)
    return Run(said["status"], said["value"], said["lower_bound"], whole_s, cpu_s, said["wall_time_s"])


def compared(case: Case, milp: Run, limit_s: float) -> Pair:
    ours = run(case, "cp-sat", limit_s)
    assert ours.value >= milp.bound, f"{case}: {ours.value} is below {milp.bound}, which milp proves"
    assert ours.status != "optimal" or ours.value == milp.value, f"{case}: two optima, {ours.value}, {milp.value}"
    return Pair(case, milp, ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of each solve (default 60)")
    parser.add_argument("--stages", type=int, action="append", help="only these; may be given again")
    parser.add_argument("--edge", action="store_true", help="only the most microbatches that milp proves")
    given = parser.parse_args()
    print("| instance | value | milp: whole, processor, solve | zbopt: whole, processor, solve | ratios |")
    print("|---|---|---|---|---|")
    pairs: list[Pair] = []
    unproved = 0
    for times, p, cap in rows(given.stages or STAGES):
        found, more = proved(times, p, cap, given.time_limit, given.edge)
        unproved += more
        for case, milp in found:
            pairs.append(compared(case, milp, given.time_limit))
            seconds = (f"{r.whole_s:.2f}, {r.cpu_s:.2f}, {r.solve_s:.3f}" for r in (milp, pairs[-1].ours))
            ratios = ", ".join(f"{ratio:.1f}" for ratio in pairs[-1].ratios())
            print(f"| {case} | {milp.value} | {' | '.join(seconds)} | {ratios} |", flush=True)
    ours_open = sum(pair.ours.status != "optimal" for pair in pairs)
    print(f"\nProved by milp within {given.time_limit:g} s: {len(pairs)}; tried and not proved: {unproved}.")
    print(f"Of the {len(pairs)}, not proved by zbopt: {ours_open}.")
    whole, cpu, solve = (median(ratios) for ratios in zip(*(pair.ratios() for pair in pairs), strict=True))
    print(f"Median ratios: whole process {whole:.1f}, its processor time {cpu:.1f}, solve alone {solve:.1f}.")


if __name__ == "__main__":
    main()
