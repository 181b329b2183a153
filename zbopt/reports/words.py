"""Texts of numbers, as the pages write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import groupby

from zbopt.costs.times import decimal_text, time_text
from zbopt.problem.instance import Instance, number
from zbopt.problem.numbers import counted


def ticks_text(ticks: int, tick: str) -> str:
    """Return ``27 ticks``, with the time after it where there is one: ``1529873 ticks (1529.873ms)``."""
    time = time_text(ticks, tick) if ticks else None
    return counted(ticks, "tick") + (f" ({time})" if time else "")


def size_text(instance: Instance) -> str:
    """Return the size of an instance: ``4 stages, 8 microbatches``."""
    return f"{counted(instance.stages, 'stage')}, {counted(instance.microbatches, 'microbatch')}"


def amount_text(amount: Fraction) -> str:
    """Return an exact amount, as a decimal where it has one, else as a fraction."""
    return str(number(amount))


def percent(ratio: float | None) -> str:
    """Return ``11.11 %``; ``< 0.01 %`` where it is less but not 0; ``none`` where the denominator is zero."""
    if ratio is not None and 0 < ratio < 0.00005:
        return "< 0.01 %"
    return "none" if ratio is None else f"{100 * ratio:.2f} %"


def rounding_text(rounding_ticks: Fraction, tick: str) -> str:
    """Return a text on how far rounding up changed the times."""
    if not rounding_ticks:
        return "none: every time is a whole number of ticks"
    return f"up, by at most {decimal_text(rounding_ticks)} of a tick of {tick}"


def runs_text(values: Iterable[object], most: int = 12) -> str:
    """Return a list with repeated values counted: ``6, 5 x3``. The middle of a long one is left out."""
    runs = [(text, len(list(group))) for text, group in groupby(map(_item_text, values))]
    if len(runs) == 1:
        return runs[0][0]
    parts = [text if count == 1 else f"{text} x{count}" for text, count in runs]
    if len(parts) > most:
        parts = [*parts[: most // 2], f"... {len(parts) - most} more ...", *parts[len(parts) - most // 2 :]]
    return ", ".join(parts)


def _item_text(value: object) -> str:
    if value is None:
        return "none"
    return amount_text(value) if isinstance(value, Fraction) else str(value)


def value_text(value: object) -> str:
    """Return the value of an instance's field as text, a list with repeated values counted."""
    if isinstance(value, tuple):
        return runs_text(value)
    return "none" if value is None else str(value)


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Return table rows as lines with aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines
