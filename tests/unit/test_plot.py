"""The picture for papers: its boxes, its numbers, its colours, and that nothing is cut off."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from zbopt.cli import run
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule, write_schedule
from zbopt.reports.colours import COLOURS, COLOURS_ON_DARK, text_colour
from zbopt.reports.figure import _SETTINGS, draw, figure_of, save_figure

UNIT = HEURISTICS["zb-h1"](Instance.uniform(stages=4, microbatches=8))
EIGHT = HEURISTICS["zb-h1"](Instance.uniform(stages=8, microbatches=16))
INTERLEAVED = HEURISTICS["interleaved"](
    Instance.uniform(stages=4, microbatches=8, placement="interleaved", virtual=3, fused_backward_ticks=2)
)


def drawn(schedule: Schedule, window: tuple[int, int] | None = None) -> Axes:
    """Draw the chart on axes of 7 by 2 inches."""
    ax = Figure(figsize=(7, 2)).add_subplot()
    assert draw(schedule, ax, window) is ax
    return ax


def boxes(ax: Axes) -> set[tuple[float, float, float]]:
    """Return (stage, start, end) of everything that is drawn as an op."""
    found = set()
    for collection in ax.collections:
        for path in collection.get_paths():
            (x0, y0), (x1, y1) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            if y1 - y0 > 0.5:
                found.add((round((y0 + y1) / 2), float(x0), float(x1)))
    return found


def test_a_box_for_each_op_and_its_number() -> None:
    """p=4, m=8: 96 ops, each where its event is, each with its microbatch, stage 0 at the top."""
    ax = drawn(UNIT)
    assert boxes(ax) == {(e.stage, e.start, e.end) for e in UNIT.events}
    assert sorted(text.get_text() for text in ax.texts) == sorted(str(e.microbatch) for e in UNIT.events)
    assert ax.yaxis.get_inverted()
    assert ax.get_xlabel() == "time (ticks)"


def test_bug_numbers_of_one_digit_only() -> None:
    """At p=8, m=16 in a narrow figure microbatches 0 to 9 had their numbers and 10 to 15 none: all have, or none."""
    with rc_context(_SETTINGS):
        shown = {
            width: sorted(int(text.get_text()) for text in figure_of(EIGHT, width_inches=width).axes[0].texts)
            for width in (3.5, 7.2)
        }
    assert shown == {3.5: [], 7.2: sorted(e.microbatch for e in EIGHT.events)}


def test_window() -> None:
    """Only what reaches into the window is drawn, and the axis has the window's ends."""
    ax = drawn(UNIT, (5, 9))
    assert ax.get_xlim() == (5, 9)
    assert boxes(ax) == {(e.stage, e.start, e.end) for e in UNIT.events if e.end > 5 and e.start < 9}


def test_lines_tell_virtual_stages_apart() -> None:
    """Three virtual stages a stage, 4 x 8 x 2 ops of each: 64 with one line, 64 with two, 192 lines in all."""
    ax = drawn(INTERLEAVED)
    lines = sum(
        1 for c in ax.collections for path in c.get_paths() if np.ptp(path.vertices[:, 1]) < 0.2
    )  # fmt: skip
    assert lines == 64 + 2 * 64


@pytest.mark.parametrize(
    "schedule",
    [
        UNIT,
        INTERLEAVED,
        EIGHT,
        HEURISTICS["zb-h1"](Instance.uniform(stages=32, microbatches=64)),
        HEURISTICS["1f1b"](Instance.uniform(stages=4, microbatches=200)),
    ],
    ids=["4", "interleaved", "8", "32", "long"],
)
@pytest.mark.parametrize("width", [3.5, 7.2])
def test_nothing_is_cut_off_or_overlaps(schedule: Schedule, width: float) -> None:
    """Every text lies within the figure; no two labels of one axis, and no two numbers, touch."""
    with rc_context(_SETTINGS):
        figure = figure_of(schedule, width_inches=width)
        figure.draw_without_rendering()
    ax, (legend,) = figure.axes[0], figure.legends
    labels = [*ax.get_xticklabels(), *ax.get_yticklabels(), ax.xaxis.label, *legend.get_texts()]
    whole = figure.bbox.padded(1)
    for label in labels:
        box = label.get_window_extent()
        assert whole.x0 <= box.x0, label
        assert box.x1 <= whole.x1, label
        assert whole.y0 <= box.y0, label
    assert not touching(labels)
    assert not touching(ax.texts[:200])


def touching(texts: list[Text]) -> list[tuple[str, str]]:
    """Return the pairs of texts whose boxes share more than a rounding."""
    boxed = [(text.get_text(), text.get_window_extent().shrunk(0.9, 0.9)) for text in texts if text.get_text()]
    return [(a, b) for (a, one), (b, other) in itertools.combinations(boxed, 2) if one.overlaps(other)]


NORMAL = np.eye(3)
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
TRITANOPIA = np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]])
"""Machado, Oliveira, Fernandes: A Physiologically-based Model for Simulation of Color Vision Deficiency (2009), at
severity 1.0, for linear RGB (table 1)."""


@pytest.mark.parametrize(
    "eyes", [NORMAL, DEUTERANOPIA, PROTANOPIA, TRITANOPIA], ids=["all", "deutan", "protan", "tritan"]
)
@pytest.mark.parametrize("colours", [COLOURS, COLOURS_ON_DARK], ids=["light", "dark"])
def test_kinds_look_different_to_all_eyes(colours: dict[Kind, str], eyes: np.ndarray) -> None:
    """Any two kinds are at least 20 apart in CIE 1976 Lab (2.3 is what an eye just sees), whoever looks."""
    seen = {kind: lab(eyes @ linear(colour)) for kind, colour in colours.items()}
    near = {
        (a, b): float(np.linalg.norm(seen[a] - seen[b]))
        for a, b in itertools.combinations(seen, 2)
        if np.linalg.norm(seen[a] - seen[b]) < 20
    }
    assert near == {}


def test_text_can_be_read_on_its_colour() -> None:
    """Contrast of the numbers is at least 4.5, as WCAG 2 asks for small text."""
    for kind, colour in COLOURS.items():
        white = 1.05 / (luminance(colour) + 0.05)
        black = (luminance(colour) + 0.05) / 0.05
        assert (white if text_colour(kind) == "#ffffff" else black) >= 4.5, kind
    assert min((luminance(colour) + 0.05) / 0.05 for colour in COLOURS_ON_DARK.values()) >= 4.5


def linear(colour: str) -> np.ndarray:
    """Return the linear RGB of '#rrggbb' (IEC 61966-2-1)."""
    value = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    """Return the relative luminance."""
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return the CIE 1976 Lab of linear sRGB, white D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize(("suffix", "begins"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_command_writes_each_format(
    suffix: str, begins: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is of the kind that its name says, and the same each time."""
    file, picture = tmp_path / "schedule.json", tmp_path / f"gantt{suffix}"
    write_schedule(UNIT, file)
    assert run(["plot", str(file), "-o", str(picture), "--from", "2", "--to", "20", "--width", "5"]) == 0
    assert f"written to {picture}" in capsys.readouterr().out
    first = picture.read_bytes()
    assert first.startswith(begins)
    save_figure(UNIT, picture, (2, 20), 5)
    assert picture.read_bytes() == first


def test_bug_help_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    """The help said "Needs zbopt.": the rest of the name was taken for markup."""
    assert run(["plot", "--help"]) == 0
    assert "Needs zbopt[plot]." in capsys.readouterr().out


def test_refused_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A suffix that is no picture's, a width out of range, matplotlib missing: each one line with the way out."""
    file = tmp_path / "schedule.json"
    write_schedule(UNIT, file)
    call = ["plot", str(file), "-o", str(tmp_path / "gantt.svg")]
    assert run([*call[:-1], str(tmp_path / "gantt.jpg")]) == 2
    assert ".jpg is no picture's; end the name with .svg, .png, .pdf" in capsys.readouterr().err
    assert run([*call, "--width", "1"]) == 2
    assert "width 1 inches is out of range; give 2 to 50" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(call) == 2
    assert "pictures need matplotlib, which is not installed; pip install 'zbopt[plot]'" in capsys.readouterr().err


def test_invalid_schedule_is_drawn_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An observed or broken schedule has its picture too, and exit code 1."""
    file, picture = tmp_path / "schedule.json", tmp_path / "gantt.png"
    write_schedule(UNIT.model_copy(update={"events": UNIT.events[:-1]}), file)
    assert run(["plot", str(file), "-o", str(picture)]) == 1
    assert picture.exists()
    assert "is not a valid schedule; see zbopt validate" in capsys.readouterr().err


def test_command_line_loads_no_matplotlib() -> None:
    """Only a picture asks for it: it is an extra, and slow to load."""
    code = "import sys, zbopt.cli; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
