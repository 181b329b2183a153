"""Output and exit codes of the commands."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from zbopt.cli import app_of, run
from zbopt.cli.compare import compare_page, compared_optimum
from zbopt.cli.problem import Problem
from zbopt.heuristics import HEURISTICS
from zbopt.portfolio.known import best_known
from zbopt.portfolio.result import Result
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, read_instance
from zbopt.problem.schedule import Status, read_schedule, write_schedule

INSTANCE = {"stages": 2, "microbatches": 2, "forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1, "memory_cap": 2}


def page(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """Return what a call prints on stdout."""
    assert run(arguments) == code
    return capsys.readouterr().out


def record(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, object]:
    """The object that a call with ``--json`` prints."""
    fields = json.loads(page([*arguments, "--json"], capsys, code))
    assert isinstance(fields, dict)
    return fields


def file_of(path: Path, **changes: object) -> str:
    """An instance file, two stages and two microbatches."""
    path.write_text(json.dumps(INSTANCE | changes))
    return str(path)


def test_the_command_that_everything_serves(capsys: pytest.CaptureFixture[str]) -> None:
    """p=4, m=8, F=B=W=1, cap 6: m(F + B + W) + p - 1 = 27, and no schedule is shorter: stage 3 starts at 3."""
    shown = page(["solve", "--stages", "4", "--micro", "8", "--mem-limit", "6"], capsys)
    for line in ("times +F 1; B 1; W 1; transfer 0", "memory cap +6 on each", "objective +makespan", "barrier +none",
                 "answer: optimal", "makespan +27 ticks", "lower bound +27 ticks on the makespan, proved by bound:",
                 "largest stage span", "bubble ratio +11.11 % of the makespan", "peak memory +[0-9, ]+ live",
                 "best heuristic", "stage 3 ······F0B0"):  # fmt: skip
        assert re.search(line, shown), line
    assert "\x1b" not in shown


def test_solve_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Every promised key, with 27 as above; 3 of 27 ticks of each stage are idle at the least: 1/9."""
    fields = record(["solve", "--stages", "4", "--micro", "8", "--mem-limit", "6"], capsys)
    assert fields["status"] == "optimal"
    assert (fields["objective"], fields["value"], fields["lower_bound"], fields["gap"]) == ("makespan", 27, 27, 0)
    assert str(fields["proved_by"]).startswith("bound:")
    assert (fields["makespan"], fields["tick"], fields["value_time"]) == (27, "unit", None)
    assert fields["bubble_ratio"] == {
        "makespan": pytest.approx(1 / 9),
        "stage_span": pytest.approx(1 - 24 / fields["max_stage_span"]),  # type: ignore[operator]
    }
    assert max(fields["peak_memory"]) <= 6  # type: ignore[call-overload]
    assert set(fields["best_heuristic"]) == {"name", "value"}  # type: ignore[call-overload]
    assert fields["infeasible"] is None
    assert fields["wall_time_s"] >= 0  # type: ignore[operator]
    assert fields["instance"]["schema"] == "zbopt.instance/1"  # type: ignore[index]


def test_flags_around_the_step_set_the_fields_of_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each flag ends in its field, as the written file shows; the page says what they ask for."""
    path = tmp_path / "schedule.json"
    flags = "--stages 2 --micro 2 --communication link --transfer-occupies port --boundary 1/2 --bandwidth 1/4"
    flags += " --stages-per-node 2 --node-comm 1 --node-bandwidth 1 --reduction 2,3 --reduction-occupies port --loss 1"
    flags += " --barrier global --barrier-time 4 --iterations 2 --objective period --input-ready 0,1,5,6"
    shown = page(["solve", *flags.split(), "--time-limit", "5", "--workers", "1", "-o", str(path)], capsys)
    fields = read_schedule(path).instance.model_dump(mode="json", exclude_defaults=True)
    wanted = {
        "communication": "link",
        "transfer_occupies": "port",
        "boundary": [0.5, 0.5],
        "bandwidth": 0.25,
        "stages_per_node": 2,
        "node_comm_ticks": 1,
        "node_bandwidth": 1,
        "reduction_ticks": [2, 3],
        "reduction_occupies": "port",
        "loss_ticks": 1,
        "barrier": "global",
        "barrier_ticks": 4,
        "iterations": 2,
        "objective": "period",
        "input_ready_ticks": [0, 1, 5, 6],
    }
    assert {name: fields[name] for name in wanted} == wanted
    text = " ".join(str(shown).split())
    assert "transfers link, one at a time on a port" in text
    assert "iterations 2" in text
    assert "objective period" in text


def test_flags_set_the_fields_of_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag ends in its field, as the written file shows; 10 us is the finest decimal of these times."""
    path = tmp_path / "schedule.json"
    flags = "--stages 2 --micro 3 --forward 0.02ms --backward none,0.03ms --weight 0.01ms,0.02ms --comm 0.01ms"
    flags += " --mem-limit 3,3/2 --weight-share 0.5 --objective max-stage-span --barrier post-validation"
    flags += f" --optimizer 0.04ms --time-limit 5 --workers 1 --seed 7 -o {path}"
    page(["solve", *flags.split()], capsys)
    schedule = read_schedule(path)
    fields = schedule.instance.model_dump(
        mode="json", exclude={"stage_of", "activation", "name"}, exclude_none=True, exclude_defaults=True
    )
    assert fields == {
        "stages": 2,
        "microbatches": 3,
        "tick": "10us",
        "forward_ticks": [2, 2],
        "backward_ticks": [None, 3],
        "weight_ticks": [1, 2],
        "comm_ticks": 1,
        "memory_cap": [3, 1.5],
        "weight_share": [0.5, 0.5],
        "objective": "max_stage_span",
        "barrier": "post_validation",
        "optimizer_ticks": [4, 4],
    }
    assert (schedule.provenance.workers, schedule.provenance.seed, schedule.provenance.time_limit_s) == (1, 7, 5)


def test_fused_backward_alone_is_never_split(capsys: pytest.CaptureFixture[str]) -> None:
    """1F1B with BW=2: (m + p - 1)(F + BW) = 33, and it is the optimum; beside the split times it may be fused."""
    size = ["solve", "--stages", "4", "--micro", "8", "--fused-backward", "2", "--mem-limit", "4"]
    assert record(size, capsys)["value"] == 33
    assert "always fused" in page(size, capsys)
    assert "split or fused" in page([*size, "--backward", "1", "--weight", "1"], capsys)


def test_decimal_times_carry_their_unit(capsys: pytest.CaptureFixture[str]) -> None:
    """One stage, one microbatch: 1.5 + 2 + 0.25 ms = 3.75 ms = 375 ticks of 10 us."""
    times = ["--forward", "1.5ms", "--backward", "2ms", "--weight", "0.25ms"]
    fields = record(["solve", "--stages", "1", "--micro", "1", *times], capsys)
    assert (fields["value"], fields["tick"], fields["value_time"]) == (375, "10us", "3.75ms")


def test_rounding_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    """15 us in ticks of 10 us become 2: half a tick is added."""
    times = ["--forward", "15us", "--backward", "10us", "--weight", "10us", "--tick", "10us"]
    shown = page(["solve", "--stages", "1", "--micro", "1", *times], capsys)
    assert "rounding            up, by at most 0.5 of a tick of 10us" in shown
    fields = record(["solve", "--stages", "1", "--micro", "1", *times], capsys)
    assert (fields["value"], fields["rounding_ticks"]) == (4, 0.5)


def test_instance_file_and_what_may_stand_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cap, objective, barrier and optimizer may depart from the file, and the page says so."""
    path = file_of(tmp_path / "instance.json")
    assert record(["solve", path], capsys)["value"] == 7  # by hand: 2 x 3 and one F before stage 1 starts
    shown = page(["solve", path, "--mem-limit", "1", "--barrier", "global", "--optimizer", "2"], capsys)
    assert "memory_cap is 1; the file says 2" in shown
    assert "barrier is global; the file says none" in shown
    assert "optimizer_ticks is 2; the file says none" in shown


def test_toml_instance(tmp_path: Path) -> None:
    """A TOML file takes the fields that a JSON file does."""
    path = tmp_path / "instance.toml"
    path.write_text("stages = 2\nmicrobatches = 2\nforward_ticks = 1\nbackward_ticks = 1\nweight_ticks = 1\n")
    assert read_instance(path).microbatches == 2


def test_compare(capsys: pytest.CaptureFixture[str]) -> None:
    """p=4, m=8, cap 6: GPipe and 1F1B (m + p - 1) 3 = 33 with peaks m and p; ZB-H2 needs 2p - 1 = 7 and has span 24."""
    fields = record(["compare", "--stages", "4", "--micro", "8", "--mem-limit", "6"], capsys)
    rows = {row["schedule"]: row for row in fields["rows"]}  # type: ignore[attr-defined]
    assert {"gpipe", "1f1b", "1f1b-split", "interleaved", "zb-h1", "zb-h2", "optimum"} <= set(rows)
    assert (rows["gpipe"]["makespan"], max(rows["gpipe"]["peak_memory"]), rows["gpipe"]["fits"]) == (33, 8, False)
    assert (rows["1f1b"]["makespan"], rows["1f1b"]["peak_memory"], rows["1f1b"]["fits"]) == (33, [4, 3, 2, 1], True)
    assert rows["1f1b"]["bubble_ratio"]["makespan"] == pytest.approx(3 / 11)
    assert (rows["zb-h2"]["max_stage_span"], max(rows["zb-h2"]["peak_memory"]), rows["zb-h2"]["fits"]) == (24, 7, False)
    assert (rows["optimum"]["makespan"], rows["optimum"]["fits"]) == (27, True)
    assert rows["interleaved"]["makespan"] is None
    assert "round robin" in rows["interleaved"]["reason"]


def test_compare_page(capsys: pytest.CaptureFixture[str]) -> None:
    """A row a schedule, and below it why one is not there."""
    shown = page(["compare", "--stages", "4", "--micro", "8", "--mem-limit", "6"], capsys)
    assert re.search(r"gpipe +33 +33 +27.27 % +27.27 % +8 +no\n", shown)
    assert re.search(r"optimum +27 ", shown)
    assert max(map(len, shown.splitlines())) <= 80


def test_validate_and_show_a_written_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The schedule that solve writes is valid, at distance 0 from the bound in the file."""
    path = str(tmp_path / "schedule.json")
    page(["solve", "--stages", "4", "--micro", "8", "--mem-limit", "6", "-o", path], capsys)
    fields = record(["validate", path], capsys)
    assert (fields["valid"], fields["violations"], fields["makespan"], fields["busy"]) == (True, [], 27, 96)
    assert (fields["unfinished_activations"], fields["distance"], fields["lower_bound"]) == (0, 0, 27)
    assert f"{path}: valid" in page(["validate", path], capsys)
    shown = page(["show", path], capsys)
    assert "stage 3 ······F0B0" in shown
    assert "27 ticks" in shown


def test_validate_names_each_violation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the last event a W is missing: exit code 1, its code, and no distance to a bound."""
    path = tmp_path / "schedule.json"
    page(["solve", "--stages", "4", "--micro", "8", "--mem-limit", "6", "-o", str(path)], capsys)
    schedule = read_schedule(path)
    write_schedule(schedule.model_copy(update={"events": schedule.events[:-1]}), path)
    fields = record(["validate", str(path)], capsys, 1)
    assert fields["valid"] is False
    assert {violation["code"] for violation in fields["violations"]} >= {"missing_task"}  # type: ignore[attr-defined]
    assert fields["distance"] is None
    assert "missing_task: " in page(["validate", str(path)], capsys, 1)
    assert "invalid" in page(["show", str(path)], capsys, 1)


def test_false_claim_in_a_file_counts_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A lower bound above the schedule's own value is refuted by it."""
    path = tmp_path / "schedule.json"
    page(["solve", "--stages", "4", "--micro", "8", "--mem-limit", "6", "-o", str(path)], capsys)
    schedule = read_schedule(path)
    boast = schedule.provenance.model_copy(update={"lower_bound": 99})
    assert best_known(schedule.model_copy(update={"provenance": boast})).value == 27


EVENTS = [("F", 0, 0, 0), ("F", 0, 1, 1), ("B", 0, 0, 3), ("W", 0, 0, 4), ("B", 0, 1, 6), ("W", 0, 1, 7)]
EVENTS += [("F", 1, 0, 1), ("B", 1, 0, 2), ("F", 1, 1, 3), ("W", 1, 0, 4), ("B", 1, 1, 5), ("W", 1, 1, 6)]
"""Two stages, two microbatches, ops of one tick (kind, stage, microbatch, start): valid, 8 ticks, drawn by hand."""


def event_list(path: Path, scale: float = 1) -> str:
    """The events above as other tools write them, their times multiplied by ``scale``."""
    events = [
        {"id": f"{k}{s}{m}", "stage": s, "micro": m, "kind": k, "start": t * scale, "end": (t + 1) * scale}
        for k, s, m, t in EVENTS
    ]
    path.write_text(json.dumps({"stages": 2, "events": events}))
    return str(path)


def test_plain_list_of_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """12 of 16 ticks are busy, a quarter is idle; 7 = 6 + p - 1 is the least, one tick or 1/7 below."""
    path = event_list(tmp_path / "events.json")
    fields = record(["validate", path], capsys)
    assert (fields["valid"], fields["makespan"], fields["busy"]) == (True, 8, 12)
    assert fields["bubble_ratio"]["makespan"] == 0.25  # type: ignore[index]
    assert (fields["lower_bound"], fields["distance"], fields["unfinished_activations"]) == (7, 1, 0)
    assert fields["distance_ratio"] == pytest.approx(1 / 7)
    assert re.search(r"distance +1 tick, 14.3 % above it", page(["validate", path], capsys))
    assert "instance: 2 stages, 2 microbatches" in page(["show", path], capsys)


def test_event_list_with_decimal_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ops of half a unit become ops of 5 ticks, of which 10 are one unit: 8 of them take 40 ticks."""
    path = event_list(tmp_path / "events.json", 0.5)
    fields = record(["validate", path], capsys)
    assert (fields["valid"], fields["makespan"], fields["ticks_per_unit"]) == (True, 40, 10)
    assert "10 ticks are one unit of the file's times" in page(["validate", path], capsys)


def test_event_list_with_a_fault_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dependsOn that names no event is found, beside what the validator finds."""
    path = tmp_path / "events.json"
    event_list(path)
    document = json.loads(path.read_text())
    document["events"][0]["dependsOn"] = ["nothing"]
    path.write_text(json.dumps(document))
    fields = record(["validate", str(path)], capsys, 1)
    assert [violation["code"] for violation in fields["violations"]] == [  # type: ignore[attr-defined]
        "missing_dependency"
    ]


def test_versions_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` names zbopt and OR-Tools; without a command there is help; help names the fields that flags set."""
    assert page(["--version"], capsys) == f"zbopt {version('zbopt')}, ortools {version('ortools')}\n"
    assert "validate" in page([], capsys)
    shown = page(["solve", "--help"], capsys)
    for flag in ("--stages", "--micro", "--forward", "--backward", "--weight", "--fused-backward", "--comm",
                 "--mem-limit", "--weight-share", "--objective", "--barrier", "--time-limit", "--workers", "--seed",
                 "--output", "--json", "--optimizer", "--tick", "--deterministic"):  # fmt: skip
        assert flag in shown


def test_h_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the whole and of every command, those of the replay too."""
    assert page(["-h"], capsys) == page(["--help"], capsys)
    for verb in ("solve", "bench", "replay", "diff", "profile"):
        assert page([verb, "-h"], capsys) == page([verb, "--help"], capsys)


def test_help_has_no_values_for_switches(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json <bool>`` would have a reader give it one; the file of ``--results`` has its default; text flows."""
    for verb in ("solve", "bench", "export", "import", "replay"):
        shown = page([verb, "-h"], capsys)
        lines = [line for line in shown.splitlines() if "--help" not in line]
        assert not any("<bool>" in line for line in lines), verb
    assert "(SET/results.jsonl)" in page(["bench", "-h"], capsys)
    told = app_of(["import"]).registered_commands[0].help or ""
    assert "chrome-trace: a trace that zbopt export wrote" in told
    assert all("\n" not in paragraph for paragraph in told.split("\n\n"))


def test_bug_python_without_docstrings() -> None:
    """``python -OO`` drops them: there is less help, and everything else works."""
    call = [sys.executable, "-OO", "-m", "zbopt", "solve", "--stages", "2", "--micro", "2"]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert "makespan            7 ticks" in done.stdout


def test_a_flood_of_violations_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 2 stages with 40 microbatches only one F is there: 239 of 240 ops are missing; 20 are named."""
    path = tmp_path / "empty.json"
    page(["solve", "--stages", "2", "--micro", "40", "-o", str(path)], capsys)
    document = json.loads(path.read_text())
    document["events"] = document["events"][:1]
    path.write_text(json.dumps(document))
    fields = record(["validate", str(path), "--json"], capsys, code=1)
    assert fields["violation_counts"] == {"missing_task": 239, "unfinished_activation": 1}
    assert len(fields["violations"]) == 21  # type: ignore[arg-type]
    shown = page(["validate", str(path)], capsys, code=1)
    assert shown.count("missing_task: it0/") == 20
    assert "  missing_task: 219 more\n" in shown


def test_solve_by_the_published_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """p = 2, m = 2, unit times: 7, proved by milp, and so says the file; what it does not model is refused."""
    path = tmp_path / "schedule.json"
    fields = record(["solve", "--stages", "2", "--micro", "2", "--engine", "milp", "-o", str(path)], capsys)
    assert (fields["value"], fields["proved_by"]) == (7, "milp")
    assert json.loads(path.read_text())["provenance"]["engine"] == "milp"
    assert run(["solve", "--stages", "2", "--micro", "2", "--fused-backward", "1", "--engine", "milp"]) == 2
    assert "zbopt: milp: " in capsys.readouterr().err


def test_compare_calls_optimum_only_what_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    """A row named optimum beside 'not proved' contradicted itself; to programs the row keeps its name."""
    instance = Instance.uniform(stages=2, microbatches=2)
    made = HEURISTICS["gpipe"](instance)
    result = Result(
        instance=instance, status=Status.FEASIBLE, schedule=made, value=9, bound=Bound(7, "bound:load"), wall_time_s=0.0
    )
    row = compared_optimum(result)
    assert (row.schedule, row.name) == ("optimum", "best found")
    page = list(compare_page(Problem(instance), result, [replace(row, schedule="v: optimum"), row]))
    assert any(line.startswith("  v: best found") for line in page)
    assert any(line.startswith("  best found") for line in page)
    assert "optimum: not proved; the table has the best found" in page
