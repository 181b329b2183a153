"""Files and results of version 0.1 read, and are what they were.

``v01/calls.json`` holds calls of the command line as 0.1 answered them; ``v01/record.py`` wrote it. A value may depend
on the clock; sentences may be reworded: of both only the presence is compared. Which of CP-SAT's questions ended first
depends on the clock too, so that all of them count as ``cp-sat``. Everything else has to be equal.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from zbopt import read_instance, read_schedule, validate, write_schedule
from zbopt.analysis.metrics import figures
from zbopt.cli import run

HERE = Path(__file__).parent / "v01"
CALLS: dict[str, Any] = json.loads((HERE / "calls.json").read_text())
SCHEDULES = sorted(HERE.glob("*.schedule.json"))
OF_THE_CLOCK = {"history", "time_s", "versions", "wall_time_s"}
SENTENCES = {"message", "note", "notes", "reason"}


def settled(value: Any) -> Any:
    """Return a printed value with what depends on the clock, and each sentence, replaced by a mark."""
    if isinstance(value, dict):
        marked = OF_THE_CLOCK | SENTENCES
        return {key: "present" if key in marked else settled(held) for key, held in value.items()}
    if isinstance(value, list):
        return [settled(held) for held in value]
    return "cp-sat" if isinstance(value, str) and value.startswith("cp-sat:") else value


def test_there_are_enough_calls() -> None:
    """At least 30 calls were recorded, over every command that prints an object or writes a file without torch."""
    assert len(CALLS) >= 30
    commands = {call["arguments"][0] for call in CALLS.values()}
    assert commands == {"solve", "compare", "validate", "ledger", "explain", "export", "import"}


@pytest.mark.parametrize("name", CALLS)
def test_call(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A recorded call has the exit code, the printed object and the written file that it had in 0.1."""
    call, out = CALLS[name], tmp_path / "out"
    monkeypatch.chdir(HERE)
    assert run([argument.replace("{out}", str(out)) for argument in call["arguments"]]) == call["code"]
    printed = capsys.readouterr().out
    assert settled(json.loads(printed) if call["printed"] is not None else None) == settled(call["printed"])
    assert (out.read_text() if out.exists() else None) == call["written"]


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.name)
def test_schedule_file(path: Path, tmp_path: Path) -> None:
    """A schedule file of 0.1 is valid, has the value that it says, and is the same when it is written again."""
    schedule = read_schedule(path)
    assert validate(schedule.instance, schedule).valid
    assert figures(schedule).value(schedule.instance.objective) == schedule.provenance.value
    write_schedule(schedule, tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(path.read_text())
    assert read_instance(HERE / path.name.replace(".schedule.", ".instance.")) == schedule.instance
