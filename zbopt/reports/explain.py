"""Explanation of a schedule's length, as lines of text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from zbopt.analysis.idle import Avoidable, Cause, Explanation, Idle, IdleWindow, Measured
from zbopt.costs.times import time_text
from zbopt.problem.instance import Objective
from zbopt.problem.numbers import counted
from zbopt.problem.schedule import Event
from zbopt.reports.chart_data import CAUSES
from zbopt.reports.page import lines_of
from zbopt.reports.record import Record
from zbopt.reports.words import percent, table

_MOST_OPS = 40
"""Ops of the critical path that are written out; of more, the first and the last. Not measured; chosen for a screen."""


def explain_page(explained: Explanation, width: int) -> Iterator[str]:
    """Yield the lines that ``zbopt explain`` prints."""
    whole, steady, tick = explained.whole(), explained.steady(), explained.schedule.instance.tick
    unit = "" if tick == "unit" else f", in ticks of {tick}"
    yield f"idle time by cause, all stages together{unit}:"
    yield from _idle_table(whole, steady)
    inside = "none: some stage ends before another begins" if steady is None else _window_text(steady, tick)
    yield from lines_of([("whole iteration", _window_text(whole, tick)), ("steady window", inside)], width)
    yield ""
    yield f"critical path{_measured_text(explained.measured)}, {counted(len(explained.critical_path), 'event')}:"
    yield from _path(explained.critical_path)
    yield ""
    found = explained.avoidable()
    text = "first avoidable bubble: " + ("none" if found is None else bubble_text(found))
    yield from wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _measured_text(measured: Measured) -> str:
    if measured.stage is None:
        return ""
    what = {Objective.MAX_STAGE_SPAN: "largest stage span", Objective.PERIOD: "period"}[measured.objective]
    return f" of the {what}, on stage {measured.stage} from {measured.begin} to {measured.end}"


def _window_text(window: IdleWindow, tick: str) -> str:
    time = time_text(window.end - window.begin, tick)
    return (
        f"ticks {window.begin} to {window.end}{f' ({time} long)' if time else ''} on "
        f"{counted(window.stages, 'stage')}: shares are of {window.total} ticks, "
        f"{percent(window.share(window.idle))} of them idle"
    )


def _idle_table(whole: IdleWindow, steady: IdleWindow | None) -> list[str]:
    """Return a table row for each cause that occurs."""
    causes = [cause for cause in Cause if whole.by_cause[cause]]
    if not causes:
        return ["  none: no stage was ever idle"]
    rows: list[tuple[str, ...]] = [("cause", "ticks", "share", "steady ticks", "share")]
    for cause in causes:
        cells = [str(whole.by_cause[cause]), percent(whole.share(whole.by_cause[cause]))]
        inside = ["", ""]
        if steady is not None:
            inside = [str(steady.by_cause[cause]), percent(steady.share(steady.by_cause[cause]))]
        rows.append((cause.value, *cells, *inside))
    texts = ["", *(f"  {CAUSES[cause]}" for cause in causes)]
    return [line + text for line, text in zip(table(rows), texts, strict=True)]


def _path(path: Sequence[Event]) -> list[str]:
    rows = [("op", "start", "end", "waited")]
    end = path[0].start if path else 0
    for event in path:
        rows.append((event.id, str(event.start), str(event.end), str(max(0, event.start - end) or "")))
        end = event.end
    lines = table(rows)
    if len(lines) <= _MOST_OPS:
        return lines
    half = _MOST_OPS // 2
    return [*lines[:half], f"  ... {len(lines) - 2 * half} more ...", *lines[-half:]]


def bubble_text(found: Avoidable) -> str:
    """Return one sentence about an avoidable bubble."""
    idle = found.idle
    use = (
        f"{found.op.id} could run as B and W" if found.by_split else f"{found.op.id} could run from {found.usable_from}"
    )
    return (
        f"stage {idle.stage} idles from {idle.start} to {idle.end} ({idle.cause.value}); {use}, which would use "
        f"{found.ticks} of its ticks"
    )


def explain_record(explained: Explanation) -> Record:
    """Return the record that ``zbopt explain --json`` prints."""
    steady, found = explained.steady(), explained.avoidable()
    return {
        "whole_iteration": _window_record(explained.whole()),
        "steady_window": None if steady is None else _window_record(steady),
        "idle_by_stage": [sums_record(row) for row in explained.by_stage()],
        "idle": [idle_record(idle) for idle in explained.idle],
        "measured": {
            "objective": explained.measured.objective.value,
            "stage": explained.measured.stage,
            "begin": explained.measured.begin,
            "end": explained.measured.end,
        },
        "critical_path": [{"op": e.id, "start": e.start, "end": e.end} for e in explained.critical_path],
        "first_avoidable_bubble": None
        if found is None
        else {
            "stage": found.idle.stage,
            "start": found.idle.start,
            "end": found.idle.end,
            "cause": found.idle.cause.value,
            "op": found.op.id,
            "usable_from": found.usable_from,
            "by_split": found.by_split,
            "ticks": found.ticks,
        },
    }


def _window_record(window: IdleWindow) -> Record:
    return {
        "begin": window.begin,
        "end": window.end,
        "stages": window.stages,
        "denominator": window.total,
        "idle": window.idle,
        "idle_share": window.share(window.idle),
        "by_cause": sums_record(window.by_cause),
        "share_by_cause": {cause.value: window.share(ticks) for cause, ticks in window.by_cause.items()},
    }


def idle_record(idle: Idle) -> Record:
    """Return an idle interval as a record, its ops by id."""
    return {
        "stage": idle.stage,
        "start": idle.start,
        "end": idle.end,
        "cause": idle.cause.value,
        "before": None if idle.before is None else idle.before.id,
        "waits_for": None if idle.waits_for is None else idle.waits_for.id,
    }


def sums_record(sums: Mapping[Cause, int]) -> Record:
    """Return idle ticks by cause as a record."""
    return {cause.value: ticks for cause, ticks in sums.items()}
