"""Files are written as a whole: a write that fails leaves what was there, and says which file it was."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from zbopt.heuristics import HEURISTICS
from zbopt.problem.atomic import write_bytes, write_text
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import write_schedule


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    """Write a schedule of 4 stages and 64 microbatches: every file made of it is larger than 16 KiB."""
    path = tmp_path / "schedule.json"
    write_schedule(HEURISTICS["zb-h1"](Instance.uniform(stages=4, microbatches=64)), path)
    return path


def limited(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command whose files may not grow beyond 4 to 8 KiB, as on a disk that is full."""
    command = shlex.join([sys.executable, "-m", "zbopt", *words])
    return subprocess.run(
        ["sh", "-c", f"ulimit -f 8; exec {command}"], capture_output=True, text=True, cwd=folder, check=False
    )


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["export", "schedule.json", "--to", "chrome-trace", "-o", "good.json"], "good.json"),
        (["report", "schedule.json", "-o", "good.html"], "good.html"),
        (["plot", "schedule.json", "-o", "good.pdf"], "good.pdf"),
        (["import", "order.csv", "--from", "torch-csv", "-o", "good.json"], "good.json"),
        (["solve", "--stages", "4", "--micro", "64", "--time-limit", "5", "-o", "good.json"], "good.json"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bug_full_disk_destroyed_the_file_before(schedule: Path, tmp_path: Path, words: list[str], target: str) -> None:
    """Outputs were written in place: a full disk left a cut file where a good one had been.

    The error blamed standard output, and of a picture in PDF it was an AttributeError.
    """
    if words[0] == "plot" and find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    if words[0] == "import":
        subprocess.run(
            [sys.executable, "-m", "zbopt", "export", "schedule.json", "--to", "torch-csv", "-o", "order.csv"],
            cwd=tmp_path,
            check=True,
        )
    (tmp_path / target).write_text("good")
    before = set(tmp_path.iterdir())
    done = limited(words, tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"{target}: file too large" in done.stderr
    assert (tmp_path / target).read_text() == "good"
    assert set(tmp_path.iterdir()) == before


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    """A new file gets the permissions that the mask allows; an old one keeps its own; a symbolic link stays one."""
    mask = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "é\n")
    finally:
        os.umask(mask)
    assert (tmp_path / "new").read_bytes() == "é\n".encode()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    (tmp_path / "new").chmod(0o604)
    (tmp_path / "link").symlink_to("new")
    write_bytes(tmp_path / "link", b"other")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").read_bytes() == b"other"
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o604


def test_what_is_no_file_is_written_in_place(tmp_path: Path) -> None:
    """A device stays a device; its error has its name, with which the caller can tell it from another."""
    write_text("/dev/null", "nothing")
    assert not Path("/dev/null").is_file()
    with pytest.raises(OSError, match="No space left on device: '/dev/full'") as raised:
        write_text("/dev/full", "nothing")
    assert raised.value.filename == "/dev/full"


def test_errors_name_the_file(tmp_path: Path) -> None:
    """A folder that is not there is named by the path that was asked for, and not by that of a temporary file."""
    path = tmp_path / "nowhere" / "x.json"
    with pytest.raises(FileNotFoundError) as raised:
        write_text(path, "nothing")
    assert raised.value.filename == str(path)
