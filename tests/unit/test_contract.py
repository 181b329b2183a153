"""The rules of the code hold: ruff, mypy and the import contract, with their own settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HERE = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "--no-cache"],
        ["ruff", "format", "--check", "--no-cache"],
        ["mypy"],
        ["lint-imports", "--no-cache"],
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_tool_finds_nothing(command: list[str]) -> None:
    """Each tool ends with 0; what it found is the test's message."""
    environment = os.environ | {"NO_COLOR": "1", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [str(HERE / command[0]), *command[1:]], cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_import_starts_nothing() -> None:
    """``import zbopt`` prints nothing and loads neither PyTorch nor the command line."""
    code = "import sys, zbopt; print([m for m in ('torch', 'typer', 'zbopt.cli') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_solve_loads_little() -> None:
    """A solve that heuristics and closed bounds finish, as JSON: without numpy and rich, which cost half a start."""
    code = "import sys\nfrom zbopt.cli import run\nrun(sys.argv[1:])\n"
    code += "print([m for m in ('numpy', 'rich', 'ortools') if m in sys.modules])"
    for objective in ("makespan", "max-stage-span"):
        call = ["solve", "--stages", "4", "--micro", "96", "--mem-limit", "6", "--objective", objective, "--json"]
        done = subprocess.run([sys.executable, "-c", code, *call], capture_output=True, text=True, cwd=REPOSITORY)
        assert done.stdout.splitlines()[-1] == "[]", done.stderr
