"""Measure which heuristics ``solve`` needs: every one of them on random instances of all kinds.

    python bench/candidates.py FILE.csv [--instances 320] [--seed 15]

Instance k is drawn from the seed and k, and its kind from k: linear with B and W, linear with BW, round robin, V, two
directions, F and BW as one op, links or several iterations, dropped activations or times of each microbatch. Every
heuristic runs to its end, without a clock, but stops at the closed bound as in ``solve``. FILE gets a row for each
instance and heuristic that gave a schedule: its value in ticks and its processor seconds. Instances that FILE has are
left out. The summary says how often each heuristic is best, and best alone, and what is lost without all but the
candidates of ``solve``.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from zbopt import Instance
from zbopt.analysis.metrics import figures
from zbopt.bounds import lower_bound
from zbopt.graph.memory import least_memory
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError, candidates_of
from zbopt.heuristics.tools.patience import bounded
from zbopt.problem.placement import placement_of
from zbopt.problem.routes import bidirectional

COLUMNS = ("k", "kind", "objective", "stages", "microbatches", "heuristic", "value", "seconds")
SHARES = (Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(2, 5), Fraction(0))

Fields = dict[str, Any]
Row = dict[str, str]


def step(random: Random, placement: str, *, backward: str | None = None, most_stages: int = 9) -> Fields:
    """Draw the fields of one step, without a cap, on a named placement.

    Args:
        random: Source of all choices.
        placement: One of ``placement_of``.
        backward: ``split``, ``whole`` or ``either``; ``None``: any.
        most_stages: Largest number of stages.
    """
    p = random.randint(2, most_stages)
    m = random.randint(max(2, p // 2), 3 * p)
    if placement == "bidirectional":
        p, m = p + p % 2, m + m % 2
    virtual = {"linear": 1, "interleaved": random.choice((2, 2, 3, 4))}.get(placement, 2)
    stage_of = placement_of(placement, p, virtual)
    uneven = random.random() < 0.4
    middle = {name: random.randint(8, 30) for name in ("forward", "backward", "weight")}

    def ticks(name: str) -> list[int]:
        most = middle[name]
        return [random.randint(max(1, most // 2), most) if uneven else most for _ in stage_of]

    fields: Fields = {"stages": p, "microbatches": m, "stage_of": stage_of, "forward_ticks": ticks("forward")}
    fields |= {"comm_ticks": random.choice((0, 0, 1, 2, 5)), "weight_share": random.choice(SHARES)}
    fields["objective"] = random.choice(("makespan", "max_stage_span"))
    if placement == "bidirectional":
        fields["routes"] = bidirectional(p, m)
    backward = backward or random.choice(("split", "split", "either", "whole"))
    gradient, weight = ticks("backward"), ticks("weight")
    if backward != "whole":
        fields |= {"backward_ticks": gradient, "weight_ticks": weight}
    if backward != "split":
        saved = random.choice((0, 0, 2))
        fields["fused_backward_ticks"] = [b + w - saved for b, w in zip(gradient, weight, strict=True)]
    return fields


def capped(random: Random, fields: Fields) -> Instance:
    """Return the instance with a cap from what one microbatch needs to more than any schedule can use."""
    instance = Instance.model_validate(fields)
    if random.random() < 0.1:
        return instance
    share = Fraction(random.randint(25, 220), 100)
    one = [least_memory(instance, stage) for stage in range(instance.stages)]
    caps = [max(least, share * instance.stages * max(least, 1)) for least in one]
    if random.random() < 0.5:
        caps = [max(least, Fraction(int(2 * cap), 2)) for least, cap in zip(one, caps, strict=True)]
    return Instance.model_validate(fields | {"memory_cap": caps})


def placement(random: Random) -> str:
    """Draw a placement."""
    return random.choice(("linear", "linear", "interleaved", "v", "bidirectional"))


def overlapped(random: Random) -> Fields:
    """Draw a step whose stages may run an F and a BW as one op."""
    fields = step(random, random.choice(("v", "bidirectional", "linear")), backward=random.choice(("whole", "either")))
    if random.random() < 0.7:  # DualPipe needs twice as many microbatches as stages
        fields["microbatches"] = m = max(fields["microbatches"], 2 * fields["stages"])
        if "routes" in fields:
            fields["routes"] = bidirectional(fields["stages"], m + m % 2)
            fields["microbatches"] = m + m % 2
    longest = max(*fields["forward_ticks"], *fields["fused_backward_ticks"])
    both = min(f + b for f, b in zip(fields["forward_ticks"], fields["fused_backward_ticks"], strict=True))
    return fields | {"overlapped_ticks": random.randint(longest, max(longest, both))}


def linked(random: Random) -> Fields:
    """Draw a step whose transfers occupy links, or that is one of several iterations."""
    fields = step(random, placement(random), most_stages=6)
    if random.random() < 0.7:
        fields |= {"communication": random.choice(("link", "blocking")), "comm_ticks": random.randint(1, 6)}
        if random.random() < 0.3:
            fields["transfer_occupies"] = "port"
    if fields.get("communication") is None or random.random() < 0.3:
        fields |= {"barrier": random.choice(("global", "post_validation")), "optimizer_ticks": random.randint(0, 9)}
        fields |= {"iterations": 2, "objective": random.choice(("makespan", "max_stage_span", "period", "period"))}
    return fields


def dropped(random: Random) -> Fields:
    """Draw a step that drops activations, or whose microbatches take times of their own."""
    fields = step(random, placement(random), most_stages=6)
    if random.random() < 0.7:
        policy = random.choice(("recompute", "recompute", "offload"))
        fields |= {policy: random.choice(("always", "choose", "choose"))}
        if policy == "recompute":
            fields |= {"recompute_ticks": fields["forward_ticks"], "checkpoint": "1/10"}
        else:
            fields |= {"offload_ticks": random.randint(1, 9), "reload_ticks": random.randint(1, 9)}
    else:
        names = ("forward_ticks", "backward_ticks", "weight_ticks", "fused_backward_ticks")
        given = [name for name in names if name in fields]
        fields["microbatch_times"] = [
            {"microbatches": [j]} | {name: [max(1, t + random.randint(-4, 8)) for t in fields[name]] for name in given}
            for j in range(fields["microbatches"])
        ]
    return fields


KINDS: dict[str, Callable[[Random], Fields]] = {
    "linear": lambda random: step(random, "linear", backward="split", most_stages=12),
    "linear-bw": lambda random: step(random, "linear", backward=random.choice(("whole", "either"))),
    "round-robin": lambda random: step(random, "interleaved", most_stages=7),
    "v": lambda random: step(random, "v"),
    "two-directions": lambda random: step(random, "bidirectional"),
    "overlapped": overlapped,
    "links": linked,
    "dropped": dropped,
}


def drawn(seed: int, k: int) -> tuple[str, Instance]:
    """Return the kind of instance k, and the instance."""
    kind = tuple(KINDS)[k % len(KINDS)]
    random = Random(f"candidates-{seed}-{k}")
    return kind, capped(random, KINDS[kind](random))


def measured(seed: int, k: int) -> Iterator[dict[str, object]]:
    """Yield a row for each heuristic that has a schedule of instance k."""
    kind, instance = drawn(seed, k)
    about = (k, kind, instance.objective.value, instance.stages, instance.microbatches)
    with bounded(lower_bound(instance).value):
        for name, heuristic in HEURISTICS.items():
            began = time.process_time()
            try:
                value = figures(heuristic(instance)).value(instance.objective)
            except (CannotFitError, NotApplicableError):
                continue
            found = (name, value, f"{time.process_time() - began:.2f}")
            yield dict(zip(COLUMNS, (*about, *found), strict=True))


def summary(rows: Sequence[Row], seed: int) -> Iterator[str]:
    """Yield a table of how often each heuristic is best, then what the candidates lose."""
    by_instance: dict[str, list[Row]] = {}
    for row in rows:
        by_instance.setdefault(row["k"], []).append(row)
    yield f"{len(by_instance)} instances"
    yield from shares(by_instance.values())
    worse = [loss for k, found in by_instance.items() if (loss := lost(found, drawn(seed, int(k))[1]))]
    yield f"the candidates alone are worse on {len(worse)}"
    yield from worse


def shares(instances: Collection[list[Row]]) -> Iterator[str]:
    """Yield the table of how often each heuristic is best, and alone best, and of its processor seconds."""
    ran, best, alone, seconds = Counter[str](), Counter[str](), Counter[tuple[str, str]](), Counter[str]()
    for found in instances:
        names = best_of(found)
        best.update(names)
        if len(names) == 1:
            alone[names[0], found[0]["kind"]] += 1
        for row in found:
            ran[row["heuristic"]] += 1
            seconds[row["heuristic"]] += float(row["seconds"])
    yield "| heuristic | gave a schedule | best | best alone, by kind | processor s |"
    yield "|---|---|---|---|---|"
    for name in HEURISTICS:
        kinds = ", ".join(f"{kind} {alone[name, kind]}" for kind in KINDS if alone[name, kind])
        yield f"| `{name}` | {ran[name]} | {best[name]} | {kinds or 'never'} | {seconds[name]:.1f} |"


def best_of(found: Sequence[Row]) -> list[str]:
    """Return the heuristics that have the least value of one instance."""
    least = min(int(row["value"]) for row in found)
    return [row["heuristic"] for row in found if int(row["value"]) == least]


def lost(found: Sequence[Row], instance: Instance) -> str | None:
    """Say what the candidates of ``solve`` lose on one instance; ``None``: nothing."""
    names, tried = best_of(found), candidates_of(instance)
    if any(name in tried for name in names):
        return None
    value = min(int(row["value"]) for row in found)
    kept = min((int(row["value"]) for row in found if row["heuristic"] in tried), default=None)
    return f"instance {found[0]['k']} ({found[0]['kind']}): {names} {value}, candidates {kept}"


def main() -> None:
    """Add to the table in the file, and print its summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the table; made where it is not there")
    parser.add_argument("--instances", type=int, default=320)
    parser.add_argument("--first", type=int, default=0, help="first instance (0)")
    parser.add_argument("--seed", type=int, default=15)
    flags = parser.parse_args()
    rows = list(csv.DictReader(flags.file.open(encoding="utf-8", newline=""))) if flags.file.exists() else []
    known = {row["k"] for row in rows}
    with flags.file.open("a", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not known:
            table.writeheader()
        for k in range(flags.first, flags.first + flags.instances):
            if str(k) not in known:
                found = list(measured(flags.seed, k))
                table.writerows(found)
                file.flush()
                rows += [{name: str(value) for name, value in row.items()} for row in found]
    print("\n".join(summary(rows, flags.seed)))


if __name__ == "__main__":
    main()
