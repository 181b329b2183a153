"""The README and the notes beside it say what is true: commands, output, places, the Python example."""

import re
import tomllib
from pathlib import Path

import pytest

from zbopt.cli import run

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()
CODE = [match.group(1) for match in re.finditer(r"^    (.+)$", README, re.MULTILINE)]
TEST_COMMAND = "pip install -e '.[dev,replay]' && pytest"


def test_the_two_commands() -> None:
    """One installs and runs the solve, the other installs and runs all tests; ``.ci/run`` uses the second."""
    assert [line for line in CODE if "pip install" in line] == [
        "python -m venv .venv && . .venv/bin/activate && pip install . && "
        "zbopt solve --stages 4 --micro 8 --mem-limit 6",
        TEST_COMMAND,
    ]
    ci = REPOSITORY / ".ci" / "run"
    assert TEST_COMMAND in ci.read_text().splitlines()
    assert ci.stat().st_mode & 0o111


def test_printed_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The page in the README is the command's, but for the seconds and which of several optima was found."""
    shown = re.search(r"```text\n(asked: .*?)```", README, re.DOTALL)
    assert shown is not None
    assert run(["solve", "--stages", "4", "--micro", "8", "--mem-limit", "6"]) == 0
    assert _settled(shown.group(1)) == _settled(capsys.readouterr().out)


def _settled(page: str) -> list[str]:
    """The lines that do not depend on the machine or on which optimum was found."""
    free = ("wall time", "found by", "peak memory", "largest stage span", "bubble ratio", "best heuristic", "stage ")
    return [line for line in page.splitlines() if not line.strip().startswith(free)]


def test_commands_with_flags_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Every other ``zbopt`` line of the README ends with 0."""
    lines = [line for line in CODE if line.startswith("zbopt ")]
    assert lines
    for line in lines:
        assert run(line.split()[1:]) == 0
    assert "answer: optimal" in capsys.readouterr().out


def test_python_example(capsys: pytest.CaptureFixture[str]) -> None:
    """The example runs as it stands: 27 is m(F + B + W) + p - 1 at p=4, m=8."""
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example is not None
    exec(compile(example.group(1), "README.md", "exec"), {})
    assert re.fullmatch(r"optimal 27 27 bound:[a-z-]+\nTrue\n", capsys.readouterr().out)


def test_places_exist() -> None:
    """Every place of the layout table is there."""
    table = README[README.index("| place | holds |") :]
    places = re.findall(r"`([^`]+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if line[:1] == "|"))
    assert len(places) > 10
    assert [place for place in places if not (REPOSITORY / place).exists()] == []


def test_changelog_has_this_version() -> None:
    """The version of the package has its entry."""
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (REPOSITORY / "CHANGELOG.md").read_text()
