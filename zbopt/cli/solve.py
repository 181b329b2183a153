"""``zbopt solve``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from zbopt.cli import out
from zbopt.cli.flags import JsonFlag, OutputFlag, ProblemFlags, SearchFlags, takes
from zbopt.cli.problem import Problem, problem_of
from zbopt.cli.progress import ProgressLine
from zbopt.instance import Instance
from zbopt.portfolio import solve
from zbopt.report.gantt import gantt
from zbopt.report.page import answer, asked
from zbopt.report.record import solve_record
from zbopt.result import Result
from zbopt.schedule import write_schedule

INFEASIBLE = 1


@takes(ProblemFlags, SearchFlags)
def solve_command(problem: ProblemFlags, search: SearchFlags, output: OutputFlag = None, json: JsonFlag = False) -> int:
    """Find the best schedule of one training step, and prove how good it is.

    Example: zbopt solve --stages 4 --micro 8 --mem-limit 6

    Ctrl-C ends the search and shows the best schedule so far.
    """
    asked_for = problem_of(problem)
    if output is not None:
        require_writable(output)
    result = search_for(asked_for.instance, search)
    if output is not None and result.schedule is not None:
        write_schedule(result.schedule, output)
    if result.interrupted:
        out.say(
            "zbopt: interrupted: best schedule so far" if result.schedule else "zbopt: interrupted: no schedule yet"
        )
    if json:
        out.record(solve_record(result))
    else:
        out.page(solve_page(asked_for, result, output))
    if result.infeasible is None:
        return 0
    out.say(f"zbopt: infeasible: {result.infeasible}" + (f"; {output} was not written" if output else ""))
    return INFEASIBLE


def search_for(instance: Instance, search: SearchFlags) -> Result:
    """Solve with live progress on stderr."""
    with ProgressLine() as progress:
        return solve(
            instance,
            time_limit_s=search.time_limit,
            workers=search.workers,
            seed=search.seed,
            deterministic=search.deterministic,
            on_progress=progress,
        )


def solve_page(problem: Problem, result: Result, output: Path | None) -> Sequence[str | Text]:
    """All that ``solve`` prints."""
    width = out.width()
    lines: list[str | Text] = [*asked(problem.instance, problem.notes, width), "", *answer(result, width)]
    if result.schedule is not None:
        if output is not None:
            lines.append(f"  {'written to':20}{output}")
        lines += ["", *gantt(result.schedule, width, coloured=out.coloured())]
    return lines


def require_writable(path: Path) -> None:
    """Refuse an output that could not be written, before the search and not after it.

    Raises:
        ValueError: The path is a directory, lies in none, or may not be written.
    """
    folder = path.parent
    if path.is_dir():
        raise ValueError(f"-o {path}: is a directory; give the path of a file in it")
    if not folder.is_dir():
        raise ValueError(f"-o {path}: there is no directory {folder}; make it, or give another path")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"-o {path}: may not be written; give another path")
