"""Flags ``--from`` and ``--to``: a window of a schedule, in ticks or in time."""

from __future__ import annotations

from math import ceil, floor
from typing import Annotated

import typer

from zbopt.analysis.lanes import extent
from zbopt.costs.times import parse_times, tick_ns
from zbopt.problem.schedule import Schedule

FromFlag = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Draw from here: ticks (100), or a time (20ms).", show_default=False),
]
ToFlag = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Draw up to here.", show_default=False)]


def window_of(schedule: Schedule, begin: str | None, end: str | None) -> tuple[int, int] | None:
    """Return the first and last tick of the window; ``None`` where neither flag is given, for the whole schedule.

    Raises:
        ValueError: A flag is not a time, or the window has nothing of the schedule.
    """
    if begin is None and end is None:
        return None
    first, last = extent(schedule)
    window = (
        first if begin is None else floor(_ticks("--from", begin, schedule.instance.tick)),
        last if end is None else ceil(_ticks("--to", end, schedule.instance.tick)),
    )
    if window[0] >= window[1]:
        raise ValueError(f"--from {window[0]} is not before --to {window[1]} (ticks); give an earlier --from")
    if window[0] >= last or window[1] <= first:
        raise ValueError(f"ticks {window[0]} to {window[1]} show nothing: the schedule is from {first} to {last}")
    return window


def _ticks(flag: str, text: str, tick: str) -> float:
    """Read a time in ticks; a bare number is one in ticks."""
    if text.isdecimal():
        return int(text)
    if tick == "unit":
        raise ValueError(
            f"{flag} {text!r} is not a whole number, and a tick here has no length; give ticks, such as 100"
        )
    times = parse_times({flag: text}, "1ns").ticks[flag]
    if len(times) != 1 or times[0] is None:
        raise ValueError(f"{flag} {text!r} is not one time; write it as 100 (ticks) or 20ms")
    return times[0] / float(tick_ns(tick))
