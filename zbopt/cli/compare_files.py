"""``zbopt compare FILE1 FILE2``: schedules from files, each beside the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zbopt.analysis.difference import Divergence, Parting, divergences
from zbopt.analysis.idle import Cause, Explanation, explain
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
"""Of more stages, only the first to part are listed."""


@dataclass(frozen=True, slots=True)
class ComparedFile:
    """A file's schedule with its figures and causes."""

    checked: CheckedFile
    figures: Figures
    explained: Explanation

    @property
    def instance(self) -> Instance:
        """Of the schedule."""
        return self.checked.schedule.instance


def compare_files(files: Sequence[Path], json: bool) -> int:
    """Print how each schedule differs from the first, and what that costs."""
    sides = [_side(file) for file in files]
    if json:
        out.record(_record(sides))
    else:
        out.page(_page(sides))
    for side in sides:
        if not side.checked.valid:
            code, message = side.checked.violations[0]
            out.say(f"zbopt: {side.checked.file}: invalid: {code}: {message}; see zbopt validate {side.checked.file}")
    return 0 if all(side.checked.valid for side in sides) else INVALID


def _side(file: Path) -> ComparedFile:
    checked = read_checked(file)
    return ComparedFile(checked, figures(checked.schedule), explain(checked.schedule))


def _page(sides: Sequence[ComparedFile]) -> Iterator[str]:
    width = out.width()
    yield f"1 is {sides[0].checked.file}" + "".join(f"; {i} is {s.checked.file}" for i, s in enumerate(sides[1:], 2))
    yield from table(_figures_rows(sides))
    for number, side in enumerate(sides[1:], 2):
        yield ""
        yield f"{number} against 1:"
        yield from lines_of(_difference_rows(sides[0], side, number), width)


def _figures_rows(sides: Sequence[ComparedFile]) -> list[list[str]]:
    """A column a schedule, a row a figure; causes that no schedule has are left out."""
    head = ["", *(str(number) for number, _ in enumerate(sides, 1))]
    rows = [
        ["valid", *("yes" if s.checked.valid else "no" for s in sides)],
        ["makespan", *(str(s.figures.makespan) for s in sides)],
        ["largest stage span", *(str(s.figures.max_stage_span) for s in sides)],
        ["bubble/makespan", *(percent(s.figures.bubble_over_makespan) for s in sides)],
        ["bubble/span", *(percent(s.figures.bubble_over_stage_span) for s in sides)],
        ["largest peak memory", *(amount_text(max(s.figures.peak_memory)) for s in sides)],
    ]
    sums = [s.explained.by_cause() for s in sides]
    rows.append(["idle ticks", *(str(sum(each.values())) for each in sums)])
    rows += [
        [f"  {cause.value}", *(str(each[cause]) for each in sums)] for cause in Cause if any(e[cause] for e in sums)
    ]
    return [head, *rows]


def _difference_rows(first: ComparedFile, second: ComparedFile, number: int) -> Iterator[tuple[str, str]]:
    fields = _other_fields(first.instance, second.instance)
    if fields:
        shown = "; ".join(f"{name} {a} and {b}" for name, a, b in fields)
        yield "instances", f"differ: {shown}"
    found = divergences(first.checked.schedule, second.checked.schedule)
    parted = [d for d in found if d is not None]
    if not parted:
        yield "events", "the same ops at the same times"
        return
    orders = sum(d.parting is Parting.ORDER for d in parted)
    times = len(parted) - orders
    more = f"; {times} {'more have' if orders else 'have'} the same order at other times" if times else ""
    yield "order", (f"another on {orders} of {len(found)} stages" if orders else "the same on every stage") + more
    for label, parting in (("first to part", Parting.ORDER), ("first at other times", Parting.TIME)):
        of_kind = [d for d in parted if d.parting is parting]
        if of_kind and (parting is Parting.ORDER or not orders):
            yield label, parting_text(min(of_kind, key=lambda d: (d.tick, d.stage)), "in 1", f"in {number}")
    for d in parted[:_MOST_STAGES]:
        yield f"stage {d.stage}", parting_text(d, "in 1", f"in {number}").split(" parts ", 1)[1]
    if len(parted) > _MOST_STAGES:
        yield "", f"and {len(parted) - _MOST_STAGES} more stages; --json lists them"
    yield from _cost_rows(first, second, number)


def _cost_rows(first: ComparedFile, second: ComparedFile, number: int) -> Iterator[tuple[str, str]]:
    """What the second costs more or less, and the first wait that only one of the two has."""
    pairs = [
        ("makespan", first.figures.makespan, second.figures.makespan),
        ("largest stage span", first.figures.max_stage_span, second.figures.max_stage_span),
    ]
    costs = [f"{name} {b - a:+d} ticks ({_share(b - a, a)})" for name, a, b in pairs]
    before, after = first.explained.by_cause(), second.explained.by_cause()
    idle = sum(after.values()) - sum(before.values())
    parts = [f"{cause.value} {after[cause] - before[cause]:+d}" for cause in Cause if after[cause] != before[cause]]
    costs.append(f"idle {idle:+d} ticks" + (f" ({', '.join(parts)})" if parts else ""))
    yield "cost", "; ".join(costs)
    peaks = list(zip(first.figures.peak_memory, second.figures.peak_memory, strict=False))
    if any(a != b for a, b in peaks):
        yield "peak memory", f"by stage {runs_text(_signed(b - a) for a, b in peaks)}"
    for here, there, name in ((second, first, number), (first, second, 1)):
        own = set(_waits(there))
        wait = next(
            (i for i in here.explained.idle if (i.stage, i.start, i.end) not in own and i.cause not in _ENDS), None
        )
        if wait is not None:
            yield f"only {name} waits", f"first: {idle_interval_text(wait)}"


_ENDS = (Cause.FILL, Cause.DRAIN)


def _waits(side: ComparedFile) -> Iterator[tuple[int, int, int]]:
    yield from ((i.stage, i.start, i.end) for i in side.explained.idle)


def _signed(value: object) -> str:
    text = str(value)
    return text if text.startswith("-") or text == "0" else f"+{text}"


def _share(change: int, of: int) -> str:
    return "none" if not of else f"{100 * change / of:+.2f} %"


def _other_fields(first: Instance, second: Instance) -> list[tuple[str, str, str]]:
    """(field, its value in the first, in the second) where the two instances differ; the name has no meaning."""
    found = []
    for name in Instance.model_fields:
        a, b = getattr(first, name), getattr(second, name)
        if a != b and name not in ("name", "rounding_ticks"):
            found.append((name, value_text(a), value_text(b)))
    return found


def _record(sides: Sequence[ComparedFile]) -> Record:
    """What ``--json`` prints."""
    return {
        "schedules": [
            {
                "file": str(s.checked.file),
                "valid": s.checked.valid,
                **figures_record(s.figures),
                "idle": sums_record(s.explained.by_cause()),
                "idle_by_stage": [sums_record(row) for row in s.explained.by_stage()],
                **tick_record(s.instance),
            }
            for s in sides
        ],
        "differences": [_difference_record(sides[0], side) for side in sides[1:]],
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
