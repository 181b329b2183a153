"""Makers of flags, and readers of their texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer


def whole(given: str | int) -> int:
    """Read a whole number; Typer reports the error for any other text."""
    text = str(given).strip()  # a default is passed as a number, not as text
    if not re.fullmatch(r"[+-]?\d{1,20}", text):
        raise typer.BadParameter(f"{text[:40]!r} is not a whole number; write it as 8")
    return int(text)


def seconds(text: str) -> float:
    """Read a number of seconds; Typer reports the error for any other text."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:40]!r} is not a number of seconds; write it as 60 or 0.5") from None


def switch(name: str, help_text: str, panel: str | None = None, **more: Any) -> Any:
    """Make a flag that takes no value; without the empty metavar the help would show one."""
    return typer.Option(name, help=help_text, metavar="", rich_help_panel=panel, **more)


def flag_maker(panel: str) -> Callable[..., Any]:
    """Return a function that makes flags, which the help shows under the heading ``panel``."""

    def flag(
        name: str,
        help_text: str,
        default: str | bool = False,
        metavar: str | None = None,
        parser: Callable[[str], Any] | None = None,
    ) -> Any:
        return typer.Option(
            name, help=help_text, show_default=default, metavar=metavar, parser=parser, rich_help_panel=panel
        )

    return flag
