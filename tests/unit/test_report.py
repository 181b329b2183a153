"""The chart in the terminal, the picture, the numbers on the pages."""

import xml.etree.ElementTree as ElementTree
from fractions import Fraction

import pytest

from zbopt.analysis.metrics import figures
from zbopt.cli.out import shown
from zbopt.heuristics import HEURISTICS
from zbopt.portfolio.result import Infeasible, NamedValue, Result
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event, Provenance, Schedule, Status
from zbopt.reports.gantt import MOST_ROWS, gantt
from zbopt.reports.grid import axis_step, grid_of
from zbopt.reports.page import answer, asked, lines_of
from zbopt.reports.record import solve_record
from zbopt.reports.svg import gantt_svg
from zbopt.reports.words import amount_text, percent, runs_text, table, ticks_text

UNIT = Instance.uniform(stages=4, microbatches=8, memory_cap=6)


def schedule(instance: Instance, *events: tuple[str, int, int, int, int]) -> Schedule:
    """Build a schedule from events (kind, stage, microbatch, start, end)."""
    return Schedule(
        instance=instance,
        provenance=Provenance(source="test"),
        events=tuple(Event(Kind(k), s, s, m, start, end) for k, s, m, start, end in events),
    )


def result(instance: Instance, **changes: object) -> Result:
    """1F1B with split backward at p=4, m=8: the last stage works from p-1 on without a pause, m(F + B + W) = 24 ticks,
    and the last B travels back up in p-1 more: 30. 27 is the bound of the load, 24 + p - 1.
    """
    made = HEURISTICS["1f1b-split"](instance)
    fields = {
        "instance": instance,
        "status": Status.FEASIBLE,
        "schedule": made,
        "value": figures(made).makespan,
        "bound": Bound(27, "bound:load"),
        "wall_time_s": 0.5,
        "best_heuristic": NamedValue("gpipe", 2 * figures(made).makespan),
    }
    return Result(**(fields | changes))  # type: ignore[arg-type]


def test_gantt_drawn_by_hand() -> None:
    """Two stages, one microbatch, F=1, B=2, W=1: drawn by hand at four columns a tick."""
    instance = Instance.uniform(stages=2, microbatches=1, backward_ticks=2)
    ops = [("F", 0, 0, 0, 1), ("B", 0, 0, 4, 6), ("W", 0, 0, 6, 7)]
    ops += [("F", 1, 0, 1, 2), ("B", 1, 0, 2, 4), ("W", 1, 0, 4, 5)]
    drawn = [str(line) for line in gantt(schedule(instance, *ops), 80, coloured=False)]
    assert drawn[:3] == [
        "stage 0 F0--············B0------W0--",
        "stage 1 ····F0--B0------W0--········",
        "tick    0   1   2   3   4   5   6   7",
    ]


def test_bug_one_number_among_bare_letters() -> None:
    """F and B of 10 ticks are a column each, but for one F of 20: it had its number, and no other op had one.

    Twenty columns for 200 ticks: F at 0, 10, 20 to 40, 40, B at 50 to 90, ten ticks each.
    """
    instance = Instance.uniform(stages=1, microbatches=4, forward_ticks=10, backward_ticks=10)
    times = [(0, 10), (10, 20), (20, 40), (40, 50)]
    ops = [("F", 0, j, *time) for j, time in enumerate(times)]
    ops += [("B", 0, j, 50 + 10 * j, 60 + 10 * j) for j in range(4)] + [("W", 0, 0, 190, 200)]
    drawn = [str(line) for line in gantt(schedule(instance, *ops), 29, coloured=False)]
    assert drawn[0] == "stage 0 FFF-FBBBB··········W"


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(("stages", "microbatches", "ticks"), [(4, 8, 1), (8, 24, 18_522), (32, 96, 1)])
def test_gantt_never_wraps(width: int, stages: int, microbatches: int, ticks: int) -> None:
    """No row is wider than the terminal, and there is one for each stage."""
    instance = Instance.uniform(stages=stages, microbatches=microbatches, forward_ticks=ticks, backward_ticks=ticks)
    made = HEURISTICS["1f1b-split"](instance)
    drawn = [str(line) for line in gantt(made, width, coloured=False)]
    assert sum(line.startswith("stage ") for line in drawn) == stages
    assert max(len(line) for line in drawn[: stages + 1]) <= width


def test_gantt_of_very_many_stages_shows_the_ends() -> None:
    """Of 100 stages the first and the last 32 are drawn, and a line says how many are not."""
    made = HEURISTICS["gpipe"](Instance.uniform(stages=100, microbatches=1))
    drawn = [str(line) for line in gantt(made, 80, coloured=False)]
    assert sum(line.startswith("stage ") for line in drawn) == MOST_ROWS
    assert "... 36 more stages ..." in drawn


def test_coarse_column_shows_what_runs_most() -> None:
    """Ten ticks on two columns of five: F holds 3 of the first five, B 2; the second is idle but for one tick."""
    instance = Instance.uniform(stages=1, microbatches=1)
    grid = grid_of(schedule(instance, ("F", 0, 0, 0, 3), ("B", 0, 0, 3, 5), ("W", 0, 0, 9, 10)), 2)
    assert grid.is_coarse
    assert [(run.first, run.end, run.event and run.event.kind) for run in grid.rows[0]] == [
        (0, 1, Kind.F),
        (1, 2, None),
    ]


def test_coarse_column_shows_the_longest_of_a_kind() -> None:
    """Five ticks on one column: F0 has 3 of them, F1 the other two."""
    instance = Instance.uniform(stages=1, microbatches=2)
    (run,) = grid_of(schedule(instance, ("F", 0, 0, 0, 3), ("F", 0, 1, 3, 5)), 1).rows[0]
    assert run.event is not None
    assert run.event.microbatch == 0


@pytest.mark.parametrize(
    ("ticks", "columns", "per_label", "step"),
    [(7, 28, 3, 1), (27, 54, 4, 2), (319, 71, 5, 50), (10**6, 80, 8, 100_000)],
)
def test_axis_step(ticks: int, columns: int, per_label: int, step: int) -> None:
    """The least of 1, 2, 5, 10, ... whose labels are ``per_label`` columns apart, by hand."""
    assert axis_step(ticks, columns, per_label) == step


def test_svg_has_a_rectangle_for_each_op() -> None:
    """4 stages x 8 microbatches x (F, B, W) = 96 ops, each with its id as a tooltip; it is well-formed XML."""
    picture = ElementTree.fromstring(gantt_svg(HEURISTICS["1f1b-split"](UNIT)))
    space = "{http://www.w3.org/2000/svg}"
    tips = [t.text or "" for t in picture.iterfind(f"{space}rect/{space}title")]
    assert len(tips) == 96
    assert "it0/s0/v0/mb0/F: 0 to 1" in tips


def test_result_shows_itself_as_a_picture() -> None:
    """A notebook asks for ``_repr_html_``: the figures and the chart, or the reason where there is no schedule."""
    html = result(UNIT)._repr_html_()
    assert "feasible: makespan 30 ticks, lower bound 27 (bound:load)" in html
    assert "<svg" in html
    why = Infeasible(1, Fraction(1, 2), Fraction(1))
    nothing = result(UNIT, status=Status.INFEASIBLE, schedule=None, value=None, infeasible=why)._repr_html_()
    assert "stage 1: memory cap 1/2 is below the 1" in nothing
    assert "<svg" not in nothing


def test_page_says_what_was_asked_and_found() -> None:
    """The lines that issue and README promise, at 30 ticks of which (30 - 24) / 30 = 20 % are idle."""
    page = "\n".join([*asked(UNIT, ["memory_cap is 6; the file says 8"], 100), *answer(result(UNIT), 100)])
    for line in (
        "asked: 4 stages, 8 microbatches",
        "times               F 1; B 1; W 1; transfer 0 (ticks)",
        "memory cap          6 on each stage",
        "objective           makespan",
        "barrier             none",
        "note                memory_cap is 6; the file says 8",
        "answer: feasible",
        "makespan            30 ticks",
        "lower bound         27 ticks on the makespan, proved by bound:load",
        "bubble ratio        20.00 % of the makespan, 20.00 % of the largest stage span",
        "peak memory         4, 3, 2, 1 live activations by stage, cap 6",
        "best heuristic      gpipe: 60 ticks; this schedule saves 50.00 %",
    ):
        assert line in page


def test_record_has_the_promised_keys() -> None:
    """The shape of ``solve --json`` that others parse; ``infeasible`` names stage, cap and need."""
    record = solve_record(result(UNIT))
    assert record["bubble_ratio"] == {"makespan": pytest.approx(6 / 30), "stage_span": pytest.approx(6 / 30)}
    assert record["peak_memory"] == [4, 3, 2, 1]
    assert record["gap"] == pytest.approx(3 / 30)
    assert (record["status"], record["value"], record["lower_bound"]) == ("feasible", 30, 27)
    assert record["best_heuristic"] == {"name": "gpipe", "value": 60}
    why = Infeasible(1, Fraction(1, 2), Fraction(1))
    nothing = solve_record(result(UNIT, status=Status.INFEASIBLE, schedule=None, value=None, infeasible=why))
    assert nothing["infeasible"] == {"stage": 1, "cap": 0.5, "needed": 1}
    assert nothing["makespan"] is None


def test_time_beside_ticks() -> None:
    """1,529,873 ticks of 1 us are 1529.873 ms; a bare unit has no time."""
    timed = UNIT.model_copy(update={"tick": "1us"})
    assert ticks_text(1_529_873, "1us") == "1529873 ticks (1529.873ms)"
    assert ticks_text(1, "unit") == "1 tick"
    assert solve_record(result(timed))["value_time"] == "30us"
    assert solve_record(result(UNIT))["value_time"] is None


def test_bug_little_is_not_nothing() -> None:
    """One tick of 100,000 was a gap of 0.00 % that no proof closed; no distance at all was 0ns."""
    assert [percent(r) for r in (0.00001, 0.00005, 0.0, None)] == ["< 0.01 %", "0.01 %", "0.00 %", "none"]
    assert ticks_text(0, "100us") == "0 ticks"


def test_words() -> None:
    """Short forms of numbers and names are as written by hand."""
    assert runs_text([6, 5, 5, 5]) == "6, 5 x3"
    assert runs_text([6, 6]) == "6"
    assert runs_text([None, 1, 1]) == "none, 1 x2"
    assert runs_text(range(20), most=4) == "0, 1, ... 16 more ..., 18, 19"
    assert amount_text(Fraction(3, 2)) == "1.5"
    assert amount_text(Fraction(1, 3)) == "1/3"
    assert percent(None) == "none"
    assert table([("a", "1"), ("bb", "10")], "") == ["a    1", "bb  10"]
    assert lines_of([("label", "one two three")], 42) == ["  label               one two three"]


def test_bug_control_characters_of_a_file_reach_no_terminal_and_no_picture() -> None:
    """Bidirectional characters went to the terminal as they were, and an escape made a picture's XML malformed."""
    assert shown("a\u202eb\x1b[31m\u2066c") == "a\\u202eb\\x1b[31m\\u2066c"
    made = HEURISTICS["1f1b"](UNIT)
    named = made.model_copy(update={"provenance": Provenance(source="bad\x1b[31m\u202ename")})
    title = next(iter(ElementTree.fromstring(gantt_svg(named))))
    assert title.text is not None
    assert title.text.startswith("bad\\x1b[31m\\u202ename")
