"""Gantt chart for papers, by matplotlib (``zbopt[plot]``): colours by kind, microbatch numbers, links below stages.

Kinds differ in lightness too, so that they stay apart without colour. Where a stage holds several virtual stages, the
ops of its second one have a line along their lower edge, those of the third two, and so on up to three.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zbopt.analysis.lanes import Lane, extent, kinds_of, lanes_of, local_stage_numbers, overlapped_backwards
from zbopt.costs.times import decimal_text, unit_of
from zbopt.problem.atomic import write_bytes
from zbopt.problem.instance import COMPUTE, Instance, Kind
from zbopt.problem.schedule import Event, Schedule
from zbopt.reports.colours import COLOURS, NAMES, text_colour
from zbopt.reports.grid import axis_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

SUFFIXES = (".svg", ".png", ".pdf")
_ROW_HEIGHT, _BAR = 0.26, 0.84
"""Inches from stage to stage, and the share of them that an op fills. Not measured; chosen so that a number fits."""
_HALVED = 1.5
"""Times higher are stages whose ops are partly two, one above the other."""
_LEFT_INCHES, _RIGHT_INCHES = 0.67, 0.2
_LEGEND_INCHES_A_LINE = 0.16
_MOST_LINES, _LINE, _PITCH = 3, 0.055, 0.1
"""Lines that mark virtual stages: their number, their height, and from line to line, in lanes."""
_EDGE_FROM = 2.5
"""Points that an op must be long for a white edge; a shorter one would be all edge. Not measured; chosen by eye."""
_LARGEST_FONT, _SMALLEST_FONT = 8.0, 4.0
_CHARACTER = 0.62
"""Width of a digit, in font sizes."""
_SETTINGS: Any = {
    "font.size": 8,
    "font.family": "sans-serif",
    "pdf.fonttype": 42,
    "svg.hashsalt": "zbopt",
}
_NO_DATE: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}


@dataclass(frozen=True, slots=True)
class _Look:
    """Hold what sets ops apart in the chart: their kind, and which of their stage's virtual stages they are on."""

    kind: Kind
    nth: int

    @property
    def lines(self) -> int:
        return min(self.nth, _MOST_LINES)

    @property
    def name(self) -> str:
        return f"{self.kind.value}: {NAMES[self.kind]}"


class _Box(NamedTuple):
    """Place an event in the chart: the height of its middle and its own height, in lanes from the first one on."""

    middle: float
    height: float
    event: Event


def draw(schedule: Schedule, ax: Axes, window: tuple[int, int] | None = None) -> Axes:
    """Draw ``schedule`` on ``ax``: a lane for each stage and link, stage 0 at the top, in the unit that reads best.

    Args:
        schedule: What to draw; it need not be valid.
        ax: Whose limits, ticks and labels are set. Numbers are left out where they would not fit at its present size.
        window: First and last tick to show; ``None``: from the first start to the last end.
    """
    first, last = window or extent(schedule)
    last = max(last, first + 1)
    ax.set_xlim(first, last)
    lanes = lanes_of(schedule)
    ax.set_ylim(len(lanes) - 0.5, -0.5)
    looks = _looks(schedule.instance, lanes, first, last)
    _bars(ax, looks)
    _numbers(ax, looks, first, last)
    _axes(ax, schedule.instance, lanes, first, last)
    return ax


def _looks(instance: Instance, lanes: Sequence[Lane], first: int, last: int) -> dict[_Look, list[_Box]]:
    """Return the boxes to draw between two ticks, by how they look."""
    looks: defaultdict[_Look, list[_Box]] = defaultdict(list)
    nths = local_stage_numbers(instance)
    for number, lane in enumerate(lanes):
        seconds = overlapped_backwards(instance, lane)
        half = dict.fromkeys(seconds, -1) | {id(second): 1 for second in seconds.values()}
        for event in lane.events:
            v = event.virtual_stage
            known = lane.resource is None and v is not None and 0 <= v < len(nths)
            if event.end > first and event.start < last and event.end > event.start:
                side = half.get(id(event), 0)
                box = _Box(number + side * _BAR / 4, _BAR / 2 if side else _BAR, event)
                looks[_Look(event.kind, nths[v or 0] if known else 0)].append(box)
    return looks


def _bars(ax: Axes, looks: dict[_Look, list[_Box]]) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    lengths = sorted(e.end - e.start for boxes in looks.values() for _, _, e in boxes)
    edged = bool(lengths) and lengths[len(lengths) // 2] * _points_a_unit(ax)[0] >= _EDGE_FROM
    for look, boxes in looks.items():
        bars = [Rectangle((e.start, middle - high / 2), e.end - e.start, high) for middle, high, e in boxes]
        ax.add_collection(
            PatchCollection(bars, facecolor=COLOURS[look.kind], edgecolor="white", linewidth=0.4 if edged else 0)
        )
        marks = [
            Rectangle((e.start, middle + high / 2 - _PITCH * line), e.end - e.start, _LINE)
            for middle, high, e in boxes
            for line in range(1, look.lines + 1)
        ]
        ax.add_collection(PatchCollection(marks, facecolor=text_colour(look.kind), linewidth=0))


def _points_a_unit(ax: Axes) -> tuple[float, float]:
    """Return how many points a tick is long and a lane is high, at the present size of ``ax``."""
    box = ax.get_window_extent()
    (first, last), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    points = 72 / ax.figure.dpi
    return box.width * points / (last - first), box.height * points / abs(bottom - top)


def _numbers(ax: Axes, looks: dict[_Look, list[_Box]], first: int, last: int) -> None:
    """Draw a number on every op that has room for the longest one, all in one size: the largest that fits.

    Of ops of one length all have their number, or none: 0 to 9 without 10 would look like ops without one.
    """
    a_tick, a_row = _points_a_unit(ax)
    numbered = [(look, *box) for look, boxes in looks.items() for box in boxes if box.event.microbatch is not None]
    longest = max((len(str(e.microbatch)) for *_, e in numbered), default=1)
    ops = [e for *_, e in numbered if e.kind in COMPUTE] or [e for *_, e in numbered]
    lowest = min((high for _, _, high, _ in numbered), default=_BAR)
    room = min(((e.end - e.start) * a_tick / (_CHARACTER * longest + 0.35) for e in ops), default=0.0)
    most_lines = max((look.lines for look in looks), default=0)
    size = max(min(_LARGEST_FONT, a_row * (lowest - _PITCH * most_lines) * 0.72, room), _SMALLEST_FONT)
    for look, middle, _, e in numbered:
        begin, end, text = max(e.start, first), min(e.end, last), str(e.microbatch)
        if (end - begin) * a_tick >= size * (_CHARACTER * longest + 0.1):
            above = middle - _PITCH * most_lines / 2
            shown = ax.text((begin + end) / 2, above, text, fontsize=size, color=text_colour(look.kind))
            shown.set(ha="center", va="center_baseline", clip_on=True)


def _axes(ax: Axes, instance: Instance, lanes: Sequence[Lane], first: int, last: int) -> None:
    unit, per_tick = unit_of(last - first, instance.tick)
    step = axis_step(last - first, 10, 1)
    times = range(first + -first % step, last + 1, step)
    ax.set_xticks(list(times), [decimal_text(time * per_tick) for time in times])
    ax.set_xlabel(f"time ({unit or 'ticks'})")
    shown = range(0, len(lanes), -(-len(lanes) // 40))
    ax.set_yticks(shown, [lanes[number].label.strip() for number in shown])
    ax.tick_params(axis="y", length=0)
    ax.set_facecolor("#ededed")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def legend_entries(schedule: Schedule) -> Iterator[tuple[Patch, str]]:
    """Yield a patch and its name for each kind, and for each further virtual stage of a stage, in ``schedule``."""
    from matplotlib.patches import Patch

    for kind in kinds_of(lanes_of(schedule)):
        yield Patch(facecolor=COLOURS[kind]), _Look(kind, 0).name
    yield Patch(facecolor="#ededed", edgecolor="#bbbbbb", linewidth=0.5), "idle"
    if _is_halved(schedule):
        yield Patch(facecolor="none"), "F above BW: both as one op"
    for lines in range(1, min(max(local_stage_numbers(schedule.instance)), _MOST_LINES) + 1):
        later = " and later" if lines == _MOST_LINES < max(local_stage_numbers(schedule.instance)) else ""
        name = f"{lines} line{'s' if lines > 1 else ''}: virtual stage {lines + 1}{later} of its stage"
        yield Patch(facecolor="none"), name


def _is_halved(schedule: Schedule) -> bool:
    return any(overlapped_backwards(schedule.instance, lane) for lane in lanes_of(schedule))


def _columns(names: Sequence[str], width_inches: float) -> int:
    """Return the most columns in which a legend with ``names``, line by line, is not wider than ``width_inches``."""
    for columns in range(len(names), 1, -1):
        wide = sum(max(map(len, names[c::columns])) * 0.062 + 0.42 for c in range(columns))
        if wide <= width_inches:
            return columns
    return 1


def save_figure(
    schedule: Schedule, path: Path, window: tuple[int, int] | None = None, width_inches: float = 7.2
) -> None:
    """Write the chart with its legend to ``path``, whose suffix says the format.

    Raises:
        ValueError: The suffix is no picture's, the width is out of range, or matplotlib is not installed.
    """
    require_picture(path)
    if not 2 <= width_inches <= 50:
        raise ValueError(f"width {width_inches:g} inches is out of range; give 2 to 50")
    with picture_settings():
        write_picture(figure_of(schedule, window, width_inches), path)


def require_picture(path: Path) -> None:
    """Refuse a file whose suffix is no picture's.

    Raises:
        ValueError: It is none of ``SUFFIXES``.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: {suffix or 'no suffix'} is no picture's; end the name with {', '.join(SUFFIXES)}")


def write_picture(figure: Figure, path: Path) -> None:
    """Write a figure to ``path``, which ``require_picture`` takes, without a date: equal figures give equal files."""
    suffix = path.suffix.lower()
    picture = BytesIO()  # matplotlib fails in ways of its own on a full disk
    figure.savefig(picture, format=suffix[1:], metadata=_NO_DATE[suffix])
    write_bytes(path, picture.getvalue())


def picture_settings() -> AbstractContextManager[None]:
    """Return a context in which figures have the fonts of a paper.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
    except ModuleNotFoundError:
        raise ValueError("pictures need matplotlib, which is not installed; pip install 'zbopt[plot]'") from None
    return rc_context(_SETTINGS)


def figure_of(schedule: Schedule, window: tuple[int, int] | None = None, width_inches: float = 7.2) -> Figure:
    """Return the chart with its legend below it, as high as the stages need."""
    from matplotlib.figure import Figure

    entries = list(legend_entries(schedule))
    columns = _columns([name for _, name in entries], width_inches)
    below = 0.5 + _LEGEND_INCHES_A_LINE * -(-len(entries) // columns)
    lane_height = _ROW_HEIGHT * (_HALVED if _is_halved(schedule) else 1)
    height = len(lanes_of(schedule)) * lane_height + below + 0.1
    figure = Figure(figsize=(width_inches, height), dpi=200)
    box = (
        _LEFT_INCHES / width_inches,
        below / height,
        1 - (_LEFT_INCHES + _RIGHT_INCHES) / width_inches,
        1 - (below + 0.1) / height,
    )
    draw(schedule, figure.add_axes(box), window)
    by_column = [entry for c in range(columns) for entry in entries[c::columns]]
    figure.legend(
        *zip(*by_column, strict=True),
        loc="lower center",
        ncols=columns,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.2,
        borderaxespad=0.2,
        labelspacing=0.35,
    )
    return figure
