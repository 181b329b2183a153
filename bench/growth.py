"""Measure solves as the step gets longer: whole processes, F,B,W,comm = 10,11,8,1, 8 stages, held until W.

Prints the least of ``--repeat`` runs for each number of microbatches, as seconds on the clock and of the processor.

    python bench/growth.py --cap 6 --cap 8 --cap 16
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time

MICROBATCHES = (32, 128, 512, 1024, 4096)
FLAGS = ("--stages", "8", "--forward", "10", "--backward", "11", "--weight", "8", "--comm", "1")


def measured(arguments: list[str]) -> tuple[float, float, str]:
    """Return seconds on the clock, seconds of the processor, and stdout of one call in a process of its own."""
    before, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "zbopt", "solve", *FLAGS, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return time.monotonic() - before, cpu_s, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cap", type=int, action="append", help="memory cap; may be given again (default 6, 8 and 16)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=60.0)
    given = parser.parse_args()
    print("| cap | m | value | gap, ticks | page: clock | page: processor | --json -o: clock | --json -o: processor |")
    print("|---|---|---|---|---|---|---|---|")
    for cap in given.cap or (6, 8, 16):
        for m in MICROBATCHES:
            asked = ["--micro", str(m), "--mem-limit", str(cap), "--time-limit", f"{given.time_limit:g}"]
            pages = [measured(asked) for _ in range(given.repeat)]
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                records = [measured([*asked, "--json", "-o", file.name]) for _ in range(given.repeat)]
            said = json.loads(records[0][2])
            times = [min(run[k] for run in runs) for runs in (pages, records) for k in (0, 1)]
            cells = [cap, m, said["value"], said["value"] - said["lower_bound"], *(f"{t:.2f}" for t in times)]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
