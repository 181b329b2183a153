"""Set zbopt beside the best published scheduler on every problem that these were measured on.

    python bench/peers.py FILE.csv [--placement v] [--least-stages 4] [--stages 32] [--time-limit 60]

tests/golden/peers.csv has the peers. A problem is a setting, a placement, an objective and a cap: any that a peer was
given or needed. A peer counts for each cap that is no less than its peak. Ticks are a share of the file's unit, one
for each virtual stage of a stage, so that no time is rounded. The heuristics that ``solve`` tries run one after
another, without a clock, until one is not above the best peer: 0 or less says no more than that. With a time limit
``zbopt.solve`` runs instead, likewise until it is not above. Problems that FILE has are left out: a run that was broken
off goes on where it was, and several may divide the stages among them. The last line on stderr sums up.
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
from zbopt.analysis.metrics import figures
from zbopt.heuristics import CannotFitError, NotApplicableError, candidates_of
from zbopt.heuristics.tools.patience import bounded
from zbopt.portfolio.result import Progress

PEERS = Path(__file__).parent.parent / "tests" / "golden" / "peers.csv"
ROUND_ROBIN = ("interleaved", "gis", "gis-h", "po")
SETTING = ("p", "m", "forward", "backward", "weight", "comm", "weight_share", "virtual")
COLUMNS = (
    *SETTING, "placement", "objective", "cap", "peer", "best_peer", "source", "value", "percent_above", "processor_s"
)  # fmt: skip

Peer = dict[str, str]


def placement_of(peer: Peer) -> str:
    """Return the placement of the peer's virtual stages."""
    if peer["virtual"] == "1":
        return "linear"
    return "interleaved" if peer["scheduler"] in ROUND_ROBIN else "v"


def settings() -> dict[tuple[str, ...], list[Peer]]:
    """Return the peers by setting and placement."""
    found: dict[tuple[str, ...], list[Peer]] = {}
    with PEERS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault((*(row[key] for key in SETTING), placement_of(row)), []).append(row)
    return found


def problem(setting: tuple[str, ...], objective: str, cap: Fraction) -> Instance:
    """Return a setting at a cap. A virtual stage takes its share of a stage's time, as many ticks as that has units."""
    p, m, forward, backward, weight, comm = (int(part) for part in setting[:6])
    share, virtual, placement = setting[6:]
    return Instance.uniform(
        stages=p,
        microbatches=m,
        forward_ticks=forward,
        backward_ticks=backward,
        weight_ticks=weight,
        comm_ticks=int(virtual) * comm,
        weight_share=Fraction(share),
        memory_cap=cap,
        placement=placement,
        virtual=int(virtual),
        objective=objective,
    )


def heuristics_until(instance: Instance, good_enough: int) -> tuple[int, str]:
    """Return the first value in ticks that is at most ``good_enough``, else the least; and the heuristic's name."""
    least: tuple[int, str] | None = None
    for name, heuristic in candidates_of(instance).items():
        try:
            with bounded(good_enough):
                value = figures(heuristic(instance)).value(instance.objective)
        except (CannotFitError, NotApplicableError):
            continue
        least = (value, name) if least is None else min(least, (value, name))
        if value <= good_enough:
            break
    assert least is not None, "list runs wherever anything fits"
    return least


def solve_until(instance: Instance, good_enough: int, time_limit_s: float) -> tuple[int, str]:
    """Return the value in ticks that ``zbopt.solve`` finds, stopped at ``good_enough``, and its source."""

    def stop(progress: Progress) -> None:
        if progress.value is not None and progress.value <= good_enough:
            raise KeyboardInterrupt

    result = solve(instance, time_limit_s=time_limit_s, workers=2, on_progress=stop)
    assert result.value is not None
    assert result.schedule is not None
    return result.value, result.schedule.provenance.source


def rows(flags: argparse.Namespace, known: set[tuple[str, ...]]) -> Iterator[dict[str, object]]:
    """Yield one row for each problem that is not ``known``."""
    for setting, peers in settings().items():
        caps = {Fraction(peer[key]) for peer in peers for key in ("cap", "peak") if peer[key]}
        wanted = flags.least_stages <= int(setting[0]) <= flags.stages and flags.placement in (None, setting[-1])
        for cap in sorted(caps) if wanted else ():
            fitting = [peer for peer in peers if Fraction(peer["peak"]) <= cap]
            for objective in ("makespan", "max_stage_span") if fitting else ():
                if (*setting, objective, str(float(cap))) in known:
                    continue
                best = min(fitting, key=lambda peer: Fraction(peer[objective]))
                # The file has six decimals, so that a third of a microsecond is rounded; a tick is that third.
                published = round(Fraction(best[objective]) * int(setting[7]))
                instance, began = problem(setting, objective, cap), time.process_time()
                if flags.time_limit:
                    value, source = solve_until(instance, published, flags.time_limit)
                else:
                    value, source = heuristics_until(instance, published)
                above = f"{100 * (value / published - 1):.4f}"
                found = (float(cap), best["scheduler"], best[objective], source, value / int(setting[7]), above)
                seconds = f"{time.process_time() - began:.1f}"
                yield dict(zip(COLUMNS, (*setting, objective, *found, seconds), strict=True))


def main() -> None:
    """Add to the table in the file, and print its summary to stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the table; made where it is not there")
    parser.add_argument("--placement", choices=("linear", "interleaved", "v"), help="this one alone; none: all")
    parser.add_argument("--least-stages", type=int, default=1, help="the fewest (1)")
    parser.add_argument("--stages", type=int, default=32, help="the most (32)")
    parser.add_argument("--time-limit", type=float, help="seconds a problem; none: heuristics, no clock")
    flags = parser.parse_args()
    before = list(csv.DictReader(flags.file.open(encoding="utf-8", newline=""))) if flags.file.exists() else []
    known = {tuple(row[key] for key in (*SETTING, "placement", "objective", "cap")) for row in before}
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
        f"{len(above)} problems: {sum(x > 0 for x in above)} above the best peer, the highest at {max(above):.4f} %; "
        f"{sum(x == 0 for x in above)} equal, {sum(x < 0 for x in above)} below\n"
    )


if __name__ == "__main__":
    main()
