"""Gantt chart in a terminal: a lane for each stage and link, a colour a kind, microbatch numbers where they fit.

It reads without colour too: every op shows its letter first, an idle time shows dots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from fractions import Fraction

from rich.text import Text

from zbopt.analysis.lanes import kinds_of, lanes_of
from zbopt.costs.times import decimal_text, unit_of
from zbopt.problem.schedule import Event, Schedule
from zbopt.reports.colours import COLOURS, NAMES, SIGNS, text_colour
from zbopt.reports.grid import Grid, Span, axis_step, grid_of

STYLES = {kind: f"{text_colour(kind)} on {colour}" for kind, colour in COLOURS.items()}
MOST_ROWS = 64
"""Most lanes that are drawn; of more, only the first and the last are. Not measured; chosen to keep charts short."""


def gantt(schedule: Schedule, width: int, *, coloured: bool, window: tuple[int, int] | None = None) -> Iterator[Text]:
    """Yield the lines of the chart, none wider than ``width``.

    Args:
        schedule: What to draw.
        width: Columns of the terminal.
        coloured: Whether the terminal shows colours; without, ops are set apart by their letters alone.
        window: First and last tick to draw; ``None``: from the first start to the last end.
    """
    labels = [lane.label for lane in lanes_of(schedule)]
    count, margin = len(labels), max(map(len, labels)) + 1
    grid = grid_of(schedule, max(width - margin - 1, 10), window=window)
    for number, (label, row) in enumerate(zip(labels, grid.rows, strict=True)):
        if count > MOST_ROWS and number == MOST_ROWS // 2:
            yield Text(f"... {count - MOST_ROWS} more {'stages' if count == schedule.instance.stages else 'rows'} ...")
        if count > MOST_ROWS and MOST_ROWS // 2 <= number < count - MOST_ROWS // 2:
            continue
        line, numbered = Text(label.ljust(margin), no_wrap=True), _numbered(row)
        for run in row:
            fill, style = (" ", STYLES[run.event.kind]) if coloured and run.event else ("-", "")
            line.append(_cell(run, fill, numbered), style=style)
        yield line
    yield from _axis(grid, margin, schedule.instance.tick, width)
    yield from _legend(schedule, grid, width, coloured=coloured)


def _numbered(row: Sequence[Span]) -> set[str]:
    """Return the signs most of whose ops in a lane have room for a number: a few numbers would say little."""
    room: dict[str, int] = defaultdict(int)
    for run in row:
        if run.event is not None:
            room[_sign(run.event, run.second)] += 1 if len(_named(run.event, run.second)) <= run.columns else -1
    return {sign for sign, more in room.items() if more > 0}


def _sign(event: Event, second: Event | None) -> str:
    return SIGNS[event.kind] + ("" if second is None else f"+{SIGNS[second.kind]}")


def _named(event: Event, second: Event | None = None) -> str:
    """Return the name of an op: ``F4``, or ``F4+BW1`` for an F and a BW that run as one op."""
    name = SIGNS[event.kind] + ("" if event.microbatch is None else str(event.microbatch))
    return name if second is None else f"{name}+{_named(second)}"


def _cell(run: Span, fill: str, numbered: Container[str]) -> str:
    """Return the text of one span: letter, and number where its kind shows them, or as much of it as fits."""
    if run.event is None:
        return "·" * run.columns
    name, sign = _named(run.event, run.second), _sign(run.event, run.second)
    if sign in numbered and len(name) <= run.columns:
        return name.ljust(run.columns, fill)
    return (sign + fill * run.columns)[: run.columns]


def _axis(grid: Grid, margin: int, tick: str, width: int) -> Iterator[Text]:
    """Yield the time axis; each time is written from its own column on."""
    unit, per_tick = unit_of(grid.ticks, tick)
    longest = len(decimal_text(grid.ticks * per_tick))
    step = axis_step(grid.ticks, grid.columns, min(longest, 6) + 2)
    line = ""
    for time in range(-grid.origin % step, grid.ticks + 1, step):
        column = grid.column_of(time)
        longer = line.ljust(column) + decimal_text((time + grid.origin) * per_tick)
        if margin + len(longer) <= width and (not line or len(line) < column):
            line = longer
    yield Text(f"{(unit or 'tick').ljust(margin)}{line}", no_wrap=True)


def _legend(schedule: Schedule, grid: Grid, width: int, *, coloured: bool) -> Iterator[Text]:
    line = Text()
    for kind in kinds_of(lanes_of(schedule)):
        if line and len(line) + len(f" {SIGNS[kind]} {NAMES[kind]}") > width:
            yield line
            line = Text()
        line.append(f" {SIGNS[kind]} ", style=STYLES[kind] if coloured else "")
        line.append(f"{NAMES[kind]}  ")
    one_op = any(run.second is not None for row in grid.rows for run in row)
    idle = (" F+BW both as one op  " if one_op else "") + " · idle"
    if line and len(line) + len(idle) > width:
        yield line
        line = Text()
    yield line.append(idle)
    if grid.is_coarse:
        per_column = Fraction(grid.ticks, grid.columns)
        unit, per_tick = unit_of(int(per_column), schedule.instance.tick)
        length = f"{float(per_column * per_tick):.3g} {unit or 'ticks'}"
        yield Text(f" a column is {length} long and shows what runs most of that time")
