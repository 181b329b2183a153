"""Output of the commands: results to stdout, all else to stderr, whatever those two are connected to."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from zbopt.reports.safe_text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_PIPE_WIDTH = 80
"""Columns where stdout is no terminal: the usual width of a log."""


def open_missing_streams() -> bool:
    """Open /dev/null for every closed standard stream, and return whether stdout was open.

    Otherwise the next file that is opened would get the number of the stream, and be printed to.
    """
    stdout_open = sys.stdout is not None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    return stdout_open


def width() -> int:
    """Return the columns to print on: those of the terminal, else those of ``COLUMNS``, else 80."""
    return _console().width


def coloured() -> bool:
    """Tell whether stdout shows colours: it is a terminal, and NO_COLOR is not set."""
    console = _console()
    return console.is_terminal and not console.no_color and console.color_system is not None


def _console() -> Console:
    from rich.console import Console  # imported late: it takes a tenth of a start, and --json does not need it

    known = os.environ.get("COLUMNS", "")
    piped = int(known) if known.isdecimal() and int(known) > 0 else _PIPE_WIDTH
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)
    return console if console.is_terminal else Console(file=sys.stdout, width=piped, highlight=False, color_system=None)


def page(lines: Iterable[str | Text]) -> None:
    """Print lines to stdout. A reader that closes the pipe early is no fault: it needs no more lines."""
    if not coloured():
        _write(str(line) for line in lines)
        return
    console = _console()
    try:
        for line in lines:
            line = shown(line) if isinstance(line, str) else line
            console.print(line, crop=False, overflow="ignore", markup=False)
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_stdout()


def _write(lines: Iterable[str]) -> None:
    try:
        for line in lines:
            sys.stdout.write(_encodable(line, sys.stdout.encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_stdout()


def record(fields: Mapping[str, Any]) -> None:
    """Print one JSON object to stdout."""
    _write([json.dumps(fields, allow_nan=False)])


def measured(fields: Mapping[str, Any]) -> None:
    """Print measured figures as one JSON object; infinite and NaN, such as a loss that overflowed, become null."""
    record(_finite(json.loads(json.dumps(fields, default=str))))


def _finite(content: Any) -> Any:
    """Replace infinite numbers and NaN by ``None``: JSON has neither."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not isfinite(content) else content


def abandon_stdout() -> None:
    """Send what is still in stdout's buffer to /dev/null, so that the interpreter's last flush does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def say(text: str) -> None:
    """Print one line to stderr, whether or not anyone can read it."""
    try:
        sys.stderr.write(_one_line(text) + "\n")
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _one_line(text: str) -> str:
    return _encodable(" ".join(text.split()), sys.stderr.encoding)


def shown(text: str) -> str:
    """Make a text that may come from a file safe for a terminal: escape commands and halves of characters."""
    return printable(text)


def _encodable(text: str, encoding: str | None) -> str:
    """Escape what the stream's encoding cannot express."""
    encoding = encoding or "ascii"
    if encoding.lower().replace("-", "") != "utf8":
        text = text.replace("·", ".").encode(encoding, "backslashreplace").decode(encoding)
    return shown(text)
