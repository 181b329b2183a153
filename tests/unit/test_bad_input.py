"""Faults of calls and files: each gives exit code 2 (1: infeasible), and one line on stderr that says so.

Each line names the object, the value, the limit and the way out. Nothing is printed on stdout but for an infeasible
instance, which is an answer.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zbopt.cli import run
from zbopt.problem import documents
from zbopt.problem.instance import Instance, read_instance

SIZE = ["--stages", "4", "--micro", "8"]
TIME_FORM = "write it as 3, 18.522ms or 10us,12us"
INSTANCE = {"stages": 2, "microbatches": 2, "forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """Return the one line of an error, without the program's name."""
    assert run(arguments) == code
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert len(lines) == 1
    assert "Traceback" not in printed.out + printed.err
    if code == 2:
        assert printed.out == ""
    return lines[0].removeprefix("zbopt: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--stages is missing; give --stages and --micro, or an instance file"),
        (["--stages", "4"], "--micro is missing; give --stages and --micro, or an instance file"),
        (["--stages", "0", "--micro", "8"], "stages = 0: must be at least 1"),
        (["--stages", "-3", "--micro", "8"], "stages = -3: must be at least 1"),
        (["--stages", "5000", "--micro", "8"], "stages = 5000: must be at most 4096"),
        (["--stages", "4", "--micro", "0"], "microbatches = 0: must be at least 1"),
        (["--stages", "4", "--micro", "99999999999"], "microbatches = 99999999999: must be at most 1000000"),
        (
            ["--stages", "4096", "--micro", "1000000"],
            "4096 virtual stages with 1000000 microbatches make 4096000000 forwards, of at most 1000000; lower "
            "microbatches to 244",
        ),
        (
            ["--stages", "x", "--micro", "8"],
            "Invalid value for '--stages': 'x' is not a whole number; write it as 8; see zbopt solve --help",
        ),
        (
            ["--stages", "4", "--micro", "1.5"],
            "Invalid value for '--micro': '1.5' is not a whole number; write it as 8; see zbopt solve --help",
        ),
        ([*SIZE, "--forward", "0"], "forward_ticks[0] = 0: must be at least 1"),
        ([*SIZE, "--weight", "1,0,1,1"], "weight_ticks[1] = 0: must be at least 1"),
        ([*SIZE, "--forward", "-1"], f"forward = '-1': a time is not negative; {TIME_FORM}"),
        ([*SIZE, "--backward", "nan"], f"backward = 'nan': not a time; {TIME_FORM}"),
        ([*SIZE, "--comm", "inf"], f"comm = 'inf': not a time; {TIME_FORM}"),
        ([*SIZE, "--forward", "9" * 12], "forward_ticks[0] = 999999999999: must be at most 1000000000"),
        ([*SIZE, "--forward", "9" * 5000], f"forward = '{'9' * 37}...': not a time; {TIME_FORM}"),
        ([*SIZE, "--forward", "1,2"], "forward_ticks has 2 values for 4 virtual stages; give 1 or 4"),
        ([*SIZE, "--comm", "1,2"], "--comm: 2 times; give one, it holds for every transfer"),
        (
            [*SIZE, "--forward", "18.522ms"],
            "forward has a unit of time and backward has none; give all times a unit (ms, us), or none",
        ),
        ([*SIZE, "--tick", "5"], "tick = '5': must be 'unit' or a duration such as 1us"),
        (
            [*SIZE, "--backward", "1,none,1,1"],
            "backward_ticks[1] is null; only the first virtual stage may have no B, and then no BW",
        ),
        (
            [*SIZE, "--fused-backward", "2", "--backward", "1"],
            "backward_ticks and weight_ticks go together; give both, or fused_backward_ticks alone",
        ),
        ([*SIZE, "--mem-limit", "1,2"], "memory_cap has 2 values for 4 stages; give 1 or 4"),
        ([*SIZE, "--mem-limit", "-1"], "memory_cap[0] = '-1': must be at least 0"),
        ([*SIZE, "--mem-limit", "nan"], "memory_cap[0] = 'nan': not a number; write 2, 1.5 or '3/2'"),
        ([*SIZE, "--mem-limit", "1/0"], "memory_cap[0] = '1/0': not a finite number; write 2, 1.5 or '3/2'"),
        ([*SIZE, "--mem-limit", "1e99"], "memory_cap[0] = '1e99': not a number; write 2, 1.5 or '3/2'"),
        ([*SIZE, "--mem-limit", "9" * 14], "memory_cap[0] = '99999999999999': must be at most 10000000000000"),
        ([*SIZE, "--weight-share", "1.5"], "weight_share[0] = '1.5': must be at most 1"),
        (
            [*SIZE, "--objective", "energy"],
            "Invalid value for '--objective': 'energy' is not one of 'makespan', 'max-stage-span', 'period'; see zbopt "
            "solve --help",
        ),
        ([*SIZE, "--objective", "period"], "objective is period but iterations is 1; give 2 or more"),
        (
            [*SIZE, "--transfer-occupies", "port"],
            "transfer_occupies is given but communication is latency; set it to link or blocking",
        ),
        ([*SIZE, "--loss", "1,2"], "--loss: 2 times; give one, it holds for the step"),
        (
            [*SIZE, "--input-ready", "0,1"],
            "input_ready_ticks has 2 values; give 8, one a microbatch",
        ),
        (
            [*SIZE, "--barrier", "local"],
            "Invalid value for '--barrier': 'local' is not one of 'none', 'global', 'post-validation'; see zbopt solve "
            "--help",
        ),
        (
            [*SIZE, "--optimizer", "3"],
            "optimizer_ticks is given but barrier is none; set barrier to global or post_validation, or leave "
            "optimizer_ticks out",
        ),
        ([*SIZE, "--time-limit", "nan"], "time_limit_s = nan: give more than 0 and less than 10 million seconds"),
        ([*SIZE, "--time-limit", "0"], "time_limit_s = 0: give more than 0 and less than 10 million seconds"),
        ([*SIZE, "--workers", "0"], "workers = 0: give 1 to 1024, or none for all processors"),
        ([*SIZE, "--seed", "-1"], "seed = -1: give 0 to 2147483647"),
        ([*SIZE, "--forward", "1ms,2"], "some times of forward have a unit; give all times a unit (ms, us), or none"),
        ([*SIZE, "--backward", "none"], "backward_ticks has 1 value for 4 virtual stages; give 4"),
        ([*SIZE, "--receive-buffers", "x"], "--receive-buffers: 'x' is not a whole number; write it as 8"),
        ([*SIZE, "--host-link", "0,a"], "--host-link: 'a' is not a whole number; write it as 8"),
        ([*SIZE, "--zzz"], "No such option: --zzz; see zbopt solve --help"),
        ([*SIZE, "-o", "/no/such/folder/x.json"], "-o /no/such/folder/x.json: there is no directory /no/such/folder; "
         "make it, or give another path"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)  # fmt: skip
def test_wrong_flags(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every line is quoted in full: an error text that no test reads goes wrong unseen."""
    assert refused(["solve", *arguments], capsys) == message


PORTS = {"communication": "link", "transfer_occupies": "port"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": 0}, "stages = 0: must be at least 1"),
        ({"stages": "4"}, "stages = '4': must be a whole number"),
        ({"stages": None}, "stages = null: must be a whole number"),
        ({"microbatches": 1.5}, "microbatches = 1.5: must be a whole number"),
        ({"microbatches": True}, "microbatches = True: must be a whole number"),
        ({"forward_ticks": 0}, "forward_ticks[0] = 0: must be at least 1"),
        ({"forward_ticks": [1, -2]}, "forward_ticks[1] = -2: must be at least 1"),
        ({"forward_ticks": float("nan")}, "forward_ticks[0] = nan: must be a whole number"),
        ({"forward_ticks": float("inf")}, "forward_ticks[0] = inf: must be a whole number"),
        ({"forward_ticks": 10**12}, "forward_ticks[0] = 1000000000000: must be at most 1000000000"),
        ({"forward_ticks": {}}, "forward_ticks: must be a list, or one value for all"),
        ({"comm_matrix": 3}, "comm_matrix = 3: must be a list"),
        ({"routes": {}}, "routes: must be a list"),
        ({"stage_of": [0.0, 1]}, "stage_of[0] = 0.0: must be a whole number"),
        ({"stage_of": [True, 0]}, "stage_of[0] = True: must be a whole number"),
        ({"forward_ticks": [1, 2, 3]}, "forward_ticks has 3 values for 2 virtual stages; give 1 or 2"),
        ({"comm_ticks": -1}, "comm_ticks = -1: must be at least 0"),
        ({"memory_cap": float("nan")}, "memory_cap[0] = nan: not a finite number; write 2, 1.5 or '3/2'"),
        ({"memory_cap": 1e300}, "memory_cap[0] = 1e+300: must be at most 10000000000000"),
        ({"memory_cap": [1, 2, 3]}, "memory_cap has 3 values for 2 stages; give 1 or 2"),
        ({"stage_of": [0, 5]}, "stage_of[1] = 5 is no stage; stages are 0 to 1"),
        ({"stage_of": [0, 0]}, "stage 1 holds no virtual stage; give each stage at least one in stage_of"),
        ({"micro": 3}, "micro: this version knows no such field; did you mean microbatches?"),
        ({"forward": 3}, "forward: this version knows no such field; did you mean forward_ticks?"),
        ({"bandwidth": 2}, "bandwidth is given but boundary is not; give the size of what a stage hands on"),
        ({"boundary": 1, "bandwidth": 0}, "bandwidth = 0: must be above 0"),
        (
            {"boundary": 10**9, "bandwidth": "1/1000"},
            "boundary[0] takes 1000000000000 ticks from virtual stage 0 to 1, of at most 1000000000; give a longer "
            "tick or a greater bandwidth",
        ),
        ({"node_comm_ticks": 2}, "node_comm_ticks is given but stages_per_node is not; say how many stages a node has"),
        ({"comm_matrix": [[0, 1]]}, "comm_matrix is not 2 rows of 2 values; give one row and column a stage"),
        ({"collectives": [{"kind": "F", "start": 0, "ticks": 1}]}, "collectives are given but transfers do not occupy "
         "ports; set communication to link or blocking, and transfer_occupies to port"),
        (PORTS | {"collectives": [{"kind": "F", "start": 0, "ticks": 2}]}, "collectives[0] ends at 2 in F, which takes "
         "1; end it before that"),
        (PORTS | {"collectives": [{"kind": "O", "start": 0, "ticks": 1}]}, "collectives[0].kind = O: collectives are "
         "inside F, B, W, BW"),
        ({"iterations": 2}, "iterations = 2 but barrier is none: no optimizer step parts them; set barrier to global "
         "or post_validation"),
        ({"barrier_ticks": 1}, "barrier_ticks is given but barrier is none; set barrier to global"),
        ({"reduction_occupies": "node"}, "reduction_occupies is given but reduction_ticks is not; give the time of G "
         "too"),
        ({"reduction_ticks": 1, "reduction_occupies": "port"}, "reduction_occupies is port but transfers do not occupy "
         "ports; set communication to link or blocking, and transfer_occupies to port"),
        ({"input_ready_ticks": [1, 2]}, "input_ready_ticks[0] = 1: times count from the first input; set it to 0"),
        ({"microbatches": 3, "input_ready_ticks": [0, 2, 1]}, "input_ready_ticks[2] = 1 is before input_ready_ticks[1] "
         "= 2; inputs come in the order of the microbatches"),
        ({"zoom": "choose"}, "zoom: this version knows no such field; leave it out"),
        ({"objective": "energy"},
         "objective = 'energy': must be 'makespan', 'max_stage_span' or 'period'; this version knows no other"),
        ({"schema": "zbopt.instance/9"}, "schema = 'zbopt.instance/9': must be 'zbopt.instance/1'"),
        ({"tick": "1h"}, "tick = '1h': must be 'unit' or a duration such as 1us"),
        ({"name": 5}, "name = 5: must be a text"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)  # fmt: skip
def test_wrong_fields(
    change: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with one wrong field: the line names the file, the field, the value and the limit."""
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(INSTANCE | change))
    assert refused(["solve", str(path)], capsys) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": 1.5}, "events[0].start = 1.5: must be a whole number"),
        (
            {"kind": "Q"},
            "events[0].kind = 'Q': must be 'F', 'B', 'W', 'BW', 'R', 'O', 'G', 'SEND_F', 'SEND_B', 'OUT' or 'IN'; this "
            "version knows no other",
        ),
        ({"stage": None}, "events[0].stage = null: must be a whole number"),
        ({"micro": 1}, "events[0].micro: this version knows no such field; leave it out"),
        ({"start": float("nan")}, "events[0].start = nan: must be a whole number"),
        ({"stage": True}, "events[0].stage = True: must be a whole number"),
        ({"end": "5"}, "events[0].end = '5': must be a whole number"),
        ({"end": 10**18}, "events[0].end = 1000000000000000000: must be at most 100000000000000000"),
        ({"end": 10**400}, "events[0].end: must be at most 100000000000000000"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_wrong_events(
    change: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A schedule file with one wrong event: the line names the event, the field, the value and the limit."""
    path = tmp_path / "schedule.json"
    event = {"kind": "F", "stage": 0, "virtual_stage": 0, "microbatch": 0, "start": 0, "end": 1}
    fields = {"schema": "zbopt.schedule/1", "instance": INSTANCE, "provenance": {"source": "test"}}
    path.write_text(json.dumps(fields | {"events": [event | change]}))
    assert refused(["validate", str(path)], capsys) == f"{path}: {message}"


def test_wrong_parts_of_a_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule without its events is refused, and so is one of another version."""
    path = tmp_path / "schedule.json"
    fields = {"schema": "zbopt.schedule/1", "instance": INSTANCE, "provenance": {"source": "test"}}
    path.write_text(json.dumps(fields))
    assert refused(["show", str(path)], capsys) == f"{path}: events: is missing; give it"
    path.write_text(json.dumps(fields | {"schema": "zbopt.schedule/2", "events": []}))
    assert refused(["show", str(path)], capsys) == f"{path}: schema = 'zbopt.schedule/2': must be 'zbopt.schedule/1'"


def test_missing_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A field that has no default has to be there."""
    path = tmp_path / "instance.json"
    path.write_text(json.dumps({"stages": 2, "forward_ticks": 1}))
    assert refused(["solve", str(path)], capsys) == f"{path}: microbatches: is missing; give it"


@pytest.mark.parametrize("command", ["solve", "compare", "validate", "show"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; give a JSON or TOML file"),
        (b"\x7fELF\xff\x00", "not a text file (byte 4); give a JSON or TOML file in UTF-8"),
        (b'{"stages": 2,', "not valid JSON: Expecting property name enclosed in double quotes: line 1 column 14 "
         "(char 13)"),
        (b"[" * 100_000, "nested too deeply to be read; give a plain JSON or TOML file"),
        (b"9" * 5000, "holds a number of more than 4300 digits; write it shorter"),
        (b'{"a": {"stages": 2, "name": "x", "stages": 3}}', "'stages' stands twice in one object; leave one out"),
        (b'{"stages": 2, "name": ["\\ud83d"]}', r"'\ud83d' holds half a character (\ud800 to \udfff); write it whole"),
    ],
    ids=["empty", "binary", "broken", "deep", "huge", "twice", "half"],
)  # fmt: skip
def test_wrong_files(
    command: str, content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that holds no document is refused."""
    path = tmp_path / "file.json"
    path.write_bytes(content)
    assert refused([command, str(path)], capsys) == f"{path}: {message}"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_bug_files_of_other_editors(suffix: str, mark: str, ending: str, tmp_path: Path) -> None:
    """A mark of the encoding in front was 'Unexpected UTF-8 BOM (decode using utf-8-sig)'; line ends are any."""
    lines = [f"{name} = {value}" for name, value in INSTANCE.items()]
    path = tmp_path / f"instance{suffix}"
    text = json.dumps(INSTANCE, indent=1) if suffix == ".json" else "\n".join(lines)
    path.write_bytes((mark + text.replace("\n", ending)).encode())
    assert read_instance(path) == Instance.model_validate(INSTANCE)


def test_bug_texts_that_command_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The name in a file was printed as it is, with whatever it told the terminal to do."""
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(INSTANCE | {"name": "a\x1b[31mb\x9b", "barrier": "global\x1b"}))
    assert run(["solve", str(path)]) == 2
    path.write_text(json.dumps(INSTANCE | {"name": "a\x1b[31mb\x9b \N{GRINNING FACE}"}))
    assert run(["solve", str(path)]) == 0
    printed = capsys.readouterr()
    assert "microbatches (a\\x1b[31mb\\x9b \N{GRINNING FACE})\n" in printed.out
    assert "\x1b" not in printed.out + printed.err


def test_bug_names_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file whose name is not UTF-8 ended in 'codec can't encode character', without the file's name."""
    path = tmp_path / os.fsdecode(b"s\xff.json")
    assert run(["solve", *SIZE, "-o", str(path)]) == 0
    assert run(["report", str(path), "-o", str(tmp_path / "page.html")]) == 0
    assert run(["validate", str(path)]) == 0
    assert "s\\udcff.json: valid\n" in capsys.readouterr().out
    assert "s\\udcff.json" in (tmp_path / "page.html").read_text()


def test_list_instead_of_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is JSON but no object is refused."""
    path = tmp_path / "list.json"
    path.write_text("[1]")
    assert refused(["solve", str(path)], capsys) == (
        f"{path}: holds a list, not an instance; give an object with its fields"
    )
    assert refused(["validate", str(path)], capsys) == (
        f"{path}: events[0] = 1 is not an object; give one with id, stage, micro, kind, start, end"
    )


@pytest.mark.parametrize("command", ["solve", "compare", "validate", "show"])
def test_no_file(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path without a file is refused, and so is a directory."""
    missing = tmp_path / "missing.json"
    way_out = "give the path of a JSON or TOML file"
    assert refused([command, str(missing)], capsys) == f"{missing}: no such file or directory; {way_out}"
    assert refused([command, str(tmp_path)], capsys) == f"{tmp_path}: is a directory; {way_out}"


def test_instance_where_a_schedule_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The two kinds of files are told apart."""
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(INSTANCE))
    assert refused(["show", str(path)], capsys) == (
        f"{path}: is an instance, not a schedule; make one with zbopt solve {path} -o FILE"
    )


def test_bug_schedule_where_an_instance_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was 'instance: this version knows no such field; did you mean stages?'."""
    path = tmp_path / "schedule.json"
    assert run(["solve", *SIZE, "-o", str(path)]) == 0
    capsys.readouterr()
    assert refused(["solve", str(path)], capsys) == (
        f"{path}: is a schedule, not an instance; give what its field instance holds as a file"
    )


def test_flags_beside_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag never changes a file's pipeline without a word: it is refused."""
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(INSTANCE))
    assert refused(["solve", str(path), "--stages", "4"], capsys) == (
        f"--stages beside {path}: the file says it; change the file, or leave the file out"
    )


def test_output_is_refused_before_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An output that could not be written would lose the search."""
    assert refused(["solve", *SIZE, "-o", str(tmp_path)], capsys) == (
        f"-o {tmp_path}: is a directory; give the path of a file in it"
    )


def test_bug_a_file_called_minus(capsys: pytest.CaptureFixture[str]) -> None:
    """``-o -`` wrote a file of that name, where other programs mean standard output."""
    assert refused(["solve", *SIZE, "-o", "-"], capsys) == (
        "-o -: no file is called so here; give /dev/stdout for standard output, or another path"
    )


def test_bug_a_file_without_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``zbopt solve /dev/zero`` read until memory was full."""
    monkeypatch.setattr(documents, "_LONGEST", 100)
    assert refused(["solve", "/dev/zero"], capsys) == (
        "/dev/zero: has more than 100 characters; give a JSON or TOML file that is shorter"
    )
    assert refused(["import", "/dev/zero", "--from", "torch-csv"], capsys) == (
        "/dev/zero: has more than 100 characters; give a file that is shorter"
    )


def test_output_never_replaces_the_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``zbopt solve x.json -o x.json`` would destroy what was asked."""
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(INSTANCE))
    assert refused(["solve", str(path), "-o", str(path)], capsys) == (
        f"-o {path}: is a file that this call reads; give another path"
    )


@pytest.mark.parametrize("command", ["solve", "compare"])
def test_cap_below_one_activation_is_infeasible(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Stage 2 may hold half an activation, and one microbatch needs a whole one: exit code 1."""
    assert refused([command, *SIZE, "--mem-limit", "1,1,0.5,1"], capsys, 1) == (
        "infeasible: stage 2: memory cap 1/2 is below the 1 that one microbatch needs; raise it to 1"
    )


def test_infeasible_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON object names stage, cap and need."""
    assert run(["solve", *SIZE, "--mem-limit", "0.5", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["status"] == "infeasible"
    assert record["infeasible"] == {"stage": 0, "cap": 0.5, "needed": 1}
    assert record["value"] is None


def test_wrong_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong verb, a wrong flag and a missing argument give exit code 2."""
    assert refused(["--bogus"], capsys) == "No such option: --bogus; see zbopt --help"
    assert refused(["slove"], capsys).startswith("No such command 'slove'")
    assert refused(["validate"], capsys) == "Missing argument 'FILE'; see zbopt validate --help"


def test_the_real_program_ends_the_same_way() -> None:
    """The program in a process of its own ends alike: exit code 2, one line, no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "zbopt", "solve", "--stages", "0", "--micro", "8"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "zbopt: stages = 0: must be at least 1\n")


def test_one_is_not_several(capsys: pytest.CaptureFixture[str]) -> None:
    """It was 'for 1 stages; give 1 or 1', and '1 stages, 1 microbatches'."""
    assert run(["solve", "--stages", "1", "--micro", "1", "--mem-limit", "1,2"]) == 2
    assert "memory_cap has 2 values for 1 stage; give 1\n" in capsys.readouterr().err
    assert run(["solve", "--stages", "1", "--micro", "1"]) == 0
    assert "asked: 1 stage, 1 microbatch\n" in capsys.readouterr().out
