"""``--from`` and ``--to`` of ``zbopt show``: a part of a long schedule, on 80 columns."""

from pathlib import Path

import pytest

from zbopt.cli import run
from zbopt.cli.window import window_of
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import write_schedule

UNIT = HEURISTICS["1f1b-split"](Instance.uniform(stages=4, microbatches=8))
"""It runs from 0 to 30: m(F + B + W) + 2(p - 1)."""
TIMED = UNIT.model_copy(update={"instance": UNIT.instance.model_copy(update={"tick": "10us"})})


def test_window_in_ticks_and_in_time() -> None:
    """0.1 ms are 10 ticks of 10 us; an end not given is the schedule's; a time between ticks takes both ticks in."""
    assert window_of(UNIT, None, None) is None
    assert window_of(UNIT, "5", None) == (5, 30)
    assert window_of(UNIT, None, "12") == (0, 12)
    assert window_of(TIMED, "0.1ms", "205us") == (10, 21)


@pytest.mark.parametrize(
    ("begin", "end", "says"),
    [
        ("12", "12", "--from 12 is not before --to 12 (ticks); give an earlier --from"),
        ("30", "40", "ticks 30 to 40 show nothing: the schedule is from 0 to 30"),
        ("5ms", None, "--from '5ms' is not a whole number, and a tick here has no length; give ticks, such as 100"),
    ],
)
def test_refused_windows(begin: str, end: str | None, says: str) -> None:
    """Each error says what is wrong and what the schedule has."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the text is the test
        window_of(UNIT, begin, end)
    assert str(refused.value) == says


def test_refused_list_of_times() -> None:
    """One flag takes one time."""
    with pytest.raises(ValueError, match=r"--from '1ms,2ms' is not one time; write it as 100 \(ticks\) or 20ms"):
        window_of(TIMED, "1ms,2ms", None)


def test_show_draws_the_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage 3 works from tick 3 on without a pause: four columns a tick, cut at both ends; labels are the file's."""
    monkeypatch.chdir(tmp_path)  # the page names the file as it was given, and does not wrap it
    write_schedule(UNIT, "schedule.json")
    assert run(["show", "schedule.json", "--from", "2", "--to", "5"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "ticks 2 to 5:" in shown
    assert "stage 3 ····F0--B0--" in shown
    assert "tick    2   3   4   5" in shown
    assert max(map(len, shown)) <= 80
