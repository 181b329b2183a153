"""Commands ``zbopt plot``, a picture for a paper, and ``zbopt report``, a page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zbopt.cli import out
from zbopt.cli.check import INVALID, CheckedFile, FileArgument, read_checked
from zbopt.cli.window import FromFlag, ToFlag, window_of
from zbopt.portfolio.known import best_known
from zbopt.problem.atomic import write_text
from zbopt.problem.documents import require_writable
from zbopt.reports.figure import save_figure
from zbopt.reports.web import Entry, web_page

PictureFlag = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write: .svg, .png or .pdf.")]
FilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="Schedule files, or plain lists of events (.json).")
]
PageFlag = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write (.html).")]
WidthFlag = Annotated[
    float, typer.Option("--width", metavar="INCHES", help="Width of the picture; the height follows from it.")
]


def plot_command(
    file: FileArgument, output: PictureFlag, begin: FromFlag = None, end: ToFlag = None, width: WidthFlag = 7.2
) -> int:
    r"""Draw a schedule as a picture for a paper. Needs zbopt\[plot].

    Example: zbopt plot schedule.json -o gantt.svg

    A part of it, one column wide: zbopt plot schedule.json -o gantt.pdf --width 3.5 --to 20
    """
    checked = read_checked(file)
    require_writable(output, file)
    save_figure(checked.schedule, output, window_of(checked.schedule, begin, end), width)
    out.page([f"written to {output}"])
    if not checked.valid:
        out.say(f"zbopt: {file} is not a valid schedule; see zbopt validate {file}")
    return 0 if checked.valid else INVALID


def report_command(files: FilesArgument, output: PageFlag) -> int:
    """Write a page for a browser: charts, memory, causes of idle time, several schedules on one time axis.

    The page is one file and loads nothing from anywhere.

    Example: zbopt report schedule.json -o report.html

    Two schedules: zbopt report before.json after.json -o report.html
    """
    schedules = [read_checked(file) for file in files]
    require_writable(output, *files)
    write_text(output, web_page([_entry(checked) for checked in schedules]))
    out.page([f"written to {output}"])
    invalid = [str(checked.file) for checked in schedules if not checked.valid]
    if invalid:
        out.say(f"zbopt: not valid: {', '.join(invalid)}; the page says why")
    return INVALID if invalid else 0


def _entry(checked: CheckedFile) -> Entry:
    """Return what the page shows of one schedule; an invalid one has no bound."""
    bound = best_known(checked.schedule) if checked.valid else None
    return Entry(
        name=out.shown(str(checked.file)), schedule=checked.schedule, violations=checked.violations, bound=bound
    )
