"""Memory as people write it (``20GiB``, ``512MiB``, ``6``) -> exact amounts in one unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from zbopt.problem.numbers import number

Amount = int | float | str | Fraction
"""An amount of memory as a number, a fraction as text (``"48/131"``), or a number with a unit (``"20GiB"``)."""

_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_INSTANCE_UNITS = ("B", "KiB", "MiB", "GiB")
"""Units that an instance may count in, the smallest first."""
_WITH_UNIT = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]+)\s*")


@dataclass(frozen=True, slots=True)
class Amounts:
    """Hold lists of amounts by field. ``unit`` is what they count; ``None``: no amount had a unit."""

    unit: str | None
    amounts: dict[str, tuple[Amount, ...]]


def parse_amounts(given: Mapping[str, Sequence[Amount]], unit: str | None = None) -> Amounts:
    """Return the amounts of all fields in one unit.

    Args:
        given: Amounts by field. All have a unit (B, KiB, MiB, GiB, TiB) or none has; 0 needs none.
        unit: What an instance counts (``GiB``); ``None``: the largest unit that is written, at most GiB.

    Raises:
        ValueError: A unit is unknown, or some amounts have one and others do not.
    """
    units = {field: [_unit_of(field, value) for value in values] for field, values in given.items()}
    written = {found for row in units.values() for found in row if found is not None}
    if not written:
        return Amounts(None, {field: tuple(values) for field, values in given.items()})
    _require_units(given, units)
    if unit is None:
        unit = next((name for name in reversed(_INSTANCE_UNITS) if name in written), "GiB")
    elif unit not in _BYTES:
        raise ValueError(f"memory_unit = {unit!r} beside amounts with a unit; give {', '.join(_INSTANCE_UNITS)}")
    return Amounts(unit, {field: tuple(_in_unit(values, unit)) for field, values in given.items()})


def _unit_of(field: str, value: Amount) -> str | None:
    """Return the unit of one amount; ``None``: it has none, as what is no amount at all, which the instance refuses."""
    match = _WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    if match[2] not in _BYTES:
        raise ValueError(f"{field} = {value!r}: unit {match[2]!r} is unknown; use {', '.join(_BYTES)}")
    return match[2]


def _require_units(given: Mapping[str, Sequence[Amount]], units: Mapping[str, Sequence[str | None]]) -> None:
    for field, values in given.items():
        for value, unit in zip(values, units[field], strict=True):
            if unit is None and value not in (0, "0"):
                raise ValueError(
                    f"{field} = {value!r} has no unit and other amounts have one; give all of them one (20GiB), or none"
                )


def _in_unit(values: Iterable[Amount], unit: str) -> Iterable[Amount]:
    for value in values:
        match = _WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
        yield value if match is None else number(Fraction(match[1]) * _BYTES[match[2]] / _BYTES[unit])
