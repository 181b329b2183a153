"""The processes of a replay, started in a folder of the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

START = """
import sys
sys.path.remove("")  # as for an installed command
from zbopt.replay.launch import _context
process = _context().Process(target=print, args=("ran",))
process.start()
process.join()
raise SystemExit(process.exitcode)
"""


def test_bug_files_of_the_current_folder_ended_a_replay(tmp_path: Path) -> None:
    """The process that forks the others had the current folder first on its path, and ran what is there."""
    for name in ("queue", "random", "signal", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
