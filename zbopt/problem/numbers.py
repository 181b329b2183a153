"""Numbers in files: whole ticks and exact amounts, and the limits of both."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

MAX_TICKS = 10**9
"""Longest single time. Longer ones say that the tick is too fine: CP-SAT's integers would overflow."""
MAX_STAGES = 4096
MAX_MICROBATCHES = MAX_FORWARDS = 1_000_000
"""Most forwards (virtual stages times microbatches): more tasks do not fit into memory."""
MAX_AMOUNT = 10**13
"""Largest amount of memory: ten terabytes in bytes."""
_AMOUNT = re.compile(r"\s*[+-]?\d{1,20}([./]\d{1,20})?\s*")


def _parse_rational(value: object) -> Fraction:
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("not a number; write 2, 1.5 or '3/2'")
    if isinstance(value, str) and not _AMOUNT.fullmatch(value):
        raise ValueError("not a number; write 2, 1.5 or '3/2'")
    try:
        return Fraction(repr(value) if isinstance(value, float) else value)
    except (ValueError, ZeroDivisionError):
        raise ValueError("not a finite number; write 2, 1.5 or '3/2'") from None


def number(value: Fraction) -> int | float | str:
    """Return a JSON number that reads back as exactly ``value``, else the fraction as text (``'48/131'``)."""
    if value.denominator == 1:
        return value.numerator
    return float(value) if Fraction(repr(float(value))) == value else str(value)


Rational = Annotated[
    Fraction,
    BeforeValidator(_parse_rational),
    PlainSerializer(number, return_type=int | float | str),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^-?\d+(/\d+|\.\d+)?$"}]}),
]
"""An exact amount: an integer, a decimal, or a fraction as text."""

Ticks = Annotated[int, Field(ge=1, le=MAX_TICKS, strict=True)]
Amount = Annotated[Rational, Field(ge=0, le=MAX_AMOUNT)]
Amounts = tuple[Amount, ...]


def is_none(value: object) -> bool:
    """Return whether a field is not given: then files leave it out."""
    return value is None


def counted(count: int, what: str) -> str:
    """Return a number with its noun, such as ``1 stage`` or ``2 stages``."""
    plural = f"{what}es" if what.endswith(("ch", "ss")) else f"{what}s"
    return f"{count} {what if count == 1 else plural}"
