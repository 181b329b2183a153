"""Schedules as a page for a browser, and as a figure for a paper or a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from zbopt.analysis.lanes import extent, lanes_of
from zbopt.api.given import OneOrMore, by_name, schedule_of
from zbopt.portfolio.known import best_known
from zbopt.portfolio.result import Result
from zbopt.problem.atomic import write_text
from zbopt.problem.documents import require_writable
from zbopt.problem.schedule import Schedule
from zbopt.reports.figure import draw, figure_of, legend_entries, picture_settings, require_picture, write_picture
from zbopt.reports.web import Entry, web_page
from zbopt.validator import validate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_LANE_INCHES, _TITLE_AND_AXIS_INCHES, _LEGEND_INCHES = 0.26, 0.6, 0.4
_LEGEND_COLUMN_INCHES = 2.0


def report(schedules: OneOrMore, path: str | PathLike[str]) -> None:
    """Write a page for a browser: charts to zoom and ask, memory, causes of idle time; several side by side.

    The page is one file and loads nothing from anywhere. A schedule that breaks a rule is shown, with what it breaks.

    Args:
        schedules: A schedule or result, a list of them, or several by name.
        path: The file to write (``.html``).

    Raises:
        ValueError: A result has no schedule, a schedule is empty, times have no common unit, or the file cannot be
            written.

    Example:
        >>> import zbopt
        >>> step = zbopt.instance(stages=2, microbatches=4)
        >>> zbopt.report({"GPipe": zbopt.heuristics.gpipe(step), "optimum": zbopt.solve(step)}, "report.html")
    """
    target = _writable(path)
    page = web_page([_entry(name, given) for name, given in by_name(schedules).items()])
    write_text(target, page)


def plot(
    schedules: OneOrMore,
    path: str | PathLike[str] | None = None,
    *,
    ax: Axes | Sequence[Axes] | None = None,
    window: tuple[int, int] | None = None,
    width_inches: float = 7.2,
) -> Figure:
    """Draw schedules as Gantt charts, one above the other on one time axis. Needs ``zbopt[plot]``.

    Args:
        schedules: A schedule or result, a list of them, or several by name, which is the title of each chart.
        path: The picture to write (``.svg``, ``.png``, ``.pdf``); ``None``: none is written.
        ax: Axes to draw on, one for each schedule, instead of a new figure; legend and titles are then the caller's.
        window: First and last tick to show; ``None``: from the first start to the last end of all schedules.
        width_inches: Width of a new figure; its height follows from the number of stages.

    Returns:
        The figure that was drawn on.

    Raises:
        ValueError: matplotlib is missing, a result has no schedule, the ticks of the schedules differ, the number of
            axes is not that of the schedules, or the file cannot be written.

    Example:
        >>> import zbopt
        >>> step = zbopt.instance(stages=2, microbatches=4)
        >>> figure = zbopt.plot({"GPipe": zbopt.heuristics.gpipe(step), "optimum": zbopt.solve(step)}, "both.svg")
    """
    named = {name: schedule_of(given) for name, given in by_name(schedules).items()}
    target = None if path is None else _writable(path)
    if target is not None:
        require_picture(target)
    if not 2 <= width_inches <= 50:
        raise ValueError(f"width_inches = {width_inches:g} is out of range; give 2 to 50")
    with picture_settings():
        window = window or _common_window(named)
        if ax is not None:
            figure = _drawn_on(ax, named, window)
        elif len(named) == 1:
            figure = figure_of(next(iter(named.values())), window, width_inches)
        else:
            figure = _stacked(named, window, width_inches)
        if target is not None:
            write_picture(figure, target)
    return figure


def _common_window(named: Mapping[str, Schedule]) -> tuple[int, int]:
    """Return the first start and the last end of all schedules.

    Raises:
        ValueError: Their ticks differ, so that one time axis would be wrong for some.
    """
    ticks = sorted({schedule.instance.tick for schedule in named.values()})
    if len(ticks) > 1:
        raise ValueError(f"schedules with ticks of {' and '.join(ticks)} have no common axis; draw them one by one")
    extents = [extent(schedule) for schedule in named.values()]
    return min(first for first, _ in extents), max(last for _, last in extents)


def _drawn_on(ax: Axes | Sequence[Axes], named: Mapping[str, Schedule], window: tuple[int, int]) -> Figure:
    from matplotlib.figure import Figure

    axes = list(ax) if isinstance(ax, Iterable) else [ax]
    if len(axes) != len(named):
        given, needed = len(axes), len(named)
        are = "is" if needed == 1 else "are"
        raise ValueError(f"ax: {given} axes are given, {needed} {are} needed; give one for each schedule")
    for one, schedule in zip(axes, named.values(), strict=True):
        draw(schedule, one, window)
    figure = axes[0].get_figure(root=True)
    assert isinstance(figure, Figure), "axes that can be drawn on belong to a figure"
    return figure


def _stacked(named: Mapping[str, Schedule], window: tuple[int, int], width_inches: float) -> Figure:
    """Return a figure with a chart for each schedule and one legend for all."""
    from matplotlib.figure import Figure

    lanes = [len(lanes_of(schedule)) for schedule in named.values()]
    height = sum(lanes) * _LANE_INCHES + len(lanes) * _TITLE_AND_AXIS_INCHES + _LEGEND_INCHES
    figure = Figure(figsize=(width_inches, height), dpi=200, layout="constrained")
    charts = figure.subplots(len(named), squeeze=False, height_ratios=lanes)
    entries: dict[str, Patch] = {}
    for (name, schedule), (chart,) in zip(named.items(), charts, strict=True):
        chart.set_title(name, loc="left")
        entries |= {label: patch for patch, label in legend_entries(schedule)}
    figure.draw_without_rendering()  # the layout decides how large a chart is, and that decides which numbers fit
    for schedule, (chart,) in zip(named.values(), charts, strict=True):
        draw(schedule, chart, window)
    columns = max(1, int(width_inches / _LEGEND_COLUMN_INCHES))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _writable(path: str | PathLike[str]) -> Path:
    target = Path(path)
    require_writable(target, flag="path")
    return target


def _entry(name: str, given: Schedule | Result) -> Entry:
    """Return a schedule as the page shows it, with the best bound that is known of it where it is valid."""
    schedule = schedule_of(given)
    violations = validate(schedule.instance, schedule).violations
    found = tuple((violation.code.value, violation.message) for violation in violations)
    bound = None if found else given.bound if isinstance(given, Result) else best_known(schedule)
    return Entry(name=name, schedule=schedule, violations=found, bound=bound)
