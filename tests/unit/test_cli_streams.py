"""Behaviour of the program when a stream is closed, full or a terminal, on Ctrl-C, and when the code fails."""

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from zbopt import read_schedule, solve
from zbopt.cli import INTERRUPTED, ctrl_c, run
from zbopt.cli import solve as solve_module
from zbopt.portfolio.result import Result
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule, write_schedule
from zbopt.validator import validate

pytestmark = pytest.mark.alone

ZBOPT = [sys.executable, "-m", "zbopt"]
EASY = ["solve", "--stages", "4", "--micro", "8", "--mem-limit", "6"]
HARD = ["solve", "--stages", "12", "--micro", "40", "--mem-limit", "7", "--time-limit", "100", "--comm", "2"]
HARD += ["--forward", "11,13,10,17,12,15,11,14,19,10,16,13", "--backward", "12,13,11,15,12,17,11,14,10,18,13,15"]
HARD += ["--weight", "7,9,8,9,8,7,9,8,11,6,9,10"]
"""Uneven stages: no closed argument proves it, and CP-SAT needs more than seconds."""


def in_shell(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the easy solve with a redirection of the shell."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *ZBOPT, *EASY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [EASY, [*EASY, "--json"]], ids=["page", "json"])
def test_reader_that_goes_away(arguments: list[str]) -> None:
    """``zbopt solve | head -1``: nothing is said about what nobody reads, and the exit code is 0."""
    program = subprocess.Popen([*ZBOPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.close()
    assert program.wait() == 0
    assert program.stderr is not None
    assert program.stderr.read() == b""
    program.stderr.close()


def test_bug_reader_of_the_help_that_goes_away() -> None:
    """``zbopt solve --help | head -0`` ended with 1, which is the code of an infeasible instance."""
    program = subprocess.Popen([*ZBOPT, "solve", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.close()
    assert program.wait() == 0
    assert program.stderr is not None
    assert program.stderr.read() == b""
    program.stderr.close()


def test_closed_stdout_does_not_lose_the_file(tmp_path: Path) -> None:
    """With stdout closed the result goes nowhere, which is said; the file is written and holds nothing but itself."""
    path = tmp_path / "schedule.json"
    done = in_shell(">&-", "-o", str(path))
    assert done.returncode == 2
    assert done.stderr == "zbopt: standard output is closed, so the result was not printed; open it, or use -o\n"
    schedule = read_schedule(path)
    assert validate(schedule.instance, schedule).valid


@pytest.mark.parametrize("redirection", ["2>&-", "<&-", "<&- 2>&-"])
def test_other_closed_streams_do_not_matter(redirection: str) -> None:
    """Neither stdin nor stderr is needed."""
    done = in_shell(redirection)
    assert done.returncode == 0
    assert "makespan" in done.stdout


def test_full_disk_behind_stdout() -> None:
    """/dev/full refuses every byte: one line, exit code 2."""
    done = in_shell(">/dev/full")
    assert (done.returncode, done.stderr) == (
        2,
        "zbopt: standard output: No space left on device; nothing more was written\n",
    )


def test_full_disk_behind_the_file() -> None:
    """The page is printed all the same, and the exit code says that the file is not there."""
    done = in_shell("", "-o", "/dev/full")
    assert done.returncode == 2
    assert done.stderr == "zbopt: -o /dev/full: no space left on device; the schedule is only printed\n"
    assert "makespan" in done.stdout
    assert "written to" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_the_best_schedule(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C in the search: the best schedule so far is printed and written, it is valid, and the exit code is 0.

    So with SIGTERM, as ``timeout`` and batch systems send it: everything was lost.
    """
    path = tmp_path / "schedule.json"
    with subprocess.Popen(
        [*ZBOPT, *HARD, "-o", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stderr is not None
        said = program.stderr.readline()  # the first progress, after two seconds of search
        program.send_signal(number)
        printed, rest = program.communicate(timeout=300)
    assert program.returncode == 0
    assert re.match(r"zbopt: best \d+, bound \d+, gap \d+\.\d\d %, \d+ s", said)
    assert "zbopt: interrupted: best schedule so far" in rest
    assert "answer: feasible, interrupted: the best schedule so far" in printed
    schedule = read_schedule(path)
    assert validate(schedule.instance, schedule).valid


def press() -> None:
    """Send Ctrl-C as a terminal does, as a signal."""
    os.kill(os.getpid(), signal.SIGINT)


def test_bug_pressed_twice(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C just after the one that ended the search threw the schedule away, with exit code 130."""

    def search(*given: object, **also: object) -> Result:
        with suppress(KeyboardInterrupt):
            press()
        press()
        return replace(solve(Instance.uniform(stages=2, microbatches=2)), interrupted=True)

    monkeypatch.setattr(solve_module, "solve", search)
    before = signal.getsignal(signal.SIGINT)
    assert run(["solve", "--stages", "2", "--micro", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "zbopt: interrupted: best schedule so far\n"
    assert "makespan            7 ticks\n" in printed.out
    assert signal.getsignal(signal.SIGINT) is before


def test_bug_pressed_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the schedule was written left half a file, and 'interrupted before there was a result'."""

    def write(schedule: Schedule, path: Path) -> None:
        press()
        write_schedule(schedule, path)

    monkeypatch.setattr(solve_module, "write_schedule", write)
    assert run([*EASY, "-o", str(tmp_path / "schedule.json")]) == 0
    assert read_schedule(tmp_path / "schedule.json").provenance.value == 27


def test_pressed_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that goes on after the first press can be ended by a later one."""
    times = iter((10.0, 10.9, 12.0))
    monkeypatch.setattr(ctrl_c.time, "monotonic", lambda: next(times))
    with ctrl_c.pressed_once():
        with pytest.raises(KeyboardInterrupt):
            press()
        press()
        with pytest.raises(KeyboardInterrupt):
            press()


INTERRUPT_AT = """
import os, signal, sys
from zbopt.__main__ import main
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
main()
"""


@pytest.mark.parametrize(
    "module", ["typer", "pydantic", "zbopt.cli.solve", "zbopt.problem.communication", "zbopt.portfolio.run"]
)
def test_interrupt_while_loading(module: str) -> None:
    """Ctrl-C as a module begins to load, which is most of a start: one line and 130.

    It used to be a traceback or, where a library wraps what is raised in a class body, "a fault of zbopt itself".
    """
    program = INTERRUPT_AT.replace("MODULE", repr(module))
    done = subprocess.run([sys.executable, "-c", program, *EASY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (INTERRUPTED, "")
    assert done.stderr == "zbopt: interrupted before there was a result\n"


AT_EXIT = """
import atexit, os, signal
from zbopt.__main__ import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
main()
"""


def test_bug_pressed_after_the_result() -> None:
    """Ctrl-C as Python goes down, with all printed: it was a traceback, or the exit code of a killed process."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT, *EASY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "makespan            27 ticks\n" in done.stdout


def on_terminal(arguments: list[str], interrupt_at: tuple[bytes, int] | None = None, **environment: str) -> str:
    """Return what a terminal shows, with Ctrl-C as soon as it has shown a text a number of times."""
    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "COLUMNS", "FORCE_COLOR"}}
    program = subprocess.Popen(
        [*ZBOPT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=clean | {"TERM": "xterm-256color"} | environment,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65_536)
        except OSError:  # the other side is closed
            break
        if interrupt_at is not None and shown.count(interrupt_at[0]) >= interrupt_at[1]:
            program.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(ours)
    assert program.wait() == 0
    return shown.decode()


def test_terminal_shows_colours_and_live_progress() -> None:
    """A terminal gets coloured ops, and while the search runs one line that is drawn again and again."""
    shown = on_terminal(HARD, interrupt_at=(b"zbopt: best 2", 3))
    assert shown.count("zbopt: best 2") >= 3
    assert "\x1b[2K" in shown
    assert "\x1b[38;5;" in shown


def test_no_color_is_respected() -> None:
    """NO_COLOR: the chart without any escape code, set apart by letters."""
    shown = on_terminal(EASY, NO_COLOR="1")
    chart = [line for line in shown.splitlines() if line.startswith("stage 0")]
    assert len(chart) == 1
    assert "\x1b" not in chart[0]


def test_ctrl_c_before_there_is_a_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Outside of the search Ctrl-C ends the program with the shell's code for it."""

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(solve_module, "problem_of", interrupt)
    assert run(EASY) == INTERRUPTED
    assert capsys.readouterr().err == "zbopt: interrupted before there was a result\n"


def test_fault_of_ours_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Even a mistake in our code ends in one line; ZBOPT_DEBUG shows where it is."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(solve_module, "search_for", fail)
    assert run(EASY) == 2
    assert capsys.readouterr().err == (
        "zbopt: a fault of zbopt itself: RuntimeError: two lines; set ZBOPT_DEBUG=1 to see where, and report it\n"
    )
    monkeypatch.setenv("ZBOPT_DEBUG", "1")
    with pytest.raises(RuntimeError):
        run(EASY)
