"""Every problem of V placement that published schedulers were measured on: zbopt's heuristics over the best of them.

    python bench/v_placement.py [--stages 32] > FILE.csv

tests/golden/virtual_stage_peers.csv has the peers. A problem is a setting, an objective and a cap: any that a peer was
given or needed. A peer counts for each cap that is no less than its peak. Ticks are half a unit of the file, so that
no time is rounded. No search, no clock: the figures repeat. The last line on stderr sums up.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.instance import Instance
from zbopt.metrics import figures

PEERS = Path(__file__).parent.parent / "tests" / "golden" / "virtual_stage_peers.csv"
OURS = ("zb-v", "v-half", "v-min", "1f1b-v", "v-auto")
SETTING = ("p", "m", "forward", "backward", "weight", "comm", "weight_share")
COLUMNS = (*SETTING, "objective", "cap", "peer", "best_peer", "heuristic", "value", "percent_above", "processor_s")

Peer = dict[str, str]


def settings() -> dict[tuple[str, ...], list[Peer]]:
    """The peers of V placement by setting."""
    found: dict[tuple[str, ...], list[Peer]] = {}
    with PEERS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["virtual"] == "2" and row["scheduler"] != "interleaved":
                found.setdefault(tuple(row[key] for key in SETTING), []).append(row)
    return found


def problem(setting: tuple[str, ...], objective: str, cap: Fraction) -> Instance:
    """A setting at a cap. A virtual stage takes half of a stage's time, which is as many ticks as that has units."""
    p, m, forward, backward, weight, comm = (int(part) for part in setting[:6])
    return Instance.uniform(
        stages=p,
        microbatches=m,
        forward_ticks=forward,
        backward_ticks=backward,
        weight_ticks=weight,
        comm_ticks=2 * comm,
        weight_share=Fraction(setting[6]),
        memory_cap=cap,
        placement="v",
        virtual=2,
        objective=objective,
    )


def best_of_ours(instance: Instance) -> tuple[Fraction, str]:
    """The least value of the V families, in the file's units, and the first that has it."""
    found = []
    for name in OURS:
        try:
            schedule = HEURISTICS[name](instance)
        except (CannotFitError, NotApplicableError):
            continue
        found.append((Fraction(figures(schedule).value(instance.objective), 2), name))
    return min(found, key=lambda pair: pair[0])


def rows(most_stages: int) -> Iterator[dict[str, object]]:
    """One row a problem."""
    for setting, peers in settings().items():
        caps = {Fraction(peer[key]) for peer in peers for key in ("cap", "peak") if peer[key]}
        for cap in sorted(caps) if int(setting[0]) <= most_stages else ():
            fitting = [peer for peer in peers if Fraction(peer["peak"]) <= cap]
            for objective in ("makespan", "max_stage_span") if fitting else ():
                began = time.process_time()
                value, name = best_of_ours(problem(setting, objective, cap))
                best = min(fitting, key=lambda peer: Fraction(peer[objective]))
                above = 100 * (value / Fraction(best[objective]) - 1)
                seconds = f"{time.process_time() - began:.1f}"
                found = (
                    float(cap),
                    best["scheduler"],
                    best[objective],
                    name,
                    float(value),
                    f"{float(above):.3f}",
                    seconds,
                )
                yield dict(zip(COLUMNS, (*setting, objective, *found), strict=True))


def main() -> None:
    """Print the table to stdout and its summary to stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=32, help="the most (32)")
    flags = parser.parse_args()
    table = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    table.writeheader()
    above = []
    for row in rows(flags.stages):
        above.append(float(str(row["percent_above"])))
        table.writerow(row)
        sys.stdout.flush()
    sys.stderr.write(
        f"{len(above)} problems: {sum(x > 0 for x in above)} above the best peer, {max(above):.3f} % at most; "
        f"{sum(x < 0 for x in above)} below, {-min(above):.3f} % at most; {sum(above) / len(above):.3f} % on average\n"
    )


if __name__ == "__main__":
    main()
