"""Times as people write them -> ticks."""

import re
from fractions import Fraction

import pytest

from zbopt.costs.times import LONGEST_TICKS, parse_times, tick_name, time_text, unit_of


def test_finest_decimal_decides_the_tick() -> None:
    """18.522 ms is written to 1 us; 0.6 ms is 600 of them; nothing is rounded."""
    times = parse_times({"forward": "18.522ms", "comm": "0.6ms"})
    assert times.tick == "1us"
    assert times.ticks == {"forward": (18522,), "comm": (600,)}
    assert times.rounding_ticks == 0


def test_units_may_differ_and_a_zero_needs_none() -> None:
    """1.5 ms = 1500 us; none stands for an op that does not exist."""
    times = parse_times({"backward": "none, 1.5ms,2us", "comm": "0"})
    assert times.tick == "1us"
    assert times.ticks == {"backward": (None, 1500, 2), "comm": (0,)}


def test_bare_times_are_ticks() -> None:
    """Without units nothing is converted, and the tick is a unit unless it is named."""
    assert parse_times({"forward": "3,4"}).tick == "unit"
    named = parse_times({"forward": "3"}, "1us")
    assert (named.tick, named.ticks["forward"]) == ("1us", (3,))


def test_long_times_make_a_coarser_tick_and_round_up() -> None:
    """5 s in us is 5,000,000 ticks, above 10**6; with 10 us, 18.522 ms is 1852.2 ticks, rounded up by 0.8."""
    times = parse_times({"forward": "18.522ms", "backward": "5s"})
    assert times.tick == "10us"
    assert times.ticks == {"forward": (1853,), "backward": (500_000,)}
    assert times.rounding_ticks == Fraction(8, 10)
    assert max(times.ticks["backward"]) <= LONGEST_TICKS


def test_given_tick_rounds_up() -> None:
    """25 us in ticks of 10 us: 2.5, rounded up to 3."""
    times = parse_times({"forward": "25us"}, "10us")
    assert times.ticks["forward"] == (3,)
    assert times.rounding_ticks == Fraction(1, 2)


def test_no_tick_is_finer_than_a_nanosecond() -> None:
    """1.5 ns becomes 2 ticks of 1 ns."""
    times = parse_times({"forward": "1.5ns"})
    assert (times.tick, times.ticks["forward"]) == ("1ns", (2,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-1", "forward = '-1': a time is not negative; write it as 3, 18.522ms or 10us,12us"),
        ("nan", "forward = 'nan': not a time; write it as 3, 18.522ms or 10us,12us"),
        ("1e3", "forward = '1e3': not a time; write it as 3, 18.522ms or 10us,12us"),
        ("3,", "forward = '': not a time; write it as 3, 18.522ms or 10us,12us"),
        ("1h", "forward = '1h': unit 'h' is unknown; use s, ms, us or ns"),
        ("1ms,2", "some times of forward have a unit; give all times a unit (ms, us), or none"),
        (
            "1.5",
            "forward = '1.5': a time without a unit counts whole ticks; give all times a unit (1.5ms), or scale them "
            "all to whole numbers",
        ),
    ],
)
def test_refused(text: str, message: str) -> None:
    """An error on a wrong time names its value, the limit and the way out."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_times({"forward": text})


def test_a_unit_needs_a_tick_with_a_length() -> None:
    """The tick ``unit`` has no length to measure 3 ms with."""
    with pytest.raises(ValueError, match="tick = 'unit': not a duration; times with a unit need one such as 1us"):
        parse_times({"forward": "3ms"}, "unit")


@pytest.mark.parametrize(("ticks", "text"), [(1_529_873, "1529.873ms"), (27, "27us"), (10**7, "10s"), (1000, "1ms")])
def test_time_text(ticks: int, text: str) -> None:
    """Ticks of 1 us, by hand: the largest unit that leaves at least one, seconds from ten on."""
    assert time_text(ticks, "1us") == text


def test_names_of_ticks() -> None:
    """A tick of a bare unit has no time."""
    assert time_text(27, "unit") is None
    assert tick_name(Fraction(100_000_000)) == "100ms"
    assert unit_of(1500, "1us") == ("ms", Fraction(1, 1000))
