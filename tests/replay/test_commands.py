"""The commands, as a user calls them; small, in one process or two."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from zbopt import cli
from zbopt.cli import out
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Kind, read_instance
from zbopt.problem.schedule import read_schedule, write_schedule
from zbopt.replay import launch
from zbopt.replay.launch import ReplayError
from zbopt.replay.trace import read_trace
from zbopt.validator import Code, validate

pytestmark = pytest.mark.alone

Call = Callable[..., int]


@pytest.fixture(scope="module")
def call() -> Call:
    """Run one command and return its exit code."""
    group = typer.main.get_command(cli.app_of(("replay", "prove", "qualify", "diff", "profile")))
    return lambda *words: int(group.main([str(w) for w in words], standalone_mode=False) or 0)


@pytest.fixture(scope="module")
def plan(plans: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("commands") / "plan.json"
    write_schedule(plans.zb_h1(2, 4), path)
    return path


def test_without_torch_the_way_out_is_named(call: Call, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with pytest.raises(ReplayError, match=r"torch is not installed; install zbopt\[replay\]"):
        call("replay", plan)


def test_another_torch_is_refused(call: Call, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: name)
    monkeypatch.setattr(launch, "version", lambda name: "2.14.1")
    with pytest.raises(ReplayError, match=r"torch 2\.14\.1 is installed, but replay needs 2\.13; install"):
        call("replay", plan)


def test_torch_is_not_loaded_before_a_command_runs() -> None:
    code = "import sys, zbopt.cli.replay, zbopt.cli.qualify, zbopt.cli.profile; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--network", "gpt", "--width", "7"), "width 7 does not divide by 2 heads"),
        (("--network", "wait", "--dtype", "float32"), "dtype float32 cannot carry a time; use float64"),
        (("--microbatch-size", "0"), "microbatch_size = 0: must be at least 1"),
        (("--damage", "nonsense"), "damage = 'nonsense': give missing-w, late-w, "),
        (("--steps", "0"), "steps = 0: must be at least 1"),
        (("--overflow-at", "1,3"), "overflow_at = 3: there is no such step; steps are 0 to 2"),
        (("--clip-at", "2", "--steps", "2"), "clip_at = 2: there is no such step; steps are 0 to 1"),
        (("--checkpoint-every", "1", "--checkpoint-dir", __file__), "is a file; give the path of a folder"),
        (
            ("--checkpoint-every", "1", "--checkpoint-dir", f"{__file__}/saved"),
            "test_commands.py is a file; give the path",
        ),
        (("--learning-rate", "inf"), "learning_rate = inf: must be finite"),
        (("--timeout", "nan"), "timeout = nan: give at least 1 second"),
        (("--timeout", "0.001"), "timeout = 0.001: give at least 1 second"),
        (("--init-seed", "-1"), "seed = -1: must be at least 0"),
        (("--trace", "nowhere/t.json"), "--trace nowhere/t.json: there is no directory nowhere; make it"),
        (("--observed", "."), r"--observed .: is a directory; give the path of a file in it"),
        (("--observed", "a.json", "--trace", "./a.json"), "--observed a.json: --trace writes to the same file"),
        (("--resume",), "need a folder of checkpoints; give --checkpoint-dir"),
        (("--resume", "--checkpoint-dir", "nowhere"), "nowhere: holds no complete checkpoint; leave --resume out"),
        (("--clip-at", "one"), "'one' is not a list of steps; write it as 1,3"),
    ],
)
def test_wrong_calls(call: Call, plan: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(Exception, match=message):
        call("replay", plan, *words)


def test_bug_ctrl_c_is_for_the_process_that_starts_the_others() -> None:
    """A terminal sends it to all: the process they are forked from, while it loads torch, answered with a traceback."""
    member = launch._context().Process(target=_exit_by_handler, daemon=True)
    member.start()
    member.join()
    assert member.exitcode == 42
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def _exit_by_handler() -> None:
    raise SystemExit(42 if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else 1)


ORPHANED = """
import multiprocessing, time
from zbopt.replay.launch import _end_with
member = multiprocessing.get_context("fork").Process(target=lambda: _end_with(multiprocessing.parent_process()))
member.start()
print("begun", flush=True)
time.sleep(600)
"""


def test_bug_members_went_on_without_their_parent() -> None:
    """A killed replay left its processes, which waited or computed on. Now standard output closes with them."""
    with subprocess.Popen([sys.executable, "-c", ORPHANED], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        program.kill()
        assert program.stdout.read() == ""


@pytest.mark.parametrize(
    ("rank", "world", "message"),
    [("0", "3", r"3 processes for 2 \(stages times replicas.*start 2"), ("x", "2", "RANK = 'x' is not a whole number")],
)
def test_bug_a_wrong_number_of_processes(
    rank: str, world: str, message: str, call: Call, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waited three minutes for the others before it counted them."""
    pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    for name, value in {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ReplayError, match=message):
        call("replay", plan)


def test_bug_members_of_a_run_that_was_ended_say_nothing(tmp_path: Path) -> None:
    """They were forked all the same once torch was loaded, and missed the run's folder with a traceback."""
    with pytest.raises(SystemExit):
        launch._member(str(tmp_path / "gone"), 0, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "nowhere/m.json"), "-o nowhere/m.json: there is no directory nowhere; make it"),
        (("-o", "m.json", "--micro", 9_999_999), "microbatches = 9999999: must be at most 1000000"),
        (("-o", "m.json", "--mem-limit", -3), r"memory_cap\[0\] = -3: must be at least 0"),
        (("-o", "m.json", "--placement", "bidirectional", "--virtual", 2), "--placement bidirectional: choose linear"),
    ],
)
def test_bug_wrong_calls_after_measuring(call: Call, words: tuple[str | int, ...], message: str) -> None:
    """Each was said after the measurement, or not at all; a cap of 0 was no cap, and two routes were taken for one."""
    with pytest.raises(ValueError, match=message):
        call("profile", "--stages", 2, *words)


def test_bug_json_of_losses_that_are_no_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """A loss that overflows was written as NaN, which no JSON parser but Python's takes."""
    record = {"losses": [[1.5, float("nan")], [float("inf")]], "name": "x", "weights": {"a": -float("inf")}}
    out.measured(record)
    assert json.loads(capsys.readouterr().out) == {"losses": [[1.5, None], [None]], "name": "x", "weights": {"a": None}}


def test_an_invalid_schedule_is_refused_before_start(call: Call, plan: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    schedule = read_schedule(plan)
    kept = tuple(e for e in schedule.events if e.id != "it0/s1/v1/mb2/W")
    write_schedule(schedule.model_copy(update={"events": kept}), tmp_path / "cut.json")
    with pytest.raises(ValueError, match=r"refused before start: missing_task: it0/s1/v1/mb2/W"):
        call("prove", tmp_path / "cut.json")


def test_replay_diff_and_validator_close_the_loop(
    call: Call, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes; every planned event is in the trace, the observed schedule breaks no rule but the durations."""
    pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    trace, observed = tmp_path / "trace.json", tmp_path / "observed.json"
    words = ("--network", "gpt", "--trace", trace, "--observed", observed, "--checksums", "--json")
    assert call("replay", plan, *words) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["steps"] == 3
    assert [len(losses) for losses in record["losses"]] == [4, 4, 4]
    assert [act for _, act, _ in record["decisions"]] == ["step"] * 3
    found = read_schedule(observed)
    codes = {violation.code for violation in validate(found.instance, found).violations}
    assert codes <= {Code.WRONG_DURATION}
    run = cli.run
    assert (run(["validate", str(trace)]), run(["validate", str(observed)])) == (0, 0)
    assert "valid" in capsys.readouterr().out
    events = read_trace(trace).steps[1].events
    assert all(event.asked <= event.start < event.end for event in events)
    assert all(event.checksum for event in events if event.kind is Kind.F)
    assert all(event.gradients_checksum for event in events if event.kind in (Kind.B, Kind.W, Kind.BW))
    assert max(event.memory_bytes for event in events) > 0
    assert call("diff", plan, trace, "--json") == 0
    difference = json.loads(capsys.readouterr().out)
    assert (difference["missing"], difference["unplanned"]) == ([], [])
    assert call("diff", plan, trace) == 0
    text = capsys.readouterr().out
    assert ("first late: it0/" in text) != ("no event started" in text)


def test_checksums_do_not_depend_on_the_placement(call: Call, plan: Path, tmp_path: Path) -> None:
    """Two processes or one: the same outputs and gradients, op by op, in every step."""
    pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    sums = []
    for name, more in (("two", ()), ("one", ("--single-process",))):
        assert call("replay", plan, "--checksums", "--steps", 2, "--trace", tmp_path / name, *more) == 0
        steps = read_trace(tmp_path / name).steps
        sums.append(
            {
                (s.step, e.virtual_stage, e.kind, e.microbatch): (e.checksum, e.gradients_checksum)
                for s in steps
                for e in s.events
            }
        )
    differing = [op for op in sums[0].keys() & sums[1].keys() if sums[0][op] != sums[1][op]]
    assert differing == []
    forwards = [op for op in sums[0] if op[2] is Kind.F]
    assert len(forwards) == 2 * 2 * 4


def test_checkpoints_and_resume(call: Call, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two steps, then three more from the checkpoint: the weights of five steps at a stretch; then nothing is left.

    A checkpoint of another dtype was taken without a word, and of another network with torch's own.
    """
    pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    words = ("replay", plan, "--single-process", "--json")
    folder = ("--checkpoint-dir", tmp_path / "saved", "--checkpoint-every", 1)
    records = []
    for more in (("--steps", 2, *folder), ("--steps", 5, *folder, "--resume"), ("--steps", 5)):
        assert call(*words, *more) == 0
        records.append(json.loads(capsys.readouterr().out))
    assert [record["steps"] for record in records] == [2, 3, 5]
    assert records[1]["weights"] == records[2]["weights"]
    with pytest.raises(ValueError, match="its last checkpoint has all 5 steps; raise --steps"):
        call(*words, "--steps", 5, *folder, "--resume")
    for flags, text in (
        (("--dtype", "float32"), "step-5: holds float64 weights, but the network has float32; give --dtype float64"),
        (
            ("--width", 32),
            r"v0.model.block0.norm.weight has shape \[16\], but \[32\] here; the checkpoint is of another",
        ),
        (("--network", "gpt"), "step-5: has no weight v0.model.embedding.tokens.weight; the checkpoint is of another"),
    ):
        with pytest.raises(ValueError, match=text):
            call(*words, "--steps", 6, *folder, "--resume", *flags)


class _Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_bug_resume_ran_code_of_the_checkpoint(
    call: Call, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``.metadata`` and the numbers of the optimizer were unpickled, whatever they held: a file could run a program."""
    torch = pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    folder, touched = tmp_path / "saved", tmp_path / "touched"
    words = ("replay", plan, "--single-process", "--checkpoint-dir", folder)
    assert call(*words, "--steps", 1, "--checkpoint-every", 1) == 0
    metadata = folder / "step-1" / ".metadata"
    known = pickle.loads(metadata.read_bytes())
    metadata.write_bytes(pickle.dumps(_Touch(touched)))
    with pytest.raises(ValueError, match=r"step-1: \.metadata cannot be read: names posix.system, which is no part of"):
        call(*words, "--steps", 2, "--resume")
    assert not touched.exists()
    text = io.BytesIO()
    torch.save(_Touch(touched), text)
    for index, place in known.storage_data.items():
        if "param_groups" in index.fqn:
            file = folder / "step-1" / place.relative_path
            known.storage_data[index] = replace(place, offset=file.stat().st_size, length=len(text.getvalue()))
            file.write_bytes(file.read_bytes() + text.getvalue())
            break
    metadata.write_bytes(pickle.dumps(known))
    with pytest.raises(ReplayError, match=r"param_groups.* is damaged, or not a number; resume from another"):
        call(*words, "--steps", 2, "--resume")
    assert not touched.exists()


@pytest.mark.parametrize("where", [("--single-process",), ()])
def test_no_cuda_device_is_named(where: tuple[str, ...], call: Call, plan: Path) -> None:
    """With several processes it was the backend's own "Distributed package doesn't have NCCL built in"."""
    torch = pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    with pytest.raises(ReplayError, match="device cuda: this machine has no CUDA device; use --device cpu"):
        call("replay", plan, "--device", "cuda", *where)


def test_prove(call: Call, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    assert call("prove", plan, "--single-process", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"]
    assert found["decisions"] == ["step", "skip", "step", "clip", "step"]
    assert call("prove", plan, "--single-process", "--damage", "missing-w") == 1
    assert "numbers failed: step 0: gradient of v1.block1.down.weight is off" in capsys.readouterr().out


def test_qualify_says_what_it_could_not_run(call: Call, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One process for two stages: three proofs, and no statement about speed; the baseline stands beside."""
    pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    assert call("qualify", plan, "--network", "gpt", "--single-process", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    outcomes = {part["name"]: part["outcome"] for part in report["parts"]}
    assert outcomes == {
        "dependencies": "passed",
        "numbers": "passed",
        "memory": "passed",
        "performance": "not_run",
    }
    assert report["verdict"] == "incomplete"
    baseline = read_schedule(report["baseline"])
    assert validate(baseline.instance, baseline).valid
    assert baseline.instance.microbatches == 4


def test_profile_writes_an_instance(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    path = tmp_path / "measured.json"
    words = ("--network", "gpt", "--placement", "v", "--micro", 4, "--repeats", 3, "-o", path)
    assert call("profile", "--stages", 2, *words) == 0
    instance = read_instance(path)
    assert instance.stage_of == (0, 1, 1, 0)
    assert (instance.tick, instance.memory_unit) == ("1us", "B")
    assert all(amount > 0 for amount in instance.activation)
    assert all(0 < share <= 1 for share in instance.weight_share)


def test_the_engine_s_own_split_is_measured_too(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No B on the first virtual stage; nothing is given back before W, and a plan of it keeps within its ledger."""
    pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    path, plan = tmp_path / "measured.json", tmp_path / "plan.json"
    assert call("profile", "--stages", 2, "--micro", 4, "--split", "engine", "--repeats", 3, "-o", path) == 0
    instance = read_instance(path)
    assert instance.backward_ticks is not None
    assert instance.backward_ticks[0] is None
    assert instance.weight_share == (1, 1)
    capsys.readouterr()
    write_schedule(HEURISTICS["list"](instance), plan)
    assert call("qualify", plan, "--single-process", "--split", "engine", "--json") == 1
    parts = {part["name"]: part for part in json.loads(capsys.readouterr().out)["parts"]}
    outcomes = {name: part["outcome"] for name, part in parts.items()}
    assert outcomes == {"dependencies": "passed", "numbers": "passed", "memory": "passed", "performance": "not_run"}
    ledger, observed = (parts["memory"]["figures"][f"{name}_bytes"] for name in ("ledger", "observed"))
    assert 0 < observed[0] <= ledger[0]


def test_torchrun_runs_the_same(call: Call, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights after three steps are those of ``zbopt replay``: under torchrun rank 0 prints them."""
    pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = ["-m", "zbopt.replay", str(plan), "--network", "gpt", "--json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    printed = subprocess.run(torchrun, env=env, capture_output=True, text=True, check=True).stdout
    assert call("replay", plan, "--network", "gpt", "--single-process", "--json") == 0
    weights = [json.loads(text)["weights"] for text in (printed, capsys.readouterr().out)]
    assert weights[0] == weights[1]
    assert len(weights[0]) == 2 * 11 + 5
