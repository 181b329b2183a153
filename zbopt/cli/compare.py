"""``zbopt compare``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from zbopt.analysis.metrics import Figures, figures
from zbopt.cli import out
from zbopt.cli.auto import best_of, placements_page, placements_record
from zbopt.cli.compare_files import compare_files
from zbopt.cli.flag_records import takes
from zbopt.cli.flags import JsonFlag, ProblemFlags, SearchFlags
from zbopt.cli.placements import AUTO
from zbopt.cli.problem import Problem, placed_problems, problem_of
from zbopt.cli.solve import INFEASIBLE, search_each
from zbopt.graph.memory import static_memory, taken_by_forward
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.portfolio.result import Result
from zbopt.problem.instance import Instance, read_document
from zbopt.problem.schedule import Schedule, Status
from zbopt.reports.page import asked, bound_rows, lines_of
from zbopt.reports.record import Record, figures_record, tick_record
from zbopt.reports.words import amount_text, percent, table

OPTIMUM, UNPROVED = "optimum", "best found"
AUTOMATIC = "zb-auto"
AT_THE_CAP = (AUTOMATIC, "v-auto", "interleaved-auto", "list")
"""Heuristics that plan for a cap; the others have the memory that their definition gives them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One schedule beside the cap. Without figures, ``reason`` says why it does not exist.

    ``proved`` is ``False`` where the row of the optimum has only the best schedule that was found.
    """

    schedule: str
    figures: Figures | None
    fits: bool | None
    reason: str | None = None
    replicas: int = 1
    proved: bool = True

    @property
    def name(self) -> str:
        """What the page calls it."""
        return self.schedule if self.proved else self.schedule.replace(OPTIMUM, UNPROVED)


@takes(ProblemFlags, SearchFlags)
def compare_command(
    problem: ProblemFlags,
    search: SearchFlags,
    others: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Two or more schedule files, the first in the place of INSTANCE: compare these."
        ),
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Set the known schedules beside the optimum: time, bubbles, memory, and whether they fit the cap.

    With two or more schedule files: where each parts from the first, and what that costs.

    Example: zbopt compare --stages 4 --micro 8 --mem-limit 6

    Example: zbopt compare before.json after.json
    """
    if others:
        return compare_files(_files(problem, others), json)
    if problem.instance is not None and _is_schedule(problem.instance):
        raise ValueError(f"{problem.instance}: is a schedule; give a second one to compare it with, or an instance")
    asked_for = {"": problem_of(problem)} if problem.placement != AUTO else placed_problems(problem)
    results = search_each(asked_for, search)
    rows = [row for name, result in results.items() for row in rows_of(name, result)]
    best = best_of(results)
    result = results[best]
    if any(each.interrupted for each in results.values()):
        out.say(f"zbopt: interrupted: {UNPROVED} is the best schedule so far")
    if json:
        known = compare_record(result, rows)
        out.record(known if len(results) == 1 else known | placements_record(results))
    else:
        shown = compare_page(asked_for[best], result, rows)
        out.page(shown if len(results) == 1 else [*shown, "", *placements_page(results, out.width())])
    if result.infeasible is None:
        return 0
    out.say(f"zbopt: infeasible: {result.infeasible}")
    return INFEASIBLE


def _files(problem: ProblemFlags, others: list[Path]) -> list[Path]:
    """The schedule files of the call, which flags of a problem mean nothing to."""
    given = problem.given()
    if problem.instance is None or given != ["instance"]:
        name = next(name for name in given if name != "instance").replace("_", "-")
        raise ValueError(f"--{name} beside {len(others) + 1} schedule files: each holds its own instance; leave it out")
    return [problem.instance, *others]


def _is_schedule(file: Path) -> bool:
    document = read_document(file)
    return isinstance(document, dict) and str(document.get("schema", "")).startswith("zbopt.schedule")


def rows_of(placement: str, result: Result) -> Iterator[Row]:
    """The rows of one placement. Of several, those that are not defined for it are left out and names say which."""
    for made in (*heuristic_rows(result.instance), optimum_row(result)):
        found = replace(made, replicas=result.instance.replicas)
        if not placement:
            yield found
        elif found.figures is not None or found.schedule == OPTIMUM:
            yield replace(found, schedule=f"{placement}: {found.schedule}")


def heuristic_rows(instance: Instance) -> Iterator[Row]:
    """A row for each heuristic, made without the cap and held against it; the automatic one with 1p and 2p."""
    free = instance.model_copy(update={"memory_cap": None})
    for name, heuristic in HEURISTICS.items():
        if name == AUTOMATIC:
            for times in (1, 2):
                yield row(f"zb-{times}p", partial(heuristic, _with_cap(instance, times * instance.stages)), instance)
        else:
            yield row(name, partial(heuristic, instance if name in AT_THE_CAP else free), instance)


def _with_cap(instance: Instance, forwards: int) -> Instance:
    """The instance with room for ``forwards`` whole forwards on each stage, beside what it always holds."""
    caps = [
        static_memory(instance, stage)
        + forwards * sum((taken_by_forward(instance, v) for v in instance.virtual_stages_of(stage)), Fraction(0))
        for stage in range(instance.stages)
    ]
    return instance.model_copy(update={"memory_cap": tuple(caps)})


def row(name: str, make: Callable[[], Schedule], instance: Instance) -> Row:
    """The row of one schedule, or the reason why there is none."""
    try:
        known = figures(make())
    except (CannotFitError, NotApplicableError) as reason:
        return Row(name, None, None, str(reason).removeprefix(f"{name}: ").removeprefix(f"{AUTOMATIC}: "))
    caps = instance.memory_cap
    return Row(name, known, caps is None or all(p <= c for p, c in zip(known.peak_memory, caps, strict=True)))


def optimum_row(result: Result) -> Row:
    """The row of the best schedule found."""
    if result.schedule is None:
        return Row(OPTIMUM, None, None, str(result.infeasible or "no schedule was found in time; raise --time-limit"))
    return Row(OPTIMUM, figures(result.schedule), fits=True, proved=result.status is Status.OPTIMAL)


def compare_record(result: Result, rows: list[Row]) -> Record:
    """What ``zbopt compare --json`` prints."""
    return {
        **tick_record(result.instance),
        "objective": result.instance.objective.value,
        "status": result.status.value,
        "lower_bound": result.bound.value,
        "proved_by": result.bound.proved_by,
        "interrupted": result.interrupted,
        "rows": [
            {
                "schedule": r.schedule,
                **figures_record(r.figures),
                "fits": r.fits,
                "parameters_held": r.replicas,
                "reason": r.reason,
            }
            for r in rows
        ],
        "instance": result.instance.model_dump(mode="json", exclude_none=True),
    }


def compare_page(problem: Problem, result: Result, rows: list[Row]) -> Iterator[str]:
    """All that ``zbopt compare`` prints."""
    width = out.width()
    yield from asked(problem.instance, problem.notes, width)
    yield ""
    several = any(r.replicas != 1 for r in rows)
    period = problem.instance.iterations > 1
    known = [row for row in rows if row.figures is not None]
    yield from table([_head(several, period), *(_cells(row, several, period) for row in known)])
    yield from _left_out(rows, width)
    yield ""
    proved = "proved" if result.status is Status.OPTIMAL else f"not proved; in its place stands the {UNPROVED}"
    yield f"{OPTIMUM}: {result.status.value if result.schedule is None else proved}"
    yield from lines_of(bound_rows(result), width)


def _head(several: bool, period: bool) -> tuple[str, ...]:
    head = ("schedule", "makespan", "max span", "bubble/makespan", "bubble/span", "peak", "fits")
    return (*head[:3], *(("period",) if period else ()), *head[3:], *(("params",) if several else ()))


def _cells(row: Row, several: bool, period: bool) -> tuple[str, ...]:
    known = row.figures
    assert known is not None, "rows without figures are not in the table"
    return (
        row.name,
        str(known.makespan),
        str(known.max_stage_span),
        *((str(known.period),) if period else ()),
        percent(known.bubble_over_makespan),
        percent(known.bubble_over_stage_span),
        amount_text(max(known.peak_memory)),
        "yes" if row.fits else "no",
        *((f"{row.replicas}x",) if several else ()),
    )


def _left_out(rows: Sequence[Row], width: int) -> Iterator[str]:
    """The schedules that are not in the table, those of one reason together."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.reason is not None:
            names.setdefault(row.reason, []).append(row.schedule)
    if names:
        yield ""
        yield "not in the table:"
    for reason, schedules in names.items():
        text = f"{', '.join(schedules)}: {reason}"
        yield from wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
