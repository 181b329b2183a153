"""Command ``zbopt compare``: known schedules beside the optimum, or schedule files beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from zbopt.analysis.metrics import Figures, figures
from zbopt.api.comparison import BEST_FOUND, OPTIMUM, keeps_cap, known_schedules
from zbopt.cli import out
from zbopt.cli.auto import best_of, placements_page, placements_record
from zbopt.cli.compare_files import compare_files
from zbopt.cli.flag_records import takes
from zbopt.cli.flags import JsonFlag, ProblemFlags, SearchFlags
from zbopt.cli.placements import AUTO
from zbopt.cli.problem import Problem, placed_problems, problem_of
from zbopt.cli.solve import INFEASIBLE, search_each
from zbopt.portfolio.result import Result
from zbopt.problem.instance import Instance, read_document
from zbopt.problem.schedule import Status
from zbopt.reports.page import asked, bound_rows, lines_of
from zbopt.reports.record import Record, figures_record, tick_record
from zbopt.reports.words import amount_text, percent, table


@dataclass(frozen=True, slots=True)
class ComparedSchedule:
    """Hold one schedule of the table.

    Attributes:
        schedule: Its name.
        figures: Its figures; ``None`` where it does not exist.
        fits: Whether it keeps the memory cap; ``None`` where it does not exist.
        reason: Why it does not exist; ``None`` where it does.
        replicas: How often the placement holds the model's parameters.
        proved: Whether the optimum is one; ``False`` where it is only the best schedule that was found.
    """

    schedule: str
    figures: Figures | None
    fits: bool | None
    reason: str | None = None
    replicas: int = 1
    proved: bool = True

    @property
    def name(self) -> str:
        """Return the name of the schedule on the page."""
        return self.schedule if self.proved else self.schedule.replace(OPTIMUM, BEST_FOUND)


@takes(ProblemFlags, SearchFlags)
def compare_command(
    problem: ProblemFlags,
    search: SearchFlags,
    others: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Two or more schedule files to compare; the first takes the place of INSTANCE."
        ),
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Compare the known schedules with the optimum: time, bubbles, memory, and whether they fit the cap.

    With two or more schedule files: where each differs from the first, and what that costs.

    Example: zbopt compare --stages 4 --micro 8 --mem-limit 6

    Example: zbopt compare before.json after.json
    """
    if others:
        return compare_files(_files(problem, others), json)
    if problem.instance is not None and _is_schedule(problem.instance):
        raise ValueError(f"{problem.instance}: is a schedule; give a second schedule file too, or give an instance")
    problems = {"": problem_of(problem)} if problem.placement != AUTO else placed_problems(problem)
    results = search_each(problems, search)
    compared = [each for name, result in results.items() for each in compared_schedules(name, result)]
    best = best_of(results)
    result = results[best]
    if any(each.interrupted for each in results.values()):
        out.say(f"zbopt: interrupted: {BEST_FOUND} is the best schedule so far")
    if json:
        record = compare_record(result, compared)
        out.record(record if len(results) == 1 else record | placements_record(results))
    else:
        lines = compare_page(problems[best], result, compared)
        out.page(lines if len(results) == 1 else [*lines, "", *placements_page(results, out.width())])
    if result.infeasible is None:
        return 0
    out.say(f"zbopt: infeasible: {result.infeasible}")
    return INFEASIBLE


def _files(problem: ProblemFlags, others: list[Path]) -> list[Path]:
    """Return the schedule files of the call, and refuse flags of a problem beside them."""
    given = problem.given()
    if problem.instance is None or given != ["instance"]:
        name = next(name for name in given if name != "instance").replace("_", "-")
        raise ValueError(f"--{name} with {len(others) + 1} schedule files: each has its own instance; leave it out")
    return [problem.instance, *others]


def _is_schedule(file: Path) -> bool:
    document = read_document(file)
    return isinstance(document, dict) and str(document.get("schema", "")).startswith("zbopt.schedule")


def compared_schedules(placement: str, result: Result) -> Iterator[ComparedSchedule]:
    """Yield the known schedules and the optimum of one placement.

    ``placement`` is its name where several are compared, else ``""``. Of several placements, schedules that are not
    defined for one are left out, and names say which placement a schedule has.
    """
    for made in (*compared_heuristics(result.instance), compared_optimum(result)):
        compared = replace(made, replicas=result.instance.replicas)
        if not placement:
            yield compared
        elif compared.figures is not None or compared.schedule == OPTIMUM:
            yield replace(compared, schedule=f"{placement}: {compared.schedule}")


def compared_heuristics(instance: Instance) -> Iterator[ComparedSchedule]:
    """Yield each known schedule, built without the cap where its definition has none, and checked against it."""
    for name, schedule, reason in known_schedules(instance):
        built = None if schedule is None else figures(schedule)
        yield ComparedSchedule(name, built, None if built is None else keeps_cap(built, instance), reason)


def compared_optimum(result: Result) -> ComparedSchedule:
    """Return the best schedule found, for the table."""
    if result.schedule is None:
        reason = str(result.infeasible or "no schedule was found in time; raise --time-limit")
        return ComparedSchedule(OPTIMUM, None, None, reason)
    return ComparedSchedule(OPTIMUM, figures(result.schedule), fits=True, proved=result.status is Status.OPTIMAL)


def compare_record(result: Result, compared: list[ComparedSchedule]) -> Record:
    """Return what ``zbopt compare --json`` prints."""
    return {
        **tick_record(result.instance),
        "objective": result.instance.objective.value,
        "status": result.status.value,
        "lower_bound": result.bound.value,
        "proved_by": result.bound.proved_by,
        "interrupted": result.interrupted,
        "rows": [
            {
                "schedule": each.schedule,
                **figures_record(each.figures),
                "fits": each.fits,
                "parameters_held": each.replicas,
                "reason": each.reason,
            }
            for each in compared
        ],
        "instance": result.instance.model_dump(mode="json", exclude_none=True),
    }


def compare_page(problem: Problem, result: Result, compared: list[ComparedSchedule]) -> Iterator[str]:
    """Yield the lines that ``zbopt compare`` prints."""
    width = out.width()
    yield from asked(problem.instance, problem.notes, width)
    yield ""
    replicated = any(each.replicas != 1 for each in compared)
    period = problem.instance.iterations > 1
    existing = [each for each in compared if each.figures is not None]
    yield from table([_head(replicated, period), *(_cells(each, replicated, period) for each in existing)])
    yield from _left_out(compared, width)
    yield ""
    proved = "proved" if result.status is Status.OPTIMAL else f"not proved; the table has the {BEST_FOUND}"
    yield f"{OPTIMUM}: {result.status.value if result.schedule is None else proved}"
    yield from lines_of(bound_rows(result), width)


def _head(replicated: bool, period: bool) -> tuple[str, ...]:
    """Return the head of the table, with a column for the period and for copies of the parameters if asked for."""
    head = ("schedule", "makespan", "max span", "bubble/makespan", "bubble/span", "peak", "fits")
    return (*head[:3], *(("period",) if period else ()), *head[3:], *(("params",) if replicated else ()))


def _cells(compared: ComparedSchedule, replicated: bool, period: bool) -> tuple[str, ...]:
    """Return the cells of one schedule, in the columns of ``_head``."""
    known = compared.figures
    assert known is not None, "schedules without figures are not in the table"
    return (
        compared.name,
        str(known.makespan),
        str(known.max_stage_span),
        *((str(known.period),) if period else ()),
        percent(known.bubble_over_makespan),
        percent(known.bubble_over_stage_span),
        amount_text(max(known.peak_memory)),
        "yes" if compared.fits else "no",
        *((f"{compared.replicas}x",) if replicated else ()),
    )


def _left_out(compared: Sequence[ComparedSchedule], width: int) -> Iterator[str]:
    """Yield the schedules that are not in the table, grouped by the reason."""
    names: dict[str, list[str]] = {}
    for each in compared:
        if each.reason is not None:
            names.setdefault(each.reason, []).append(each.schedule)
    if names:
        yield ""
        yield "not in the table:"
    for reason, schedules in names.items():
        text = f"{', '.join(schedules)}: {reason}"
        yield from wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
