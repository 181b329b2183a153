"""``zbopt plot``: a schedule as a picture for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zbopt.cli import out
from zbopt.cli.check import INVALID, FileArgument, read_checked
from zbopt.cli.solve import require_writable
from zbopt.cli.window import FromFlag, ToFlag, window_of
from zbopt.report.figure import save_figure

PictureFlag = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write it: .svg, .png or .pdf.")
]
WidthFlag = Annotated[float, typer.Option("--width", metavar="INCHES", help="Width; the height follows from it.")]


def plot_command(
    file: FileArgument, output: PictureFlag, begin: FromFlag = None, end: ToFlag = None, width: WidthFlag = 7.2
) -> int:
    """Draw a schedule as a picture for a paper. Needs zbopt[plot].

    Example: zbopt plot schedule.json -o gantt.svg

    One column of a paper, a part: zbopt plot schedule.json -o gantt.pdf --width 3.5 --to 20
    """
    checked = read_checked(file)
    require_writable(output, file)
    save_figure(checked.schedule, output, window_of(checked.schedule, begin, end), width)
    out.page([f"written to {output}"])
    if not checked.valid:
        out.say(f"zbopt: {file} is not a valid schedule; see zbopt validate {file}")
    return 0 if checked.valid else INVALID
