"""Command ``zbopt solve``: find the best schedule of an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zbopt.cli import out
from zbopt.cli.auto import best_of, placements_page, placements_record
from zbopt.cli.ctrl_c import ignored
from zbopt.cli.flag_records import takes
from zbopt.cli.flags import EngineFlag, JsonFlag, OutputFlag, ProblemFlags, SearchFlags
from zbopt.cli.placements import AUTO
from zbopt.cli.problem import Problem, placed_problems, problem_of
from zbopt.cli.progress import ProgressLine
from zbopt.portfolio.result import Result
from zbopt.portfolio.run import solve
from zbopt.problem.documents import require_writable
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Engine, write_schedule
from zbopt.reports.record import solve_record

if TYPE_CHECKING:
    from rich.text import Text

INFEASIBLE = 1
"""Exit code where no schedule exists."""
NOT_WRITTEN = 2
"""Exit code where there is no schedule to write, or it could not be written."""


@takes(ProblemFlags, SearchFlags)
def solve_command(
    problem: ProblemFlags,
    search: SearchFlags,
    engine: EngineFlag = Engine.CP_SAT,
    output: OutputFlag = None,
    json: JsonFlag = False,
) -> int:
    """Find the best schedule of one training step, and prove how good it is.

    Example: zbopt solve --stages 4 --micro 8 --mem-limit 6

    Example: zbopt solve --stages 4 --micro 8 --mem-limit 4 --placement auto

    Ctrl-C ends the search and shows the best schedule so far.
    """
    problems = {"": problem_of(problem)} if problem.placement != AUTO else placed_problems(problem)
    if output is not None:
        require_writable(output, problem.instance)
    results = search_each(problems, search, engine)
    best = best_of(results)
    result = results[best]
    if result.interrupted:
        out.say(f"zbopt: interrupted: {'no schedule yet' if result.schedule is None else 'best schedule so far'}")
    with ignored():
        written = None if output is None else _write(result, output)
        if json:
            out.record(solve_record(result) if len(results) == 1 else placements_record(results))
        else:
            lines = solve_page(problems[best], result, output if written else None)
            out.page(lines if len(results) == 1 else [*lines, "", *placements_page(results, out.width())])
    if result.infeasible is not None:
        out.say(f"zbopt: infeasible: {result.infeasible}" + (f"; {output} was not written" if output else ""))
        return INFEASIBLE
    return NOT_WRITTEN if written is False else 0


def _write(result: Result, output: Path) -> bool:
    """Write the schedule, if there is one, and return whether it was written.

    An error is only reported: the page with the schedule is still to be printed.
    """
    if result.schedule is None:
        if result.infeasible is None:
            out.say(f"zbopt: no schedule was found, so {output} was not written; raise --time-limit")
        return False
    try:
        write_schedule(result.schedule, output)
    except OSError as error:
        out.say(f"zbopt: -o {output}: {(error.strerror or str(error)).lower()}; the schedule is only printed")
        return False
    return True


def search_each(
    problems: Mapping[str, Problem], search: SearchFlags, engine: Engine = Engine.CP_SAT
) -> dict[str, Result]:
    """Solve each problem with an equal share of the time limit; after Ctrl-C no further one is begun."""
    share = replace(search, time_limit=search.time_limit / len(problems))
    results: dict[str, Result] = {}
    for name, problem in problems.items():
        results[name] = search_for(problem.instance, share, engine)
        if results[name].interrupted:
            break
    return results


def search_for(instance: Instance, search: SearchFlags, engine: Engine = Engine.CP_SAT) -> Result:
    """Solve an instance, and show progress on stderr."""
    with ProgressLine() as progress:
        return solve(
            instance,
            time_limit_s=search.time_limit,
            workers=search.workers,
            seed=search.seed,
            deterministic=search.deterministic,
            engine=engine,
            on_progress=progress,
        )


def solve_page(problem: Problem, result: Result, output: Path | None) -> Sequence[str | Text]:
    """Return the lines that ``zbopt solve`` prints."""
    from zbopt.reports.gantt import gantt  # imported late: it takes a tenth of a start, and --json does not need it
    from zbopt.reports.page import answer, asked

    width = out.width()
    lines: list[str | Text] = [*asked(problem.instance, problem.notes, width), "", *answer(result, width)]
    if result.schedule is not None:
        if output is not None:
            lines.append(f"  {'written to':20}{output}")
        lines += ["", *gantt(result.schedule, width, coloured=out.coloured())]
    return lines
