"""Gantt chart as an SVG picture, for notebooks and pages. It needs no script, no font and no other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from zbopt.analysis.lanes import kinds_of, lanes_of
from zbopt.analysis.metrics import figures
from zbopt.costs.times import decimal_text, unit_of
from zbopt.portfolio.result import Result
from zbopt.problem.instance import Kind
from zbopt.problem.schedule import Event, Schedule
from zbopt.reports.colours import COLOURS, NAMES, text_colour
from zbopt.reports.grid import Grid, Span, axis_step, grid_of
from zbopt.reports.safe_text import printable
from zbopt.reports.words import percent, size_text, ticks_text

_WIDTH, _ROW, _GAP, _MARGIN, _LETTER, _LEGEND_LINE = 960, 22, 3, 64, 7, 16
_MOST_COLUMNS = 1200
"""Longer schedules are drawn by column, as in a terminal: a rectangle for each of a million ops helps nobody."""


def gantt_svg(schedule: Schedule) -> str:
    """Return the chart of ``schedule`` as one ``<svg>`` element, 960 units wide, a lane for each stage and link."""
    grid = grid_of(schedule, _MOST_COLUMNS, columns_a_tick=_MOST_COLUMNS)
    below = len(grid.rows) * (_ROW + _GAP)
    legend = list(_legend_places(kinds_of(lanes_of(schedule))))
    height = below + 36 + _LEGEND_LINE * max((line + 1 for _, _, line in legend), default=1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="100%" '
        f'style="max-width:{_WIDTH}px" font-family="sans-serif" font-size="11" role="img">',
        f"<title>{escape(printable(_title(schedule)))}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (label, row) in enumerate(zip(grid.labels, grid.rows, strict=True)):
        parts += _row(number, label, row, grid)
    parts += _axis(grid, schedule.instance.tick, below)
    parts += _legend(legend, below + 40)
    return "\n".join([*parts, "</svg>"])


def result_html(result: Result) -> str:
    """Return a result as a notebook shows it: a line of figures and the chart, or the reason for there being none."""
    tick = result.instance.tick
    if result.schedule is None or result.value is None:
        reason = result.infeasible or "no schedule was found in time"
        return f"<p>{escape(printable(f'{result.status.value}: {reason}'))}</p>"
    line = (
        f"{result.status.value}: {result.instance.objective.value.replace('_', ' ')} "
        f"{ticks_text(result.value, tick)}, lower bound {result.bound.value} ({result.bound.proved_by}), "
        f"bubble {percent(figures(result.schedule).bubble_over_makespan)} of the makespan"
    )
    return f"<p>{escape(printable(line))}</p>\n{gantt_svg(result.schedule)}"


def _title(schedule: Schedule) -> str:
    instance = schedule.instance
    return f"{schedule.provenance.source}: {size_text(instance)}"


def _x(column: int, grid: Grid) -> float:
    return _MARGIN + column * (_WIDTH - _MARGIN - 20) / grid.columns


def _text(x: float, y: float, text: str, *, fill: str = "#222222", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}">{escape(text)}</text>'


def _row(number: int, label: str, row: tuple[Span, ...], grid: Grid) -> Iterator[str]:
    top = number * (_ROW + _GAP) + 4
    yield _text(4 + 4 * (len(label) - len(label.lstrip())), top + 15, label.lstrip())
    left, right = _x(0, grid), _x(grid.columns, grid)
    yield f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{_ROW}" fill="#eeeeee"/>'
    for run in row:
        if run.event is None:
            continue
        x, width = _x(run.first, grid), _x(run.end, grid) - _x(run.first, grid)
        if run.second is None:
            yield from _op(run.event, x, top, width, _ROW)
        else:
            yield from _op(run.event, x, top, width, _ROW / 2)
            yield from _op(run.second, x, top + _ROW / 2, width, _ROW / 2)


def _op(event: Event, x: float, top: float, width: float, height: float) -> Iterator[str]:
    edge = ' stroke="#ffffff" stroke-width="0.6"' if width > 4 else ""
    yield (
        f'<rect x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="{height:g}" fill="{COLOURS[event.kind]}"{edge}>'
        f"<title>{escape(event.id)}: {event.start} to {event.end}</title></rect>"
    )
    text = str(event.kind.value if event.microbatch is None else event.microbatch)
    if width >= _LETTER * len(text) + 2:
        yield _text(x + width / 2, top + height / 2 + 4, text, fill=text_colour(event.kind), anchor="middle")


def _axis(grid: Grid, tick: str, top: int) -> Iterator[str]:
    unit, per_tick = unit_of(grid.ticks, tick)
    labels = 14
    step = axis_step(grid.ticks, labels, 1)
    yield _text(4, top + 18, unit or "tick")
    for time in range(0, grid.ticks + 1, step):
        x = _MARGIN + time * (_WIDTH - _MARGIN - 20) / grid.ticks
        yield f'<path d="M{x:.1f} {top + 2}v5" stroke="#666666"/>'
        yield _text(x, top + 18, decimal_text((time + grid.origin) * per_tick), anchor="middle")


def _legend_places(kinds: Sequence[Kind]) -> Iterator[tuple[Kind, float, int]]:
    """Yield where each kind's entry begins, and on which line, so that none is past the right edge."""
    x, line = float(_MARGIN), 0
    for kind in kinds:
        width = 30 + _LETTER * len(_legend_text(kind))
        if x > _MARGIN and x + width > _WIDTH:
            x, line = float(_MARGIN), line + 1
        yield kind, x, line
        x += width


def _legend_text(kind: Kind) -> str:
    return f"{kind.value}: {NAMES[kind]}"


def _legend(places: Sequence[tuple[Kind, float, int]], top: int) -> Iterator[str]:
    for kind, x, line in places:
        y = top + _LEGEND_LINE * line
        yield f'<rect x="{x:.1f}" y="{y - 9}" width="11" height="11" fill="{COLOURS[kind]}"/>'
        yield _text(x + 15, y, _legend_text(kind))
