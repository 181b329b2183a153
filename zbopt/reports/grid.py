"""Grid of a chart: which op each column of each lane shows. Terminal and SVG picture both draw from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zbopt.analysis.lanes import Lane, extent, lanes_of, overlapped_backwards
from zbopt.problem.instance import Kind
from zbopt.problem.schedule import Event, Schedule


@dataclass(frozen=True, slots=True)
class Span:
    """Hold neighbouring columns [``first``, ``end``) that show one op; ``None``: idle.

    ``second`` is the BW that runs as one op with it.
    """

    first: int
    end: int
    event: Event | None
    second: Event | None = None

    @property
    def columns(self) -> int:
        """Return the number of columns."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Grid:
    """Hold, for each lane, a label and spans that fill ``columns``; time 0 of the chart is tick ``origin``."""

    columns: int
    origin: int
    ticks: int
    labels: tuple[str, ...]
    rows: tuple[tuple[Span, ...], ...]

    def column_of(self, tick: int) -> int:
        """Return the column in which ``tick``, counted from the origin, begins."""
        return tick * self.columns // self.ticks

    @property
    def is_coarse(self) -> bool:
        """Return whether a column stands for several ticks; it then shows the op that runs for most of them."""
        return self.columns < self.ticks


def grid_of(
    schedule: Schedule, most_columns: int, columns_a_tick: int = 4, window: tuple[int, int] | None = None
) -> Grid:
    """Return the schedule on at most ``most_columns`` columns.

    Args:
        schedule: Events on stages that do not exist, or without duration, are left out.
        most_columns: Width of the chart.
        columns_a_tick: Most columns that one tick gets where there is room.
        window: First and last tick of the chart; ``None``: from the first start to the last end.
    """
    lanes = lanes_of(schedule)
    origin, end = window or extent(schedule)
    ticks = max(end - origin, 1)
    columns = min(most_columns // ticks, columns_a_tick) * ticks or most_columns
    runs = (_runs(lane, overlapped_backwards(schedule.instance, lane), origin, ticks, columns) for lane in lanes)
    return Grid(columns, origin, ticks, tuple(lane.label for lane in lanes), tuple(runs))


def _runs(lane: Lane, seconds: Mapping[int, Event], origin: int, ticks: int, columns: int) -> tuple[Span, ...]:
    drawn_with_another = {id(second) for second in seconds.values()}
    shown = _majority([e for e in lane.events if id(e) not in drawn_with_another], origin, ticks, columns)
    starts = [c for c in range(columns) if c == 0 or shown[c] is not shown[c - 1]]
    return tuple(
        Span(a, b, shown[a], seconds.get(id(shown[a]))) for a, b in zip(starts, [*starts[1:], columns], strict=True)
    )


def _majority(events: Sequence[Event], origin: int, ticks: int, columns: int) -> list[Event | None]:
    """Return, for each column, the longest op in it of the kind (or idle) that fills most of it.

    Overlaps count in ticks times columns, so that they are exact integers: a column is ``ticks`` of them long.
    """
    by_kind: list[dict[Kind, int]] = [defaultdict(int) for _ in range(columns)]
    longest: list[dict[Kind, tuple[int, Event]]] = [{} for _ in range(columns)]
    for event in events:
        its_kind = event.kind
        start, end = (event.start - origin) * columns, (event.end - origin) * columns
        first, last = start // ticks, -(-end // ticks)
        inside = first + 1 == last
        for column in range(max(0, first), min(columns, last)):
            overlap = end - start if inside else min(end, (column + 1) * ticks) - max(start, column * ticks)
            by_kind[column][its_kind] += overlap
            known = longest[column].get(its_kind)
            if overlap > (0 if known is None else known[0]):
                longest[column][its_kind] = (overlap, event)
    shown: list[Event | None] = []
    for kinds, longest_of in zip(by_kind, longest, strict=True):
        idle = ticks - sum(kinds.values())
        kind = max(kinds, key=lambda k: kinds[k], default=None)
        shown.append(None if kind is None or kinds[kind] < idle or kind not in longest_of else longest_of[kind][1])
    return shown


def axis_step(ticks: int, columns: int, per_label: int) -> int:
    """Return the ticks between two axis labels: 1, 2 or 5 times a power of ten, at least ``per_label`` columns."""
    step = 1
    while step * columns < per_label * ticks:
        step = next(s for s in _round_numbers(step) if s > step)
    return step


def _round_numbers(above: int) -> Sequence[int]:
    power = int(10 ** (len(str(above)) - 1))
    return (power, 2 * power, 5 * power, 10 * power)
