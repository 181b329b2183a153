"""``zbopt validate`` and ``zbopt show``: what a schedule file holds, and whether it can run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from zbopt.bounds import lower_bound
from zbopt.cli import out
from zbopt.cli.flags import JsonFlag
from zbopt.instance import Kind, read_document
from zbopt.metrics import figures
from zbopt.portfolio import solve
from zbopt.report.gantt import gantt
from zbopt.report.page import asked, distance_rows, figures_rows, lines_of
from zbopt.report.record import Record, distance_record, figures_record, tick_record
from zbopt.result import Bound
from zbopt.schedule import Schedule, Status, schedule_from_document
from zbopt.validator import Verdict, validate

INVALID = 1
SMALL_TASKS = 64
"""Up to so many events the optimum itself is solved for, if the file does not say what is proved."""
_QUICK_S = 5.0

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A schedule file of zbopt, or a plain list of events (.json).")
]


def validate_command(file: FileArgument, json: JsonFlag = False) -> int:
    """Check a schedule against every rule, and say how far it is from the best.

    Example: zbopt validate schedule.json
    """
    schedule, verdict = read_checked(file)
    best = best_known(schedule) if verdict.valid else None
    if json:
        out.record(validate_record(schedule, verdict, best))
    else:
        out.page(validate_page(file, schedule, verdict, best))
    return 0 if verdict.valid else INVALID


def show_command(file: FileArgument) -> int:
    """Draw a schedule file and its figures.

    Example: zbopt show schedule.json
    """
    schedule, verdict = read_checked(file)
    out.page(show_page(file, schedule, verdict))
    return 0 if verdict.valid else INVALID


def read_checked(file: Path) -> tuple[Schedule, Verdict]:
    """The schedule in ``file``, whichever of the two forms it has, and the validator's verdict on it.

    Raises:
        ValueError: The file cannot be read, or holds neither form.
    """
    document = read_document(file)
    if not isinstance(document, dict):
        raise ValueError(f"{file}: holds a {type(document).__name__}, not a schedule; give an object with events")
    if str(document.get("schema", "")).startswith("zbopt.instance") or "forward_ticks" in document:
        raise ValueError(f"{file}: is an instance, not a schedule; make one with zbopt solve {file} -o FILE")
    if "schema" not in document and "events" in document:
        raise ValueError(f"{file}: X")
    schedule = schedule_from_document(document, str(file))
    return schedule, validate(schedule.instance, schedule)


def best_known(schedule: Schedule) -> Bound:
    """The highest lower bound at hand: the closed arguments, the file's own claim, the optimum of a small instance.

    A claim above the schedule's own value is refuted by it, and counts for nothing.
    """
    instance, said = schedule.instance, schedule.provenance
    value = figures(schedule).value(instance.objective)
    bounds = [lower_bound(instance)]
    if said.lower_bound is not None and said.lower_bound <= value:
        bounds.append(Bound(said.lower_bound, f"{said.proved_by or 'unknown'}, as the file says"))
    best = max(bounds, key=lambda bound: bound.value)
    if best.value < value and len(schedule.events) <= SMALL_TASKS:
        result = solve(instance, time_limit_s=_QUICK_S)
        return result.bound if result.status is Status.OPTIMAL else max(best, result.bound, key=lambda b: b.value)
    return best


def unfinished(schedule: Schedule) -> int:
    """Activations whose forward ran and whose W or BW never did."""
    made, freed = set(), set()
    for event in schedule.events:
        key = (event.iteration, event.virtual_stage, event.microbatch)
        if event.kind is Kind.F:
            made.add(key)
        elif event.kind in (Kind.W, Kind.BW):
            freed.add(key)
    return len(made - freed)


def validate_record(schedule: Schedule, verdict: Verdict, best: Bound | None) -> Record:
    """What ``zbopt validate --json`` prints."""
    known = figures(schedule)
    value = known.value(schedule.instance.objective)
    return {
        "valid": verdict.valid,
        "violations": [{"code": v.code, "message": v.message} for v in verdict.violations],
        "objective": schedule.instance.objective.value,
        "value": value,
        **figures_record(known),
        "busy": sum(known.busy_ticks),
        "unfinished_activations": unfinished(schedule),
        **distance_record(value, best),
        **tick_record(schedule.instance),
    }


def validate_page(file: Path, schedule: Schedule, verdict: Verdict, best: Bound | None) -> Iterator[str]:
    """All that ``zbopt validate`` prints."""
    width = out.width()
    yield _title(file, verdict)
    yield from (f"  {line}" for violation in verdict.violations for line in [f"{violation.code}: {violation.message}"])
    yield from lines_of(_rows(schedule, best), width)


def _rows(schedule: Schedule, best: Bound | None) -> Iterator[tuple[str, str]]:
    instance, known = schedule.instance, figures(schedule)
    yield from figures_rows(instance, known)
    yield "busy time", f"{sum(known.busy_ticks)} of {known.makespan * instance.stages} ticks, all stages together"
    yield "unfinished", f"{unfinished(schedule)} activations"
    if best is not None:
        yield from distance_rows(instance, known.value(instance.objective), best)


def show_page(file: Path, schedule: Schedule, verdict: Verdict) -> Iterator[str | Text]:
    """All that ``zbopt show`` prints."""
    width = out.width()
    yield _title(file, verdict) + ("" if verdict.valid else f"; see zbopt validate {file}")
    yield from asked(schedule.instance, (), width)
    yield "schedule:"
    yield from lines_of(_rows(schedule, None), width)
    yield ""
    yield from gantt(schedule, width, coloured=out.coloured())


def _title(file: Path, verdict: Verdict) -> str:
    count = len(verdict.violations)
    return f"{file}: " + ("valid" if verdict.valid else f"invalid, {count} violation{'s' if count != 1 else ''}")
