"""``--placement`` and ``--virtual``: what they set, what they refuse, and what ``auto`` compares."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from zbopt.cli import run
from zbopt.cli.flags import ProblemFlags
from zbopt.cli.problem import placed_problems, problem_of
from zbopt.problem.facts import flags_by_field
from zbopt.problem.instance import Instance
from zbopt.reports.page import asked_rows

SIZE = ["--stages", "3", "--micro", "4"]


def problem(*flags: str) -> Instance:
    """Return the instance of 3 stages and 4 microbatches with these flags, given as name and value in turn."""
    names = [flag.removeprefix("--").replace("-", "_") for flag in flags[::2]]
    given = {name: int(value) if name == "virtual" else value for name, value in zip(names, flags[1::2], strict=True)}
    return problem_of(call(stages=3, micro=4, **given)).instance


def call(**given: Any) -> ProblemFlags:
    """Return what the command line makes of flags, each by its name with underscores."""
    fields = {flag.parameter: field for field, flag in flags_by_field(Instance).items()}
    own = {name: value for name, value in given.items() if name not in fields}
    return ProblemFlags(fields={fields[name]: given[name] for name in given if name in fields}, **own)


@pytest.mark.parametrize(
    ("flags", "stage_of"),
    [
        ((), (0, 1, 2)),
        (("--virtual", "1"), (0, 1, 2)),
        (("--virtual", "2"), (0, 1, 2, 0, 1, 2)),
        (("--placement", "linear"), (0, 1, 2)),
        (("--placement", "interleaved"), (0, 1, 2, 0, 1, 2)),
        (("--placement", "interleaved", "--virtual", "3"), (0, 1, 2) * 3),
        (("--placement", "v"), (0, 1, 2, 2, 1, 0)),
        (("--placement", "bidirectional"), (0, 1, 2, 2, 1, 0)),
        (("--placement", "0, 1,2,2,0"), (0, 1, 2, 2, 0)),
    ],
)
def test_stages_of_virtual_stages(flags: tuple[str, ...], stage_of: tuple[int, ...]) -> None:
    """Names as the README has them; a list may give the stages unequal counts."""
    assert problem(*flags).stage_of == stage_of


def test_an_activation_is_its_share_of_a_stage() -> None:
    """Stage 0 and 2 hold two virtual stages, 1/2 each; stage 1 holds one. Times are a comma list by virtual stage."""
    instance = problem("--placement", "0,1,2,2,0", "--forward", "1,2,3,4,5")
    assert [str(a) for a in instance.activation] == ["1/2", "1", "1/2", "1/2", "1/2"]
    assert instance.forward_ticks == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--placement v --virtual 3", "--placement v --virtual 3: placement 'v' with 3 virtual stages"),
        ("--placement w", "--placement 'w': give linear, interleaved, v, bidirectional, auto, or a list such as 0,1"),
        ("--virtual 0", "--virtual 0: give at least 1"),
        ("--placement 0,1,2,0 --virtual 2", "--virtual 2 beside a list of stages: the list says it"),
        ("--placement 0,x,2", "--placement: 'x' is no stage; write a list of them as 0,1,2,2,1,0"),
        ("--placement 0,1,1", "stage 2 holds no virtual stage"),
        ("--placement 0,1,3", "stage_of[2] = 3 is no stage; stages are 0 to 2"),
        ("--placement v --forward 1,2,3", "forward_ticks has 3 values for 6 virtual stages; give 1 or 6"),
        ("--placement bidirectional --micro 1", "--placement bidirectional with --micro 1: give a microbatch for each"),
        ("--overlapped 5", "overlapped_ticks is given but fused_backward_ticks is not; one op runs an F and a BW"),
        ("--overlapped 2 --fused-backward 3", "overlapped_ticks[0] = 2 is below the 3 of an op of its own on virtual"),
        ("--placement auto --virtual 1", "--virtual 1 with --placement auto: give the slices of interleaved, 2 or"),
        ("--placement auto --forward 1,2", "forward_ticks has 2 values for 3 virtual stages; give 1 or 3"),
        ("--placement auto --backward none,1,1", "backward_ticks[0] is null: with --placement auto later slices of"),
        ("--placement auto --comm 1,2", "--comm: 2 times; give one, it holds for every transfer"),
    ],
)
def test_refused(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line with the flag, the value and the way out."""
    assert run(["solve", *SIZE, *flags.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_auto_cuts_whole_stages_into_slices() -> None:
    """Part k of the model takes 3, 4, 5 for F: its halves are 3/2, ...; in half ticks 3, 4, 5, and transfers double."""
    flags = call(stages=3, micro=4, forward="3,4,5", comm="1", mem_limit="2", placement="auto")
    problems = placed_problems(flags)
    linear, interleaved, v, both = (p.instance for p in problems.values())
    assert list(problems) == ["linear", "interleaved 2", "v", "bidirectional"]
    assert both.forward_ticks == (6, 8, 10, 6, 8, 10)
    assert (linear.forward_ticks, linear.comm_ticks) == ((6, 8, 10), 2)
    assert interleaved.forward_ticks == v.forward_ticks == (3, 3, 4, 4, 5, 5)
    assert (interleaved.stage_of, v.stage_of) == ((0, 1, 2, 0, 1, 2), (0, 1, 2, 2, 1, 0))
    assert {instance.memory_cap for instance in (linear, interleaved, v)} == {(2, 2, 2)}
    assert (both.replicas, v.replicas) == (2, 1)
    note = "its part of the model is cut into 2 slices, which take 1/2 each; 1 tick is 1/2 of the unit given"
    assert note in problems["v"].notes[0]


def test_auto_takes_finer_ticks_where_they_have_a_length() -> None:
    """1.5 ms and 1 ms in ticks of 100 us; a half is whole in ticks of 50 us. A tick that is asked for stays."""
    times = {"forward": "1.5ms", "backward": "1ms", "weight": "1ms"}
    fine = placed_problems(call(stages=2, micro=2, placement="auto", **times))["v"].instance
    assert (fine.tick, fine.forward_ticks[0], fine.backward_ticks, fine.rounding_ticks) == ("50us", 15, (10,) * 4, 0)
    kept = placed_problems(call(stages=2, micro=2, placement="auto", tick="100us", **times))["v"].instance
    assert (kept.tick, kept.forward_ticks[0], kept.rounding_ticks) == ("100us", 8, 0.5)


def test_auto_says_which_is_best_and_by_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """p=4, m=8, unit times, cap 4, ticks of 1/2: linear 2 (24 + 3) = 54 by load; two slices 48 + 3 = 51 [c53].

    Two directions: 48 and one whole F, 2 ticks, before the second stage of each way starts: 50, by load.
    """
    asked = ["--stages", "4", "--micro", "8", "--mem-limit", "4", "--placement", "auto", "--time-limit", "240"]
    path = tmp_path / "best.json"
    assert run(["solve", *asked, "-o", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: known["value"] for name, known in found["placements"].items()} == {
        "linear": 54,
        "interleaved 2": 51,
        "v": 51,
        "bidirectional": 50,
    }
    assert (found["best"], found["saved_ratio"]["linear"]) == ("bidirectional", pytest.approx(4 / 54))
    assert json.loads(path.read_text())["instance"]["stage_of"] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert run(["compare", *asked]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "best: bidirectional, 50 ticks: 7.41 % less than linear, 1.96 % less than interleaved 2" in shown
    assert "linear: zb-h1" in shown
    assert "v: optimum" in shown


LINEAR = {
    "stages": 2,
    "microbatches": 4,
    "forward_ticks": [3, 4],
    "backward_ticks": [5, 6],
    "weight_ticks": 2,
    "comm_ticks": 1,
    "activation": [8, 6],
    "memory_cap": 40,
    "parameters": [10, 6],
    "boundary": 2,
    "bandwidth": 2,
}


def placed(fields: dict[str, object], folder: Path) -> dict[str, Instance]:
    """The candidates of ``--placement auto`` beside a file of these fields."""
    file = folder / "step.json"
    file.write_text(json.dumps(fields))
    return {name: p.instance for name, p in placed_problems(ProblemFlags(instance=file, placement="auto")).items()}


def test_auto_beside_a_file(tmp_path: Path) -> None:
    """A linear pipeline's file says the same as flags, which was refused."""
    names = {"forward_ticks": "forward", "backward_ticks": "backward", "weight_ticks": "weight", "comm_ticks": "comm"}
    names |= {"memory_cap": "mem_limit", "microbatches": "micro"}
    flags: dict[str, object] = {"placement": "auto", "stages": 2, "micro": 4}
    for field in set(LINEAR) - {"stages", "microbatches"}:
        value = LINEAR[field]
        flags[names.get(field, field)] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    by_flags = placed_problems(call(**flags))
    assert placed(LINEAR, tmp_path) == {name: p.instance for name, p in by_flags.items()}


def test_bug_auto_left_memory_whole(tmp_path: Path) -> None:
    """Slices held as much as their part, so that V ran twice the model; links of half ticks carried as much a tick.

    Halves of 8 and 6; parts 0 and 1 of 10 and 6 in halves: stage 0 of V holds the first of 0 and the last of 1, 5 + 3,
    and of two replicas a whole 10 and a whole 6. Boundary 2 at bandwidth 2 and latency 1 takes 2 ticks, 4 half ticks.
    """
    linear, interleaved, v, both = placed(LINEAR, tmp_path).values()
    assert (linear.activation, linear.parameters) == ((8, 6), (10, 6))
    assert interleaved.activation == v.activation == (4, 4, 3, 3)
    assert interleaved.parameters == v.parameters == (8, 8)
    assert (both.activation, both.parameters) == ((8, 6, 8, 6), (16, 16))
    assert {i.memory_cap for i in (linear, v, both)} == {(40, 40)}
    assert {i.lag_ticks(0, 1) for i in (linear, interleaved, v, both)} == {4}


def test_auto_keeps_rounding_and_single_times(tmp_path: Path) -> None:
    """A tick of 3 ns has no whole half: F of 3 becomes 2 in V, 1/2 a tick more. Microbatch 1 takes its own times."""
    own = {"microbatches": [1], "forward_ticks": [7, 8]}
    found = placed(LINEAR | {"tick": "3ns", "rounding_ticks": "1/2", "microbatch_times": [own]}, tmp_path)
    v = found["v"]
    assert (v.tick, v.forward_ticks, v.rounding_ticks) == ("3ns", (2, 2, 2, 2), Fraction(3, 4))
    assert [v.ticks_of(slice_, 1).forward for slice_ in range(4)] == [4, 4, 4, 4]
    assert placed(LINEAR | {"tick": "1us"}, tmp_path)["v"].tick == "500ns"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"stage_of": [1, 0]},
            "stage_of: --placement auto cuts the parts of a linear pipeline, one virtual",
        ),
        (
            {
                "communication": "link",
                "transfer_occupies": "port",
                "collectives": [{"kind": "F", "start": 0, "ticks": 1}],
            },
            "collectives: --placement auto cannot cut the op around them; solve a file of each placement",
        ),
    ],
)
def test_files_that_auto_refuses(
    change: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line with the file, the field and the way out."""
    file = tmp_path / "step.json"
    file.write_text(json.dumps(LINEAR | change))
    assert run(["solve", str(file), "--placement", "auto"]) == 2
    assert f"zbopt: {file}: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--placement", "interleaved"), "interleaved, 2 virtual stages a stage"),
        (("--placement", "v"), "v, two virtual stages a stage, down and back up"),
        (("--placement", "bidirectional"), "virtual stages 0 to 5 on stages 0, 1, 2, 2, 1, 0"),
        (("--placement", "0,1,2,2"), "virtual stages 0 to 3 on stages 0, 1, 2, 2"),
        (
            ("--placement", "0,1,2" + ",2" * 30),
            f"virtual stages 0 to 32 on stages 0, 1, 2{', 2' * 13}, ...{', 2' * 16}",
        ),
    ],
)
def test_pages_name_the_placement(flags: tuple[str, ...], text: str) -> None:
    """By its name, or by the stage of each virtual stage; equal neighbours are not counted together."""
    assert dict(asked_rows(problem(*flags)))["placement"] == text


def test_compare_says_once_why_schedules_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """All of V placement for one reason, in one place; two iterations have a period: F, F, B, B, W of 1 tick are 5."""
    arguments = ["compare", "--stages", "2", "--micro", "1", "--iterations", "2", "--barrier", "post-validation"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    rows = [re.split(" {2,}", line.strip()) for line in shown.splitlines()]
    head = next(row for row in rows if row[0] == "schedule")
    optimum = next(row for row in rows if row[0] == "optimum")
    assert optimum[head.index("period")] == "5"
    assert " ".join(shown.split()).count("1f1b-v, v-min, v-half, zb-v, v-auto: the placement is not v") == 1
