"""Commands ``zbopt validate`` and ``zbopt show``: what a schedule file holds, and whether it can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from zbopt.analysis.metrics import figures
from zbopt.cli import out
from zbopt.cli.flags import JsonFlag
from zbopt.cli.window import FromFlag, ToFlag, window_of
from zbopt.formats.event_list import event_list_from_document
from zbopt.portfolio.known import best_known
from zbopt.problem.bound import Bound
from zbopt.problem.instance import number, read_document
from zbopt.problem.numbers import counted
from zbopt.problem.schedule import Schedule, schedule_from_document
from zbopt.replay.trace import SOURCE, trace_from_document
from zbopt.reports.gantt import gantt
from zbopt.reports.page import asked, distance_rows, figures_rows, lines_of
from zbopt.reports.record import Record, distance_record, figures_record, tick_record
from zbopt.validator import Code, Verdict, validate

INVALID = 1
MOST_OF_A_CODE = 20
"""Violations of one code that are printed; the others are only counted. Not measured; chosen to fill one screen."""

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A schedule file of zbopt, or a plain list of events (.json).")
]


def validate_command(file: FileArgument, json: JsonFlag = False) -> int:
    """Check a schedule against every rule, and say how far it is from the best schedule.

    Example: zbopt validate schedule.json
    """
    checked = read_checked(file)
    best = best_known(checked.schedule) if checked.valid and not observed(checked.schedule) else None
    if json:
        out.record(validate_record(checked, best))
    else:
        out.page(validate_page(checked, best))
    return 0 if checked.valid else INVALID


def show_command(file: FileArgument, begin: FromFlag = None, end: ToFlag = None) -> int:
    """Draw a schedule, and print its figures.

    Example: zbopt show schedule.json

    A part of a long one: zbopt show schedule.json --from 10 --to 20
    """
    checked = read_checked(file)
    out.page(show_page(checked, window_of(checked.schedule, begin, end)))
    return 0 if checked.valid else INVALID


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """Hold the schedule of a file, the validator's verdict, and all violations.

    Attributes:
        file: The file.
        schedule: The schedule.
        verdict: The validator's verdict.
        violations: Code and message of each violation, also of those that only a list of events can have.
        ticks_per_unit: Ticks that one unit of the file's times has: more than 1 where the times are decimals.
        notes: What zbopt assumed about a list of events that its writer may not have meant.
    """

    file: Path
    schedule: Schedule
    verdict: Verdict
    violations: tuple[tuple[str, str], ...]
    ticks_per_unit: int = 1
    notes: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Tell whether nothing is violated."""
        return not self.violations

    @property
    def counts(self) -> dict[str, int]:
        """Count the violations of each code."""
        return dict(Counter(code for code, _ in self.violations))

    def first_violations(self) -> Iterator[tuple[str, str]]:
        """Yield the first violations of each code: a schedule that lacks a stage may have millions."""
        seen: Counter[str] = Counter()
        for code, message in self.violations:
            seen[code] += 1
            if seen[code] <= MOST_OF_A_CODE:
                yield code, message


def read_checked(file: Path) -> CheckedFile:
    """Read and check the schedule in ``file``: a schedule file, a trace, or a plain list of events.

    Raises:
        ValueError: The file cannot be read, or holds none of these.
    """
    document = read_document(file)
    if isinstance(document, dict):
        if str(document.get("schema", "")).startswith("zbopt.instance") or "forward_ticks" in document:
            raise ValueError(f"{file}: is an instance, not a schedule; make one with zbopt solve {file} -o FILE")
        if document.get("schema") == "zbopt.trace/1":
            return _check(file, trace_from_document(document, str(file)).observed())
        if "schema" in document:
            return _check(file, schedule_from_document(document, str(file)))
    listed = event_list_from_document(document, str(file))
    faults = tuple((str(fault.code), fault.message) for fault in listed.faults)
    checked = _check(file, listed.schedule, faults)
    return replace(checked, ticks_per_unit=listed.ticks_per_unit, notes=listed.notes)


def _check(file: Path, schedule: Schedule, faults: Sequence[tuple[str, str]] = ()) -> CheckedFile:
    """Validate ``schedule``; ``faults`` are violations that were found while its file was read."""
    verdict = validate(schedule.instance, schedule)
    rules = (v for v in verdict.violations if not (v.code is Code.WRONG_DURATION and observed(schedule)))
    violations = [*faults, *((violation.code.value, violation.message) for violation in rules)]
    return CheckedFile(file, schedule, verdict, tuple(dict.fromkeys(violations)))


def observed(schedule: Schedule) -> bool:
    """Tell whether the schedule was observed in a run: then its durations may be any, and no bound holds for it."""
    return schedule.provenance.source == SOURCE


def validate_record(checked: CheckedFile, best: Bound | None) -> Record:
    """Return what ``zbopt validate --json`` prints."""
    schedule, known = checked.schedule, figures(checked.schedule)
    value = known.value(schedule.instance.objective)
    return {
        "valid": checked.valid,
        "violations": [{"code": code, "message": message} for code, message in checked.first_violations()],
        "violation_counts": checked.counts,
        "notes": list(checked.notes),
        "objective": schedule.instance.objective.value,
        "value": value,
        **figures_record(known),
        "peak_memory": [number(peak) for peak in known.peak_memory],  # exact, as ``zbopt ledger --json`` has it
        "busy": sum(known.busy_ticks),
        "unfinished_activations": checked.verdict.unfinished_activations,
        **distance_record(value, best),
        **tick_record(schedule.instance),
        "ticks_per_unit": checked.ticks_per_unit,
    }


def validate_page(checked: CheckedFile, best: Bound | None) -> Iterator[str]:
    """Yield the lines that ``zbopt validate`` prints."""
    yield _title(checked)
    yield from (f"  {code}: {message}" for code, message in checked.first_violations())
    for code, count in checked.counts.items():
        if count > MOST_OF_A_CODE:
            yield f"  {code}: {count - MOST_OF_A_CODE} more"
    yield from lines_of(_figures_lines(checked, best), out.width())


def _figures_lines(checked: CheckedFile, best: Bound | None) -> Iterator[tuple[str, str]]:
    instance, known = checked.schedule.instance, figures(checked.schedule)
    yield from (("note", note) for note in checked.notes)
    if checked.ticks_per_unit > 1:
        yield "tick", f"{checked.ticks_per_unit} ticks are one unit of the file's times"
    yield from figures_rows(instance, known)
    yield "busy time", f"{sum(known.busy_ticks)} of {known.makespan * instance.stages} ticks, all stages together"
    yield "unfinished", f"{checked.verdict.unfinished_activations} activations"
    if best is not None:
        yield from distance_rows(instance, known.value(instance.objective), best)


def show_page(checked: CheckedFile, window: tuple[int, int] | None = None) -> Iterator[str | Text]:
    """Yield the lines that ``zbopt show`` prints."""
    width = out.width()
    yield _title(checked) + ("" if checked.valid else f"; see zbopt validate {checked.file}")
    yield from asked(checked.schedule.instance, (), width, "instance")
    yield "schedule:"
    yield from lines_of(_figures_lines(checked, None), width)
    yield ""
    if window is not None:
        yield f"ticks {window[0]} to {window[1]}:"
    yield from gantt(checked.schedule, width, coloured=out.coloured(), window=window)


def _title(checked: CheckedFile) -> str:
    verdict = "valid" if checked.valid else f"invalid, {counted(len(checked.violations), 'violation')}"
    return f"{checked.file}: {verdict}"
