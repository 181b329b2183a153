"""Command ``zbopt compare FILE1 FILE2``: schedules from files, each compared with the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zbopt.analysis.difference import Divergence, Parting, divergences
from zbopt.analysis.idle import Cause, Explanation, Idle, explain
from zbopt.analysis.metrics import Figures, figures
from zbopt.cli import out
from zbopt.cli.check import INVALID, CheckedFile, read_checked
from zbopt.cli.distance import idle_interval_text, parting_record, parting_text
from zbopt.problem.instance import Instance
from zbopt.reports.explain import sums_record
from zbopt.reports.page import lines_of
from zbopt.reports.record import Record, figures_record, tick_record
from zbopt.reports.words import amount_text, percent, runs_text, table, value_text

_MOST_STAGES = 16
"""Largest number of stages whose first difference is printed. Not measured; chosen to fit one screen."""


@dataclass(frozen=True, slots=True)
class ComparedFile:
    """Hold the schedule of a file, its figures and the causes of its idle time."""

    checked: CheckedFile
    figures: Figures
    explained: Explanation

    @property
    def instance(self) -> Instance:
        """Return the instance of the schedule."""
        return self.checked.schedule.instance


def compare_files(files: Sequence[Path], json: bool) -> int:
    """Print how each schedule differs from the first and what that costs, and return the exit code."""
    compared = [_read(file) for file in files]
    if json:
        out.record(_record(compared))
    else:
        out.page(_page(compared))
    for checked in (each.checked for each in compared):
        if not checked.valid:
            code, message = checked.violations[0]
            out.say(f"zbopt: {checked.file}: invalid: {code}: {message}; see zbopt validate {checked.file}")
    return 0 if all(each.checked.valid for each in compared) else INVALID


def _read(file: Path) -> ComparedFile:
    checked = read_checked(file)
    return ComparedFile(checked, figures(checked.schedule), explain(checked.schedule))


def _page(compared: Sequence[ComparedFile]) -> Iterator[str]:
    """Yield the lines that ``zbopt compare FILE1 FILE2`` prints."""
    width = out.width()
    yield "; ".join(f"{number} is {each.checked.file}" for number, each in enumerate(compared, 1))
    yield from table(_figures_table(compared))
    for number, other in enumerate(compared[1:], 2):
        yield ""
        yield f"{number} against 1:"
        yield from lines_of(_difference_lines(compared[0], other, number), width)


def _figures_table(compared: Sequence[ComparedFile]) -> list[list[str]]:
    """Return a table with a column for each schedule and a row for each figure; causes that none has are left out."""
    head = ["", *(str(number) for number, _ in enumerate(compared, 1))]
    rows = [
        ["valid", *("yes" if s.checked.valid else "no" for s in compared)],
        ["makespan", *(str(s.figures.makespan) for s in compared)],
        ["largest stage span", *(str(s.figures.max_stage_span) for s in compared)],
        ["bubble/makespan", *(percent(s.figures.bubble_over_makespan) for s in compared)],
        ["bubble/span", *(percent(s.figures.bubble_over_stage_span) for s in compared)],
        ["largest peak memory", *(amount_text(max(s.figures.peak_memory)) for s in compared)],
    ]
    sums = [s.explained.by_cause() for s in compared]
    rows.append(["idle ticks", *(str(sum(each.values())) for each in sums)])
    rows += [
        [f"  {cause.value}", *(str(each[cause]) for each in sums)] for cause in Cause if any(e[cause] for e in sums)
    ]
    return [head, *rows]


def _difference_lines(first: ComparedFile, second: ComparedFile, number: int) -> Iterator[tuple[str, str]]:
    """Yield labelled lines on how the second schedule, the one with this number, differs from the first."""
    fields = _other_fields(first.instance, second.instance)
    if fields:
        values = "; ".join(f"{name} {a} and {b}" for name, a, b in fields)
        yield "instances", f"differ: {values}"
    by_stage = divergences(first.checked.schedule, second.checked.schedule)
    found = [d for d in by_stage if d is not None]
    if not found:
        yield "events", "the same ops at the same times"
        return
    yield "order", _order_text(found, len(by_stage))
    yield _first_to_part(found, number)
    for d in found[:_MOST_STAGES]:
        yield f"stage {d.stage}", parting_text(d, "in 1", f"in {number}").split(" parts ", 1)[1]
    if len(found) > _MOST_STAGES:
        yield "", f"and {len(found) - _MOST_STAGES} more stages; --json lists them"
    yield from _cost_lines(first, second, number)


def _order_text(found: Sequence[Divergence], stages: int) -> str:
    """Say on how many of all ``stages`` the order differs, and on how many only the times."""
    orders = sum(d.parting is Parting.ORDER for d in found)
    times = len(found) - orders
    text = f"another on {orders} of {stages} stages" if orders else "the same on every stage"
    if not times:
        return text
    return f"{text}; {times} {'more have' if orders else 'have'} the same order at other times"


def _first_to_part(found: Sequence[Divergence], number: int) -> tuple[str, str]:
    """Return a labelled line on the earliest difference of order, or of times where all orders are the same."""
    orders = [d for d in found if d.parting is Parting.ORDER]
    label = "first to part" if orders else "first at other times"
    earliest = min(orders or found, key=lambda d: (d.tick, d.stage))
    return label, parting_text(earliest, "in 1", f"in {number}")


def _cost_lines(first: ComparedFile, second: ComparedFile, number: int) -> Iterator[tuple[str, str]]:
    """Yield labelled lines on what the second costs more or less, and on the first wait that only one of them has."""
    pairs = [
        ("makespan", first.figures.makespan, second.figures.makespan),
        ("largest stage span", first.figures.max_stage_span, second.figures.max_stage_span),
    ]
    costs = [f"{name} {b - a:+d} ticks ({_share(b - a, a)})" for name, a, b in pairs]
    before, after = first.explained.by_cause(), second.explained.by_cause()
    idle = sum(after.values()) - sum(before.values())
    changes = [f"{cause.value} {after[cause] - before[cause]:+d}" for cause in Cause if after[cause] != before[cause]]
    costs.append(f"idle {idle:+d} ticks" + (f" ({', '.join(changes)})" if changes else ""))
    yield "cost", "; ".join(costs)
    peaks = list(zip(first.figures.peak_memory, second.figures.peak_memory, strict=False))
    if any(a != b for a, b in peaks):
        yield "peak memory", f"by stage {runs_text(_signed(b - a) for a, b in peaks)}"
    for waiting, other, name in ((second, first, number), (first, second, 1)):
        wait = _first_wait_without(waiting, other)
        if wait is not None:
            yield f"only {name} waits", f"first: {idle_interval_text(wait)}"


_ENDS = (Cause.FILL, Cause.DRAIN)


def _first_wait_without(waiting: ComparedFile, other: ComparedFile) -> Idle | None:
    """Return the first wait between two ops that ``other`` does not have; ``None`` where there is none."""
    in_other = {(idle.stage, idle.start, idle.end) for idle in other.explained.idle}
    for idle in waiting.explained.idle:
        if idle.cause not in _ENDS and (idle.stage, idle.start, idle.end) not in in_other:
            return idle
    return None


def _signed(value: object) -> str:
    """Return a number as text with its sign; 0 has none."""
    text = str(value)
    return text if text.startswith("-") or text == "0" else f"+{text}"


def _share(change: int, of: int) -> str:
    """Return a change in percent."""
    return "none" if not of else f"{100 * change / of:+.2f} %"


def _other_fields(first: Instance, second: Instance) -> list[tuple[str, str, str]]:
    """Return each field in which the instances differ, with both values; names do not count."""
    found = []
    for name in Instance.model_fields:
        a, b = getattr(first, name), getattr(second, name)
        if a != b and name not in ("name", "rounding_ticks"):
            found.append((name, value_text(a), value_text(b)))
    return found


def _record(compared: Sequence[ComparedFile]) -> Record:
    """Return what ``zbopt compare FILE1 FILE2 --json`` prints."""
    return {
        "schedules": [
            {
                "file": str(s.checked.file),
                "valid": s.checked.valid,
                **figures_record(s.figures),
                "idle": sums_record(s.explained.by_cause()),
                "idle_by_stage": [sums_record(sums) for sums in s.explained.by_stage()],
                **tick_record(s.instance),
            }
            for s in compared
        ],
        "differences": [_difference_record(compared[0], other) for other in compared[1:]],
    }


def _difference_record(first: ComparedFile, second: ComparedFile) -> Record:
    found: list[Divergence] = [d for d in divergences(first.checked.schedule, second.checked.schedule) if d is not None]
    return {
        "first": str(first.checked.file),
        "second": str(second.checked.file),
        "instance_fields": [name for name, _, _ in _other_fields(first.instance, second.instance)],
        "stages": [parting_record(d) for d in found],
        "makespan": second.figures.makespan - first.figures.makespan,
        "max_stage_span": second.figures.max_stage_span - first.figures.max_stage_span,
    }
