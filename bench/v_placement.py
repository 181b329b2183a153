"""Every problem of V placement that published schedulers were measured on: zbopt over the best of them.

    python bench/v_placement.py FILE.csv [--least-stages 4] [--stages 32] [--time-limit 60]

tests/golden/virtual_stage_peers.csv has the peers. A problem is a setting, an objective and a cap: any that a peer was
given or needed. A peer counts for each cap that is no less than its peak. Ticks are half a unit of the file, so
that no time is rounded. V heuristics run one after another, without clock, until one is not above the best peer: 0 or
less says no more than that. With a time limit `zbopt.solve` runs instead, likewise until it is not above. Problems that
FILE has are left out: a run that was broken off goes on where it was, and several may divide the stages among them.
The last line on stderr sums up.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from zbopt import Instance, solve
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.metrics import figures
from zbopt.result import Progress

PEERS = Path(__file__).parent.parent / "tests" / "golden" / "virtual_stage_peers.csv"
SETTING = ("p", "m", "forward", "backward", "weight", "comm", "weight_share")
OURS = ("v-auto", "v-half", "v-min", "zb-v", "1f1b-v", "list")
COLUMNS = (*SETTING, "objective", "cap", "peer", "best_peer", "source", "value", "percent_above", "processor_s")

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


def heuristics_until(instance: Instance, good_enough: Fraction) -> tuple[Fraction, str]:
    """The first value that is at most ``good_enough``, in the file's units, else the least; and what gave it."""
    least: tuple[Fraction, str] | None = None
    for name in OURS:
        try:
            value = Fraction(figures(HEURISTICS[name](instance)).value(instance.objective), 2)
        except (CannotFitError, NotApplicableError):
            continue
        least = (value, name) if least is None else min(least, (value, name))
        if value <= good_enough:
            break
    assert least is not None, "v-auto and list run wherever anything fits"
    return least


def solve_until(instance: Instance, good_enough: Fraction, time_limit_s: float) -> tuple[Fraction, str]:
    """The same by ``zbopt.solve``."""

    def stop(progress: Progress) -> None:
        if progress.value is not None and Fraction(progress.value, 2) <= good_enough:
            raise KeyboardInterrupt

    result = solve(instance, time_limit_s=time_limit_s, workers=2, on_progress=stop)
    assert result.value is not None
    assert result.schedule is not None
    return Fraction(result.value, 2), result.schedule.provenance.source


def rows(flags: argparse.Namespace, known: set[tuple[str, ...]]) -> Iterator[dict[str, object]]:
    """One row a problem that is not ``known``."""
    for setting, peers in settings().items():
        caps = {Fraction(peer[key]) for peer in peers for key in ("cap", "peak") if peer[key]}
        for cap in sorted(caps) if flags.least_stages <= int(setting[0]) <= flags.stages else ():
            fitting = [peer for peer in peers if Fraction(peer["peak"]) <= cap]
            for objective in ("makespan", "max_stage_span") if fitting else ():
                if (*setting, objective, str(float(cap))) in known:
                    continue
                best = min(fitting, key=lambda peer: Fraction(peer[objective]))
                published = Fraction(best[objective])
                instance, began = problem(setting, objective, cap), time.process_time()
                if flags.time_limit:
                    value, source = solve_until(instance, published, flags.time_limit)
                else:
                    value, source = heuristics_until(instance, published)
                above = f"{float(100 * (value / published - 1)):.3f}"
                found = (float(cap), best["scheduler"], best[objective], source, float(value), above)
                seconds = f"{time.process_time() - began:.1f}"
                yield dict(zip(COLUMNS, (*setting, objective, *found, seconds), strict=True))


def main() -> None:
    """Add to the table in the file, and print its summary to stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the table; made where it is not there")
    parser.add_argument("--least-stages", type=int, default=1, help="the fewest (1)")
    parser.add_argument("--stages", type=int, default=32, help="the most (32)")
    parser.add_argument("--time-limit", type=float, help="seconds a problem; none: heuristics, no clock")
    flags = parser.parse_args()
    before = list(csv.DictReader(flags.file.open(encoding="utf-8", newline=""))) if flags.file.exists() else []
    known = {tuple(row[key] for key in (*SETTING, "objective", "cap")) for row in before}
    above = [float(row["percent_above"]) for row in before]
    with flags.file.open("a", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not before:
            table.writeheader()
        for row in rows(flags, known):
            above.append(float(str(row["percent_above"])))
            table.writerow(row)
            file.flush()
    sys.stderr.write(
        f"{len(above)} problems: {sum(x > 0 for x in above)} above the best peer, the highest at {max(above):.3f} %; "
        f"{sum(x == 0 for x in above)} equal, {sum(x < 0 for x in above)} below\n"
    )


if __name__ == "__main__":
    main()
