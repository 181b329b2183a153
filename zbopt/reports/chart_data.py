"""Chart data: the columns of numbers that the browser page draws: ops, idle intervals, memory, critical path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, chain
from typing import Any

from zbopt.analysis.idle import Cause, Explanation
from zbopt.analysis.lanes import extent, lanes_of, local_stage_numbers, overlapped_backwards
from zbopt.analysis.metrics import Figures, memory_changes
from zbopt.costs.times import tick_ns
from zbopt.graph.memory import static_memory
from zbopt.problem.schedule import Event, Schedule
from zbopt.reports.colours import COLOURS, COLOURS_ON_DARK, NAMES, SIGNS, text_colour
from zbopt.reports.page import unit_of_memory
from zbopt.reports.words import amount_text, percent

KINDS = [
    {"name": kind.value, "sign": SIGNS[kind], "text": NAMES[kind], "light": COLOURS[kind], "ink": text_colour(kind)}
    | {"dark": COLOURS_ON_DARK[kind]}
    for kind in COLOURS
]
CAUSES: Mapping[Cause, str] = {
    Cause.FILL: "before the first op of the stage",
    Cause.DRAIN: "after the last op of the stage",
    Cause.DEPENDENCY: "its input was not computed yet",
    Cause.INPUT: "the data of its microbatch were not ready",
    Cause.TRANSFER: "its input was on its way",
    Cause.LINK: "it, or its input, waited for a link or port",
    Cause.HELD: "a blocking transfer held its compute",
    Cause.MEMORY: "the cap had no room for the next F",
    Cause.BARRIER: "the optimizer waited for gradients",
    Cause.ORDER: "nothing: it could have started",
}
_KIND_NUMBER = {kind: number for number, kind in enumerate(COLOURS)}
_CAUSE_NUMBER = {cause: number for number, cause in enumerate(CAUSES)}


def common_tick(ticks: Sequence[tuple[str, str]]) -> tuple[str, list[int]]:
    """Return the tick that several schedules share, and how many of it one tick of each is.

    Args:
        ticks: For each schedule its name and its tick.

    Raises:
        ValueError: Some ticks have a length and some have none, so that no axis holds both.
    """
    bare = next((name for name, tick in ticks if tick == "unit"), None)
    timed = next((name for name, tick in ticks if tick != "unit"), None)
    if bare is not None and timed is not None:
        raise ValueError(f"{timed} counts in time and {bare} in units without a length; make a page for each")
    if timed is None:
        return "unit", [1] * len(ticks)
    lengths = [tick_ns(tick) for _, tick in ticks]
    shared = min(lengths)
    if any(length % shared for length in lengths):
        shared = Fraction(1)
    return f"{shared}ns", [int(length / shared) for length in lengths]


def chart_data(why: Explanation, known: Figures, factor: int) -> dict[str, Any]:
    """Return all that the page's script needs of one schedule, in ticks of the page, ``factor`` to a tick here.

    Ops are numbered by lane, then start. ``half`` is 1 for an F that runs as one op with a BW, 2 for that BW, else 0.
    An idle interval is (stage, start, end, cause, op before which, op for
    which), with -1 for no op. ``stage`` is given where lanes hold events of other stages.
    """
    instance = why.schedule.instance
    rows = lanes_of(why.schedule)
    events = list(chain.from_iterable(row.events for row in rows))
    number = {id(event): i for i, event in reversed(list(enumerate(events)))}
    elsewhere = any(event.stage != row.stage for row in rows for event in row.events)
    first, last = extent(why.schedule)

    upper = {i: second for row in rows for i, second in overlapped_backwards(instance, row).items()}
    lower = {id(second) for second in upper.values()}

    def place(event: Event | None) -> int:
        return -1 if event is None else number.get(id(event), -1)

    return {
        "factor": factor,
        "from": first * factor,
        "to": last * factor,
        "rows": [0, *accumulate(len(row.events) for row in rows[:-1])],
        "stageOf": [row.stage for row in rows],
        "beside": [row.resource for row in rows],
        "stage": [e.stage for e in events] if elsewhere else None,
        "nth": local_stage_numbers(instance),
        "kind": [_KIND_NUMBER[e.kind] for e in events],
        "virtual": [-1 if e.virtual_stage is None else e.virtual_stage for e in events],
        "microbatch": [-1 if e.microbatch is None else e.microbatch for e in events],
        "iteration": [e.iteration for e in events] if any(e.iteration for e in events) else None,
        "half": [1 if id(e) in upper else 2 if id(e) in lower else 0 for e in events] if upper else None,
        "start": [e.start * factor for e in events],
        "end": [e.end * factor for e in events],
        "path": [place(event) for event in why.critical_path],
        "idle": [
            [i.stage, i.start * factor, i.end * factor, _CAUSE_NUMBER[i.cause], place(i.before), place(i.waits_for)]
            for i in why.idle
        ],
        "idleNotes": [
            f"{percent(1 - busy / known.makespan if known.makespan else None)} idle" for busy in known.busy_ticks
        ],
        "memory": _memory(why.schedule, known, number, factor),
    }


def _memory(schedule: Schedule, known: Figures, number: Mapping[int, int], factor: int) -> dict[str, Any]:
    instance = schedule.instance
    cap = instance.memory_cap
    stages = []
    for stage, row in enumerate(schedule.holders_by_stage()):
        changes = [change for change in memory_changes(instance, row) if change[1]]
        static = static_memory(instance, stage)
        stages.append(
            {
                "time": [time * factor for time, _, _ in changes],
                "change": [float(change) for _, change, _ in changes],
                "live": [float(live + static) for live in accumulate(change for _, change, _ in changes)],
                "op": [number[id(event)] for _, _, event in changes],
            }
        )
    return {
        "stages": stages,
        "cap": None if cap is None else [float(amount) for amount in cap],
        "most": float(max(*known.peak_memory, *(cap or ()), Fraction(0))),
        "unit": unit_of_memory(instance),
        "notes": [
            f"peak {_short(peak)}" + ("" if cap is None else f" of {_short(cap[stage])}")
            for stage, peak in enumerate(known.peak_memory)
        ],
    }


def _short(amount: Fraction) -> str:
    """Return an amount as text that fits beside a chart."""
    text = amount_text(amount)
    return text if len(text) <= 6 else f"{float(amount):.4g}"
