"""The published integer program and zbopt on the same instances, each solve a process of its own.

The set is given by a rule, not picked. The program is published for one virtual stage a stage, the largest stage span,
caps from p to 2p and 3p microbatches or more (arXiv 2401.10241), and has been measured on 4 stages with 8 microbatches
and on 8 with 24. So the set is every combination of ``STAGES``, microbatches 2p and 3p, caps half of p (rounded up), p
and 2p, ``TIMES``, and both objectives; activations are held until W. An instance that the program does not prove within
the limit is named, and enters no ratio. Where instance files or folders are given, these are the set, the smallest
first: zbopt's own sets are of what people train. The script prints a table, then the median ratios: of seconds on the
clock and of the processor for whole processes (all their threads), and on the clock for the solve alone.

    python bench/against_milp.py --time-limit 60
    python bench/against_milp.py instances/unit instances/zb-iclr2024 --time-limit 60
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

from zbopt.problem.instance import read_instance

STAGES = (3, 4, 5, 6, 8)
OBJECTIVES = {"max-stage-span": "span", "makespan": "makespan"}
"""The one that the program is published for, and zbopt's default."""
TIMES = {"unit": (1, 1, 1, 0), "1.5B us": (18522, 18086, 9337, 601)}
"""Ticks of F, B, W and a transfer; the last are those of the 1.5B model (arXiv 2401.10241, tables 4, 5 and 9)."""


@dataclass(frozen=True)
class Case:
    objective: str
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
            "objective": self.objective,
        }
        return [part for name, value in fields.items() for part in (f"--{name}", str(value))]

    def __str__(self) -> str:
        return f"{OBJECTIVES[self.objective]}, {self.times} p={self.stages} m={self.microbatches} cap {self.cap}"


@dataclass(frozen=True)
class FileCase:
    """Hold an instance of a file that the published program models."""

    path: Path

    def flags(self) -> list[str]:
        return [str(self.path)]

    def __str__(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Run:
    """Hold one run: ``whole_s`` of its process, ``cpu_s`` of the processor, ``solve_s`` of the solve alone."""

    status: str
    value: int
    bound: int
    whole_s: float
    cpu_s: float
    solve_s: float


@dataclass(frozen=True)
class Pair:
    """Hold both runs of a case that milp proves."""

    case: Case | FileCase
    milp: Run
    ours: Run

    def ratios(self) -> tuple[float, float, float]:
        milp, ours = self.milp, self.ours
        return milp.whole_s / ours.whole_s, milp.cpu_s / ours.cpu_s, milp.solve_s / max(ours.solve_s, 0.001)


def cases(stages: Sequence[int], objectives: Sequence[str]) -> Iterator[Case]:
    """Yield the cases of the rule."""
    for objective, times, p, m in product(objectives, TIMES, stages, (2, 3)):
        yield from (Case(objective, times, p, m * p, cap) for cap in (-(-p // 2), p, 2 * p))


def file_cases(given: Sequence[Path]) -> Iterator[FileCase]:
    """Yield the instances of files and folders that have one virtual stage a stage, the smallest first."""
    files = [file for path in given for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    sizes = {}
    for file in files:
        if not file.name.endswith(".events.json"):
            instance = read_instance(file)
            if instance.virtual_stages == instance.stages:
                sizes[file] = instance.stages * instance.microbatches
    yield from (FileCase(file) for file in sorted(sizes, key=sizes.__getitem__))


def run(case: Case | FileCase, engine: str, time_limit_s: float) -> Run:
    before, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    limits = ["--engine", engine, "--time-limit", f"{time_limit_s:g}", "--seed", "0", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "zbopt", "solve", *case.flags(), *limits],
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    whole_s = time.monotonic() - before
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    said = json.loads(done.stdout)
    return Run(said["status"], said["value"], said["lower_bound"], whole_s, cpu_s, said["wall_time_s"])


def compared(case: Case | FileCase, milp: Run, limit_s: float) -> Pair:
    ours = run(case, "cp-sat", limit_s)
    assert ours.value >= milp.bound, f"{case}: {ours.value} is below {milp.bound}, which milp proves"
    assert ours.status != "optimal" or ours.value == milp.value, f"{case}: two optima, {ours.value}, {milp.value}"
    return Pair(case, milp, ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("instances", nargs="*", type=Path, help="files or folders (default: the set of the rule)")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of each solve (default 60)")
    parser.add_argument("--stages", type=int, action="append", help="only these; may be given again")
    parser.add_argument("--objective", choices=OBJECTIVES, action="append", help="only these; may be given again")
    given = parser.parse_args()
    print("| instance | value | milp: whole, processor, solve | zbopt: whole, processor, solve | ratios |")
    print("|---|---|---|---|---|")
    pairs: list[Pair] = []
    unproved = 0
    by_rule = cases(given.stages or STAGES, given.objective or list(OBJECTIVES))
    for case in file_cases(given.instances) if given.instances else by_rule:
        milp = run(case, "milp", given.time_limit)
        if milp.status != "optimal":
            unproved += 1
            print(f"| {case} | {milp.bound} to {milp.value} | not proved | not run | |", flush=True)
            continue
        pairs.append(compared(case, milp, given.time_limit))
        seconds = (f"{r.whole_s:.2f}, {r.cpu_s:.2f}, {r.solve_s:.3f}" for r in (milp, pairs[-1].ours))
        ratios = ", ".join(f"{ratio:.1f}" for ratio in pairs[-1].ratios())
        print(f"| {case} | {milp.value} | {' | '.join(seconds)} | {ratios} |", flush=True)
    ours_open = sum(pair.ours.status != "optimal" for pair in pairs)
    print(f"\nProved by milp within {given.time_limit:g} s: {len(pairs)} of {len(pairs) + unproved}.")
    print(f"Of the {len(pairs)}, not proved by zbopt: {ours_open}.")
    whole, cpu, solve = (median(ratios) for ratios in zip(*(pair.ratios() for pair in pairs), strict=True))
    print(f"Median ratios: whole process {whole:.1f}, its processor time {cpu:.1f}, solve alone {solve:.1f}.")


if __name__ == "__main__":
    main()
