"""The scripts in tests/scripts, as a user would write them: they run, and type checkers understand the API in them."""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = sorted((REPOSITORY / "tests" / "scripts").glob("*.py"))


def test_there_are_ten_scripts() -> None:
    """Each shows one thing that users do with the API."""
    assert len(SCRIPTS) == 10


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_runs(script: Path, tmp_path: Path) -> None:
    """It ends with 0 in an empty folder; its own assertions say what holds."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_scripts_pass_strict_type_checks(tmp_path: Path) -> None:
    """``mypy --strict`` without any settings, such as pydantic's plugin, finds nothing in the scripts."""
    environment = os.environ | {"MYPYPATH": str(REPOSITORY), "NO_COLOR": "1"}
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, SCRIPTS)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues found in 10 source files" in done.stdout


def test_types_are_shipped() -> None:
    """The package says that it has types, without which no type checker looks at them."""
    assert files("zbopt").joinpath("py.typed").is_file()
