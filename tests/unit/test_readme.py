"""The README and the notes beside it say what is true: commands, output, places, the Python example."""

import csv
import json
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
    """Return the lines that do not depend on the machine or on which optimum was found."""
    free = ("wall time", "found by", "peak memory", "largest stage span", "bubble ratio", "best heuristic", "stage ")
    return [line for line in page.splitlines() if not line.strip().startswith(free)]


def test_commands_with_flags_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other ``zbopt`` line of the README ends with 0, one after the other in an empty folder."""
    monkeypatch.chdir(tmp_path)
    lines = [line for line in CODE if line.startswith("zbopt ")]
    assert lines
    for line in lines:
        assert run(line.split()[1:]) == 0
    assert "answer: optimal" in capsys.readouterr().out


def test_results() -> None:
    """Each figure of the two tables of results is on record: peers in their files, values and bounds beside them.

    Times in ms of the first table are ticks of a microsecond in the files; the V rows are in bench/README.md.
    """
    best = {row["instance"]: row for row in read_csv("instances/zb-iclr2024/best_known.csv") if is_makespan(row)}
    best |= {row["instance"]: row for row in read_csv("instances/unit/best_known.csv") if is_makespan(row)}
    peers = [*read_csv("instances/zb-iclr2024/peers.csv"), *read_csv("instances/unit/peers.csv")]
    rows = re.findall(r"^\| ([\d.]+)B, (\d+) stages, (\d+) \| (\d+) = 2?p \| (.*) \|$", README, re.MULTILINE)
    assert len(rows) == 4
    for model, p, m, cap, figures in rows:
        name = f"linear-{model}b-p{p}-m{m}-cap{cap}"
        one_f_one_b, published, ours, proved = figures.split(" | ")
        known = {row["scheduler"]: int(row["makespan"]) for row in peers if row["instance"] == name}
        assert float(one_f_one_b) == round(known["1f1b"] / 1000, 1)
        assert float(published.split()[0]) == round(min(known.values()) / 1000, 1)
        assert float(ours) == round(int(best[name]["value"]) / 1000, 1)
        assert (proved, best[name]["value"]) == ("optimal", best[name]["lower_bound"])
    rows = re.findall(r"^\| (\d+), (\d+) \| (\d+) \| (\d+) \(ZB\) \| (\d+) \| optimal \|$", README, re.MULTILINE)
    assert len(rows) == 4
    for p, m, cap, published, ours in rows:
        name = f"p{p}-m{m}-cap{cap}"
        assert published == min((row["makespan"] for row in peers if row["instance"] == name), key=int)
        assert best[name]["value"] == best[name]["lower_bound"] == ours
    measured = (REPOSITORY / "bench" / "README.md").read_text()
    rows = re.findall(
        r"^\| ([\d.]+B) in V placement, (\d+) stages, (\d+) \| 4 = p/2 \| does not fit \| ([\d.]+) \(adaptive V\) \| "
        r"([\d.]+) \| at most ([\d.]+) % above the optimum \|$",
        README,
        re.MULTILINE,
    )
    assert len(rows) == 2
    v_peers = [row for row in read_csv("tests/golden/peers.csv") if (row["virtual"], row["cap"]) == ("2", "4")]
    for model, p, m, published, ours, gap in rows:
        found = re.search(
            rf"\| {model} p={p} m={m} \| 4 \| makespan \| 60 \| ([\d,]+) \| [\d,]+ \| ([\d.]+) \|", measured
        )
        assert found is not None
        assert (float(ours), gap) == (round(int(found.group(1).replace(",", "")) / 1000, 1), found.group(2))
        assert float(published) in [round(float(row["makespan"]) / 1000, 1) for row in v_peers if row["m"] == m]


def read_csv(path: str) -> list[dict[str, str]]:
    """Read a table of the repository, a row as its fields by name."""
    with (REPOSITORY / path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def is_makespan(row: dict[str, str]) -> bool:
    """Tell whether a row of best known values is for the makespan."""
    return row["objective"] == "makespan"


def test_python_example(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example runs as it stands.

    By the bound of round trips, in ms: the load is m(F + B + W) = 232; the round trip of stage 0 is R = 4F + 3(B + 2
    comm) = 76; before the first gradient R - 4F = 36 are idle, after the last forward R - F - 3(B + W) = 9: 277 in all.
    """
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example is not None
    exec(compile(example.group(1), "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["optimal 2770 2770 bound:round-trip", "True"]
    values = [int(line.split()[1]) for line in printed[2:]]
    assert values[0] == 2770
    assert values == sorted(values, reverse=True)
    assert (tmp_path / "beside.svg").stat().st_size > 10_000


def test_picture(capsys: pytest.CaptureFixture[str]) -> None:
    """The picture shows the two times that the text names; both are of one step and one cap."""
    assert "1F1B takes 327 ms" in README
    assert "277 ms in the same memory" in README
    step = ["--stages", "4", "--micro", "8", "--forward", "10ms", "--backward", "11ms", "--weight", "8ms"]
    assert run(["compare", *step, "--comm", "0.5ms", "--mem-limit", "4", "--json"]) == 0
    makespans = {row["schedule"]: row["makespan"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert (makespans["1f1b"], makespans["optimum"]) == (3270, 2770)


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
