"""Files and results of version 0.1 stay readable and equal.

``v01/calls.json`` holds calls of the command line with what 0.1 printed and wrote, as ``v01/record.py``
recorded it. Each is run again here, in the folder ``v01``, so that paths are equal. Output and written files are
compared in full, except:

- ``wall_time_s``, ``history`` and ``versions`` belong to one run: only their presence counts.
- ``message``, ``reason``, ``notes``, ``fault``, ``error`` and ``why`` are sentences, which may be worded anew: only
  whether there is one counts. So it is with what a call says of a file that it writes; stderr is not compared.
- Of a page, which is no JSON, only the rows of its chart count.
- Fractions are compared to 12 digits.
- What a call masks, at any depth. Where CP-SAT or the integer program searched, equal optima may differ: events, who
  found them, peak memory and the figures that are not minimised are masked; status, value, bound and its proof are
  compared. Of a row of the bench that is ``asked``, a digest of the instance.

Schedules of heuristics that a closed bound proves are compared event by event: they do not depend on chance or machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden.v01.record import HERE, call_of, content_of_file, files_of, read_calls, replay

import zbopt

CALLS = read_calls()
SCHEDULES = sorted(path.name for path in (HERE / "schedules").glob("*.json"))


@pytest.mark.parametrize("record", CALLS, ids=[record["name"] for record in CALLS])
def test_call_of_0_1(record: dict[str, Any], tmp_path: Path) -> None:
    """Exit code, output and written files are what 0.1 made of the same call."""
    call = call_of(record)
    code, output = replay(call, tmp_path)
    assert code == record["exit"]
    assert output == record["output"]
    recorded = {name: content_of_file(HERE / name, call.masked) for name in record["written"]}
    assert files_of(call, tmp_path) == recorded


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_file_of_0_1(name: str, tmp_path: Path) -> None:
    """A schedule is read, found valid, as long as its events say by hand, and written again without a change."""
    path = HERE / "schedules" / name
    schedule = zbopt.read_schedule(path)
    verdict = zbopt.validate(schedule.instance, schedule)
    assert verdict.violations == ()
    events = json.loads(path.read_text(encoding="utf-8"))["events"]
    assert verdict.makespan == max(e["end"] for e in events) - min(e["start"] for e in events)
    zbopt.write_schedule(schedule, tmp_path / name)
    assert zbopt.read_schedule(tmp_path / name) == schedule
    assert json.loads((tmp_path / name).read_text(encoding="utf-8")) == json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted((HERE / "instances").iterdir()), ids=lambda path: path.name)
def test_instance_file_of_0_1(path: Path) -> None:
    """An instance is read, or refused where 0.1 refused it."""
    if path.stem == "refused":
        with pytest.raises(ValueError, match="forward_ticks"):
            zbopt.read_instance(path)
    else:
        assert zbopt.read_instance(path).stages >= 2


def test_enough_is_recorded() -> None:
    """No call or file of the corpus has gone missing."""
    assert len(CALLS) >= 80
    assert {name for record in CALLS for name in record["written"] if name.startswith("schedules/")} == {
        f"schedules/{name}" for name in SCHEDULES
    }
