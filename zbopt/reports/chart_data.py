"""Chart data: the columns of numbers that the browser page draws: ops, idle intervals, memory, critical path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

from zbopt.analysis.idle import Cause, Explanation, Idle
from zbopt.analysis.lanes import Lane, extent, lanes_of, local_stage_numbers, overlapped_backwards
from zbopt.analysis.metrics import Figures, memory_changes
from zbopt.costs.times import tick_ns
from zbopt.graph.memory import static_memory
from zbopt.problem.schedule import Schedule
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
    """Return all that the page's script needs of one schedule, in the page's ticks: ``factor`` of them make one tick.

    Ops are numbered by lane, then by start.
    """
    lanes = lanes_of(why.schedule)
    number = _numbers(lanes)
    first, last = extent(why.schedule)
    return {
        "factor": factor,
        "from": first * factor,
        "to": last * factor,
        "nth": local_stage_numbers(why.schedule.instance),
        **_lane_columns(lanes),
        **_op_columns(why.schedule, lanes, factor),
        "path": [number[id(event)] for event in why.critical_path],
        "idle": [_idle_row(idle, number, factor) for idle in why.idle],
        "idleNotes": _idle_notes(known),
        "memory": _memory(why.schedule, known, number, factor),
    }


def _numbers(lanes: Sequence[Lane]) -> dict[int, int]:
    """Map the ``id`` of each event to its number. An event in two lanes has the number of the first."""
    numbers: dict[int, int] = {}
    for number, event in enumerate(event for lane in lanes for event in lane.events):
        numbers.setdefault(id(event), number)
    return numbers


def _lane_columns(lanes: Sequence[Lane]) -> dict[str, Any]:
    """Return the columns that have one value a lane: its first op, its stage, and its name beside compute."""
    return {
        "rows": [0, *accumulate(len(lane.events) for lane in lanes[:-1])],
        "stageOf": [lane.stage for lane in lanes],
        "beside": [lane.resource for lane in lanes],
    }


def _op_columns(schedule: Schedule, lanes: Sequence[Lane], factor: int) -> dict[str, Any]:
    """Return the columns that have one value an op. One in which all ops are alike is ``None``, and -1 means none."""
    events = [event for lane in lanes for event in lane.events]
    return {
        "stage": _stages(lanes),
        "kind": [_KIND_NUMBER[event.kind] for event in events],
        "virtual": [_or_none(event.virtual_stage) for event in events],
        "microbatch": [_or_none(event.microbatch) for event in events],
        "iteration": _unless_zero([event.iteration for event in events]),
        "half": _unless_zero(_halves(schedule, lanes)),
        "start": [event.start * factor for event in events],
        "end": [event.end * factor for event in events],
    }


def _stages(lanes: Sequence[Lane]) -> list[int] | None:
    """Return the stage of each op; ``None`` where each is that of its lane."""
    if all(event.stage == lane.stage for lane in lanes for event in lane.events):
        return None
    return [event.stage for lane in lanes for event in lane.events]


def _halves(schedule: Schedule, lanes: Sequence[Lane]) -> list[int]:
    """Return 1 for each F that is one op with a BW, 2 for that BW, and 0 for all other ops."""
    half: dict[int, int] = {}
    for lane in lanes:
        for forward, backward in overlapped_backwards(schedule.instance, lane).items():
            half |= {forward: 1, id(backward): 2}
    return [half.get(id(event), 0) for lane in lanes for event in lane.events]


def _unless_zero(numbers: list[int]) -> list[int] | None:
    """Return a column; ``None`` where it has only zeros."""
    return numbers if any(numbers) else None


def _or_none(number: int | None) -> int:
    """Return a number, -1 for none."""
    return -1 if number is None else number


def _idle_row(idle: Idle, number: Mapping[int, int], factor: int) -> list[int]:
    """Return (stage, start, end, cause, op before which, op for which) of an idle interval, -1 for no op."""
    ops = [-1 if event is None else number.get(id(event), -1) for event in (idle.before, idle.waits_for)]
    return [idle.stage, idle.start * factor, idle.end * factor, _CAUSE_NUMBER[idle.cause], *ops]


def _idle_notes(known: Figures) -> list[str]:
    """Return the idle share of each stage, in words."""
    return [f"{percent(1 - busy / known.makespan if known.makespan else None)} idle" for busy in known.busy_ticks]


def _memory(schedule: Schedule, known: Figures, number: Mapping[int, int], factor: int) -> dict[str, Any]:
    instance = schedule.instance
    cap = instance.memory_cap
    stages = []
    for stage, holders in enumerate(schedule.holders_by_stage()):
        changes = [change for change in memory_changes(instance, holders) if change[1]]
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
