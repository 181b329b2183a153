"""How a flag is made, and how its text is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer


def whole(given: str | int) -> int:
    """A whole number as written; Typer says what is wrong with another."""
    text = str(given).strip()  # a default comes as the number that it is
    if not re.fullmatch(r"[+-]?\d{1,20}", text):
        raise typer.BadParameter(f"{text[:40]!r} is not a whole number; write it as 8")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds as written."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:40]!r} is not a number of seconds; write it as 60 or 0.5") from None


def switch(name: str, help_text: str, panel: str | None = None, **more: Any) -> Any:
    """A flag that is given or not: without a metavar the help would have it take a <bool>."""
    return typer.Option(name, help=help_text, metavar="", rich_help_panel=panel, **more)


def flag_maker(panel: str) -> Callable[..., Any]:
    """A maker of flags that the help shows under ``panel``."""

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
