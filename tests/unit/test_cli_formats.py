"""``zbopt import``, ``export`` and ``compare FILE FILE``: pages, records, errors and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zbopt.analysis.difference import Parting, first_divergence
from zbopt.cli import run
from zbopt.cli.formats import Format
from zbopt.formats.order import order_of_schedule
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance, Kind, read_instance, write_instance
from zbopt.problem.schedule import Event, Provenance, Schedule, read_schedule, write_schedule

TABLE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
"""1F1B on 2 stages, 2 microbatches: with F 1 and BW 2 it takes (2 + 2 - 1) 3 = 9 ticks."""


def said(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """Standard output, or where nothing came standard error; both have no traceback."""
    assert run(arguments) == code
    streams = capsys.readouterr()
    assert "Traceback" not in streams.out + streams.err
    return " ".join((streams.out or streams.err).split())


def record(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return str(path)


def _written(path: Path, name: str, **fields: Any) -> str:
    write_schedule(HEURISTICS[name](Instance.uniform(**({"stages": 2, "microbatches": 2} | fields))), path)
    return str(path)


def test_how_far_an_imported_order_is_from_the_best(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At F = B = W = 1 the load bound is 2 * 3 + 1 = 7 ticks, and ZB-H1 meets it; 1F1B takes 9: 28.57 % above.

    Stage 0 waits in [2, 4) for BW0 of stage 1, which as B and W would have handed on its gradient at 3; it has run all
    its F by then, so no op of its own could use the wait.
    """
    better = str(tmp_path / "better.json")
    page = said(["import", table, "--from", "torch-csv", "--explain", "--better", better], capsys)
    assert "28.57 % above the optimum, 7 ticks" in page
    assert "stage 0 idles 2 ticks, 2 to 4, before it0/s0/v0/mb0/BW: dependency, waits for it0/s1/v1/mb0/BW" in page
    assert "split into B and W, the BW would pass on its gradient 1" in page
    found = record(["import", table, "--from", "torch-csv", "--explain"], capsys)["distance"]
    assert (found["value"], found["lower_bound"], found["best_value"], found["status"]) == (9, 7, 7, "optimal")
    assert found["bubble"]["by_split"]
    assert found["parting"]["stage"] == 0
    assert read_schedule(better).provenance.value == 7


def test_an_optimal_order_has_no_bubble_to_blame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.csv"
    path.write_text("0F0,0I0,0W0\n")
    page = said(["import", str(path), "--from", "torch-csv", "--explain"], capsys)
    assert "it is the optimum, 3 ticks" in page
    assert "because of" not in page


@pytest.mark.parametrize("form", ["torch-csv", "chrome-trace", "jaxpp", "sail-zb"])
def test_export_then_import_through_files(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, there, back = _written(tmp_path / "a.json", "zb-h1"), str(tmp_path / "b"), str(tmp_path / "c.json")
    if form == "jaxpp":
        source = _written(tmp_path / "a.json", "1f1b")
    write_instance(read_schedule(source).instance, tmp_path / "i.json")
    assert f"{there}: {form} of {source}" in said(["export", source, "--to", form, "-o", there], capsys)
    said(["import", there, "--from", form, "--instance", str(tmp_path / "i.json"), "-o", back], capsys)
    assert order_of_schedule(read_schedule(source)) == order_of_schedule(read_schedule(back))


def test_export_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = _written(tmp_path / "a.json", "1f1b", backward_ticks=None, weight_ticks=None, fused_backward_ticks=2)
    assert run(["export", source, "--to", "torch-csv"]) == 0
    assert capsys.readouterr().out == TABLE


def test_layouts_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout, table = tmp_path / "layout.txt", str(tmp_path / "layers.json")
    layout.write_text("Et*2|t*3,|t*2|tL\n")
    words = said(["import", str(layout), "--from", "megatron-layout", "--stages", "2", "-o", table], capsys)
    assert words == f"{table}: 8 decoder layers on 4 virtual stages"
    assert said(["export", table, "--to", "megatron-layout"], capsys) == "Et*2|t*3|t*2|tL"
    write_instance(Instance.uniform(stages=4, microbatches=1), tmp_path / "i.json")
    to_layout = ["export", str(tmp_path / "i.json"), "--to", "megatron-layout", "--layers"]
    assert said([*to_layout, "8,8,7,7"], capsys) == "Et*8|t*8|t*7|t*7L"
    assert "30 layers do not divide over 4 virtual stages" in said([*to_layout, "30"], capsys, 2)


def test_what_breaks_a_rule_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace may show it, and says so with its exit code as other pictures do; a runtime must not get it."""
    good = read_schedule(_written(tmp_path / "a.json", "zb-h1"))
    broken = str(tmp_path / "broken.json")
    write_schedule(good.model_copy(update={"events": good.events[1:]}), broken)
    for form in ("torch-csv", "jaxpp", "sail-zb"):
        assert "invalid: missing_task" in said(["export", broken, "--to", form], capsys, 1)
    assert "traceEvents" in said(["export", broken, "--to", "chrome-trace"], capsys, 1)


def test_an_order_above_the_cap_is_invalid(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stage 0 holds both microbatches."""
    write_instance(Instance.uniform(stages=2, microbatches=2, memory_cap=1), tmp_path / "i.json")
    page = said(["import", table, "--from", "torch-csv", "--instance", str(tmp_path / "i.json")], capsys, 1)
    assert "memory_exceeded" in page


def test_a_profile_is_observed_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranges = [("0F0", 0, 5), ("0F1", 5, 7), ("0B0", 12, 9), ("0B1", 21, 9)]
    events = [{"ph": "X", "name": f"PP:{n}", "pid": 1, "ts": t, "dur": d} for n, t, d in ranges]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = record(["import", str(path), "--from", "chrome-trace"], capsys)
    assert found["observed"]
    assert found["makespan"] == 30_000
    assert "observed" in said(["import", str(path), "--from", "chrome-trace", "--explain"], capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["import", "TABLE"], "Missing option '--from'"),
        (["import", "TABLE", "--from", "csv"], "'csv' is not one of"),
        (["import", "nowhere.csv", "--from", "torch-csv"], "nowhere.csv: no such file or directory"),
        (["import", "TABLE", "TABLE", "--from", "torch-csv"], "2 files: torch-csv takes one; give one"),
        (["import", "TABLE", "--from", "torch-csv", "--better", "x.json"], "--better goes with --explain"),
        (["import", "TABLE", "--from", "torch-csv", "--stages", "2"], "--stages goes with megatron-layout only"),
        (["import", "TABLE", "--from", "megatron-layout"], "--stages is missing"),
        (["import", "TABLE", "--from", "megatron-layout", "--stages", "2"], "character 0 of the layout"),
        (["import", "TABLE", "--from", "jaxpp"], "table.csv: not valid JSON"),
        (["import", "TABLE", "--from", "torch-csv", "-o", "TABLE"], "is a file that this call reads"),
        (
            ["import", "TABLE", "--from", "torch-csv", "--explain", "-o", "a.json", "--better", "./a.json"],
            "--better a.json: -o writes to the same file; give another path",
        ),
        (["export", "TABLE", "--to", "torch-csv"], "table.csv: not valid JSON"),
        (["export", "SCHEDULE", "--to", "jaxpp", "--comms"], "--comms goes with torch-csv only"),
        (["export", "SCHEDULE", "--to", "torch-csv", "--layers", "8"], "--layers goes with megatron-layout only"),
        (["export", "SCHEDULE", "--to", "megatron-layout"], "--layers is missing"),
        (["export", "SCHEDULE", "--to", "megatron-layout", "--layers", "8,x"], "'x' is not a number of layers"),
        (["compare", "SCHEDULE"], "is a schedule; give a second schedule file too"),
        (["compare", "SCHEDULE", "SCHEDULE", "--stages", "2"], "--stages with 2 schedule files"),
        (["compare", "SCHEDULE", "TABLE"], "table.csv: not valid JSON"),
    ],
)
def test_calls_that_cannot_be_done(
    arguments: list[str], words: str, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"TABLE": table, "SCHEDULE": _written(tmp_path / "a.json", "zb-h1")}
    assert words in said([files.get(a, a) for a in arguments], capsys, 2)


def test_a_bad_cell_is_named_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("0F0,0B0junk\n")
    assert f"{path}: row 0, cell 1: '0B0junk' is no action" in said(
        ["import", str(path), "--from", "torch-csv"], capsys, 2
    )


def test_bug_refusals_without_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors on a trace's missing events, and on routes that a layout cannot express, did not name the file."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": "PP:0F0", "ts": 0, "dur": 2, "pid": 0}]))
    told = said(["import", str(path), "--from", "chrome-trace"], capsys, 2)
    assert f"{path}: row 0: the backward of microbatch 0 on virtual stage 0 is missing or not whole" in told
    path = tmp_path / "instance.json"
    write_instance(Instance.uniform(stages=2, microbatches=2, placement="bidirectional", virtual=2), path)
    told = said(["export", str(path), "--to", "megatron-layout", "--layers", "8"], capsys, 2)
    assert f"{path}: routes: Megatron's layout sends every microbatch through all virtual stages" in told
    write_schedule(HEURISTICS["list"](read_instance(path)), path)
    told = said(["export", str(path), "--to", "torch-csv"], capsys, 2)
    assert f"zbopt: {path}: several_routes: routes: PyTorch's runtime has one route for all microbatches" in told


def test_where_two_schedules_part_and_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1F1B (BW 2) takes 9 ticks, ZB-H1 7. On stage 1 both begin with F0, then BW0 here and B0 there, at tick 2."""
    whole = {"backward_ticks": None, "weight_ticks": None, "fused_backward_ticks": 2}
    first, second = _written(tmp_path / "1.json", "1f1b", **whole), _written(tmp_path / "2.json", "zb-h1")
    page = said(["compare", first, second], capsys)
    assert "makespan -2 ticks (-22.22 %)" in page
    assert "stage 1 at op 1: it0/s1/v1/mb0/BW at 2 in 1, it0/s1/v1/mb0/B at 2 in 2" in page
    found = record(["compare", first, second], capsys)["differences"][0]
    assert found["makespan"] == -2
    assert found["instance_fields"] == ["backward_ticks", "weight_ticks", "fused_backward_ticks"]
    assert [d["parting"] for d in found["stages"]] == ["order", "order"]
    assert "the same ops at the same times" in said(["compare", first, first], capsys)


def test_the_same_order_at_other_times(tmp_path: Path) -> None:
    """With a transfer of 1 tick stage 1 begins at 2 instead of 1; stage 0's B comes later too."""
    now, later = (HEURISTICS["zb-h1"](Instance.uniform(stages=2, microbatches=1, comm_ticks=comm)) for comm in (0, 1))
    found = first_divergence(now, later)
    assert found is not None
    assert (found.parting, found.stage, found.position, found.tick) == (Parting.TIME, 1, 0, 1)
    assert first_divergence(now, now) is None


def test_another_order_comes_before_other_times() -> None:
    """Stage 0 is a tick late at 0, and from 5 on stage 1 has two ops the other way round."""
    instance = Instance.uniform(stages=2, microbatches=2)
    one, two = (
        Schedule(
            instance=instance,
            provenance=Provenance(source="hand"),
            events=(
                Event(Kind.F, 0, 0, 0, late, late + 1),
                Event(Kind.F, 1, 1, first, 5, 6),
                Event(Kind.F, 1, 1, 1 - first, 6, 7),
            ),
        )
        for late, first in ((0, 0), (1, 1))
    )
    found = first_divergence(one, two)
    assert found is not None
    assert (found.parting, found.stage, found.tick) == (Parting.ORDER, 1, 5)


def test_every_format_is_named_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("import", "export"):
        page = said([verb, "--help"], capsys)
        assert all(form.value in page for form in Format)
        assert "Example:" in page


@pytest.mark.parametrize("to", ["torch-csv", "jaxpp", "sail-zb"])
def test_bug_export_of_dropped_activations(to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PyTorch's table ended in a fault of ours where the schedule recomputes; all tables refuse it by name."""
    instance = Instance.model_validate(
        {"stages": 2, "microbatches": 2, "forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1}
        | {"recompute": "always", "recompute_ticks": 1, "checkpoint": 0}
    )
    path = tmp_path / "schedule.json"
    write_schedule(HEURISTICS["list"](instance), path)
    text = said(["export", str(path), "--to", to], capsys, 2)
    assert "/R: " in text
    assert "take an instance without recompute and offload" in text
