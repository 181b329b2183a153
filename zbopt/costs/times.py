"""Times as people write them (``18.522ms``, ``3``, ``10us,12us``), turned into integer ticks by rounding up.

All times of one problem share one tick. It is the finest decimal place that any of them is written with, or a power
of ten coarser, so that no time is longer than ``LONGEST_TICKS``: CP-SAT wants small integers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

LONGEST_TICKS = 10**6
"""Longest time that an automatic tick leaves, in ticks."""
NO_TIME = "none"
"""Word in a list for an op that does not exist, such as B of the first virtual stage."""

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_TIME = re.compile(r"(\d{1,30})(?:\.(\d{1,30}))?\s*([a-zA-Zµ]*)")
_PLACES = 30


@dataclass(frozen=True, slots=True)
class Times:
    """Hold lists of ticks by field. ``rounding_ticks`` is the most that rounding up added to any one time, in ticks."""

    tick: str
    ticks: dict[str, tuple[int | None, ...]]
    rounding_ticks: Fraction


@dataclass(frozen=True, slots=True)
class _Written:
    """Hold one time: its exact value and the size of its last digit, in ns, or in ticks where ``unit`` is ''."""

    amount: Fraction
    last_digit: Fraction
    unit: str


def parse_times(texts: Mapping[str, str], tick: str | None = None) -> Times:
    """Return the ticks of the times in ``texts``.

    Args:
        texts: For each field, a comma list of times. All carry a unit (s, ms, us, ns) or none does; a zero needs none.
            ``none`` stands for an op that does not exist.
        tick: What one tick is (``unit``, ``1us``); ``None`` chooses it.

    Raises:
        ValueError: A text is no time, units are mixed, a bare time is not whole, or ``tick`` does not go with them.
    """
    written = {field: tuple(_parse_item(field, item) for item in text.split(",")) for field, text in texts.items()}
    given = _nonzero(written)
    if _has_units(given):
        length = _tick_ns([time for _, time in given], tick)
        tick = tick or tick_name(length)
    else:
        _require_whole(given, texts)
        length = Fraction(1)
    ticks = {field: tuple(_rounded_up(time, length) for time in times) for field, times in written.items()}
    return Times(tick or "unit", ticks, _most_added(given, length))


def _nonzero(written: Mapping[str, tuple[_Written | None, ...]]) -> list[tuple[str, _Written]]:
    """Return each time above zero with its field; only these need a unit and a tick."""
    return [(field, time) for field, times in written.items() for time in times if time is not None and time.amount]


def _rounded_up(time: _Written | None, length: Fraction) -> int | None:
    """Return a time in ticks of ``length`` ns, rounded up; ``None`` for an op that does not exist."""
    return None if time is None else ceil(time.amount / length)


def _most_added(given: list[tuple[str, _Written]], length: Fraction) -> Fraction:
    """Return the most that rounding up adds to a time, in ticks of ``length`` ns."""
    exact = [time.amount / length for _, time in given]
    return max((ceil(ticks) - ticks for ticks in exact), default=Fraction(0))


def _parse_item(field: str, item: str) -> _Written | None:
    item = item.strip()
    if item == NO_TIME:
        return None
    match = _TIME.fullmatch(item)
    if match is None:
        shown = item if len(item) <= 40 else item[:37] + "..."
        negative = re.fullmatch(r"-[\d.]+\s*\w*", item)
        limit = "a time is not negative" if negative else "not a time"
        raise ValueError(f"{field} = {shown!r}: {limit}; write it as 3, 18.522ms or 10us,12us")
    whole, decimals, unit = match.group(1), match.group(2) or "", match.group(3).replace("µ", "u")
    if unit and unit not in _NANOSECONDS:
        raise ValueError(f"{field} = {item!r}: unit {unit!r} is unknown; use s, ms, us or ns")
    size = _NANOSECONDS.get(unit, 1)
    last_digit = Fraction(size, 10 ** len(decimals))
    return _Written(int(whole + decimals) * last_digit, last_digit, unit)


def _has_units(given: list[tuple[str, _Written]]) -> bool:
    """Return whether the times carry units.

    Raises:
        ValueError: Some do and some do not.
    """
    bare = next((field for field, time in given if not time.unit), None)
    timed = next((field for field, time in given if time.unit), None)
    if bare is not None and timed is not None:
        some = (
            f"{timed} has a unit of time and {bare} has none" if timed != bare else f"some times of {timed} have a unit"
        )
        raise ValueError(f"{some}; give all times a unit (ms, us), or none")
    return timed is not None


def _require_whole(given: list[tuple[str, _Written]], texts: Mapping[str, str]) -> None:
    for field, time in given:
        if time.amount.denominator != 1:
            raise ValueError(
                f"{field} = {texts[field]!r}: a time without a unit counts whole ticks; give all times a unit "
                "(1.5ms), or scale them all to whole numbers"
            )


def _tick_ns(given: list[_Written], tick: str | None) -> Fraction:
    """Return the ns of one tick: of ``tick``, else the finest digit that leaves no time above ``LONGEST_TICKS``."""
    if tick is not None:
        return tick_ns(tick)
    length = max(Fraction(1), min(time.last_digit for time in given))
    longest = max(time.amount for time in given)
    while ceil(longest / length) > LONGEST_TICKS:
        length *= 10
    return length


def tick_ns(tick: str) -> Fraction:
    """Return the length of a named tick in ns.

    Raises:
        ValueError: ``tick`` is 'unit', which has no length, or no duration.
    """
    match = re.fullmatch(r"([1-9]\d{0,11})(s|ms|us|ns)", tick)
    if match is None:
        raise ValueError(f"tick = {tick!r}: not a duration; times with a unit need one such as 1us or 10us")
    return Fraction(int(match.group(1)) * _NANOSECONDS[match.group(2)])


def tick_name(length_ns: Fraction) -> str:
    """Return a whole number of ns as the shortest text: ``1us``, ``10us``, ``100ms``."""
    unit = next(unit for unit, size in _NANOSECONDS.items() if size <= length_ns)
    return f"{length_ns / _NANOSECONDS[unit]}{unit}"


def unit_of(ticks: int, tick: str) -> tuple[str, Fraction]:
    """Return the unit in which ``ticks`` reads best, and how many of it one tick is: ``("ms", Fraction(1, 1000))``.

    It is the largest unit of which there is at least one; ``("", 1)`` where the tick has no length.
    """
    if tick == "unit":
        return "", Fraction(1)
    length = tick_ns(tick)
    unit = next((u for u, size in _NANOSECONDS.items() if size <= ticks * length), "ns")
    return unit, length / _NANOSECONDS[unit]


def time_text(ticks: int, tick: str) -> str | None:
    """Return ``ticks`` as an exact time with a unit, such as ``1529.873ms``; ``None`` where the tick has no length."""
    if tick == "unit":
        return None
    unit, per_tick = unit_of(ticks, tick)
    if unit == "s" and ticks * per_tick < 10:
        unit, per_tick = "ms", per_tick * 1000
    return decimal_text(ticks * per_tick) + unit


def decimal_text(value: Fraction) -> str:
    """Return a fraction as an exact decimal where it has one of at most 29 places, else to six places."""
    for places in range(_PLACES):
        scaled = value * 10**places
        if scaled.denominator == 1:
            whole, rest = divmod(abs(scaled.numerator), 10**places)
            sign = "-" if value < 0 else ""
            return f"{sign}{whole}" + (f".{rest:0{places}d}" if places else "")
    return f"{float(value):.6f}"
