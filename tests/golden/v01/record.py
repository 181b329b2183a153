"""Record what version 0.1 prints and writes for each call of ``calls.json``.

Run it with a checkout of 0.1 first on the path, from any folder:
``PYTHONPATH=CHECKOUT python tests/golden/v01/record.py``. It runs every call twice in this folder, and fails
where two runs differ in what the call does not mask. Of a call it reads name, arguments and masks; it writes exit code
and output beside them, and copies written files into this folder. ``instances``, ``foreign`` and ``bench-set`` are
inputs, and stay as they are.

``OUT`` in an argument is the folder that written files go to: ``OUT/schedules/x.json`` is recorded as
``schedules/x.json``.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zbopt.cli import run

HERE = Path(__file__).parent
CALLS = HERE / "calls.json"
OUT = "OUT"
WIDTH = "120"
RUN = frozenset({"wall_time_s", "history", "versions"})
"""Keys whose values belong to one run: only their presence counts."""
TEXT = frozenset({"message", "reason", "notes", "fault", "error", "why"})
"""Keys of sentences, which may be worded anew: only whether there is one counts."""
ROWS = ("stage ", "tick ")
"""How the lines of a chart begin: all that counts of a page."""


@dataclass(frozen=True)
class Call:
    """One call of the command line; ``masked`` are keys at any depth whose values may differ between equal optima."""

    name: str
    argv: tuple[str, ...]
    masked: frozenset[str]

    @property
    def written(self) -> tuple[str, ...]:
        """Return the files that the call writes, below the folder of output."""
        return tuple(a.removeprefix(f"{OUT}/") for a in self.argv if a.startswith(f"{OUT}/"))


def read_calls() -> list[dict[str, Any]]:
    """Read all recorded calls."""
    calls: list[dict[str, Any]] = json.loads(CALLS.read_text(encoding="utf-8"))
    return calls


def call_of(record: dict[str, Any]) -> Call:
    """Take the call out of its record."""
    return Call(record["name"], tuple(record["argv"]), frozenset(record["masked"]))


def replay(call: Call, out: Path) -> tuple[int, Any]:
    """Run a call in this folder; return its exit code and its masked output."""
    for name in call.written:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
    argv = [str(out / a.removeprefix(f"{OUT}/")) if a.startswith(f"{OUT}/") else a for a in call.argv]
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with chdir(HERE), redirect_stdout(printed):
            code = run(argv)
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    printed.seek(0)
    text = printed.read().replace(str(out), OUT)
    if call.written and not text.startswith("{"):  # a sentence about the written file
        return code, bool(text)
    return code, content_of(text, call.masked)


def content_of(text: str, names: Collection[str]) -> Any:
    """Return what counts of a text: JSON with masks (a list where each line is a document), a chart's rows, or all."""
    lines = text.splitlines()
    if not text.startswith("{"):
        return [line for line in lines if line.startswith(ROWS)] or lines
    try:
        return masked(json.loads(text), names)
    except json.JSONDecodeError:
        return [masked(json.loads(line), names) for line in lines]


def content_of_file(path: Path, names: Collection[str]) -> Any:
    """Return what counts of a written file."""
    return content_of(path.read_text(encoding="utf-8"), names)


def masked(content: Any, names: Collection[str]) -> Any:
    """Return a document without the values of masked keys; fractions keep 12 digits."""
    if isinstance(content, dict):
        return dict(_masked_items(content, names))
    if isinstance(content, list):
        return [masked(value, names) for value in content]
    return float(f"{content:.12g}") if isinstance(content, float) else content


def _masked_items(content: dict[str, Any], names: Collection[str]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if key in RUN or key in names:
            yield key, "masked"
        elif key in TEXT:
            yield key, bool(value)
        else:
            yield key, masked(value, names)


def files_of(call: Call, out: Path) -> dict[str, Any]:
    """Return what counts of each file that a call wrote into ``out``."""
    return {name: content_of_file(out / name, call.masked) for name in call.written if (out / name).exists()}


def _recorded(record: dict[str, Any]) -> dict[str, Any]:
    """Run a call twice, keep the files of the first run, and return its new record."""
    call = call_of(record)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        runs = [(*replay(call, out), files_of(call, out)) for out in (Path(first), Path(second))]
        if runs[0] != runs[1]:
            raise SystemExit(f"{call.name}: two runs differ; mask what differs\n{runs[0]}\n{runs[1]}")
        code, output, written = runs[0]
        for name in written:
            (HERE / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(Path(first) / name, HERE / name)
    head = {"name": call.name, "argv": list(call.argv), "masked": sorted(call.masked)}
    return head | {"exit": code, "written": sorted(written), "output": output}


def main() -> None:
    """Record every call, in order: later ones read what earlier ones wrote."""
    records = [_recorded(record) for record in read_calls()]
    lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    CALLS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    sys.stdout.write(f"{len(records)} calls recorded\n")


if __name__ == "__main__":
    main()
