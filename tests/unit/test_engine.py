"""The solver's process: killed, halted, starved and silenced, it costs nothing that was known before."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

import zbopt
from zbopt.analysis.metrics import figures
from zbopt.engine import watch as engine
from zbopt.engine.request import SolveRequest
from zbopt.engine.watch import EngineMessage, SolverDiedError, run
from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS
from zbopt.portfolio import engine_phase
from zbopt.portfolio.result import Result
from zbopt.portfolio.run import solve
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Engine, Status
from zbopt.timing import starts_of
from zbopt.validator import validate

pytestmark = pytest.mark.alone

HARD = Instance.uniform(
    stages=8,
    microbatches=24,
    forward_ticks=18522,
    backward_ticks=18086,
    weight_ticks=9337,
    comm_ticks=601,
    memory_cap=6,
    weight_share="0.366412",
)
"""The 1.5B model of the zero-bubble paper with room for 6 of 8: open for longer than any test here waits."""

KILLS = 32
_LEAST_START_S = 0.05
"""No process that loads Python and OR-Tools has said anything by then."""

Popen = subprocess.Popen[str]


@pytest.fixture
def at_start(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Popen], None]], list[Popen]]:
    """Do something to each process of the solver, at once or in a thread of its own, and return the processes."""

    def install(do: Callable[[Popen], None], *, at_once: bool = False) -> list[Popen]:
        started: list[Popen] = []

        def start(*args: Any, **kwargs: Any) -> Popen:
            started.append(subprocess.Popen(*args, **kwargs))
            if at_once:
                do(started[-1])
            else:
                threading.Thread(target=do, args=(started[-1],), daemon=True).start()
            return started[-1]

        class Spied:
            PIPE = subprocess.PIPE
            Popen = staticmethod(start)

        monkeypatch.setattr(engine, "subprocess", Spied)
        return started

    return install


def check_kept(result: Result) -> None:
    """Check that the schedule is valid, the bound at or below it, and that the status claims no more than they do."""
    assert result.schedule is not None
    assert result.value is not None
    assert validate(result.instance, result.schedule).violations == ()
    assert figures(result.schedule).value(result.instance.objective) == result.value
    assert 0 < result.bound.value <= result.value
    assert (result.status is Status.OPTIMAL) == (result.bound.value == result.value)


def gone(process: Popen) -> bool:
    """Tell whether the process has ended and been waited for: nothing is left of it, not even a zombie."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("kill", range(KILLS))
def test_kill_at_any_moment(kill: int, at_start: Callable[..., list[Popen]]) -> None:
    """SIGKILL after 0 to 1.6 s: at start, while the model is built, in the search.

    However fast the machine or the search: what was not killed has proved its value.
    """
    delay_s = 0.05 * kill * Random(kill).random()

    def shoot(process: Popen) -> None:
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)

    processes = at_start(shoot)
    result = solve(HARD, time_limit_s=20, workers=1)
    check_kept(result)
    assert [gone(process) for process in processes] == [True]
    if result.status is Status.OPTIMAL:
        assert delay_s > _LEAST_START_S
        return
    assert result.status is Status.FEASIBLE
    assert result.fault == "the solver's process was killed by signal 9"


@pytest.mark.parametrize("code", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_crash(code: signal.Signals, at_start: Callable[..., list[Popen]]) -> None:
    """A fault in native code ends the process, and the result names the signal."""

    def crash(process: Popen) -> None:
        time.sleep(0.5)
        process.send_signal(code)

    at_start(crash)
    result = solve(HARD, time_limit_s=20, workers=1)
    check_kept(result)
    assert result.fault is not None
    assert f"was killed by signal {code.value}" in result.fault


def test_halted_process_is_ended(at_start: Callable[..., list[Popen]]) -> None:
    """A process that says nothing more is ended. When, and what is kept: ``test_silence_is_told``."""

    def halt(process: Popen) -> None:
        time.sleep(0.3)
        process.send_signal(signal.SIGSTOP)

    processes = at_start(halt)
    for _ in run(order(HARD, 1)):
        pass
    assert [gone(process) for process in processes] == [True]


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MB are too few to load the solver: the process fails, and the result says with what."""
    monkeypatch.setattr(engine_phase, "_memory_limit_mb", lambda: 64)
    result = solve(HARD, time_limit_s=600, workers=1)
    check_kept(result)
    assert result.status is Status.FEASIBLE
    assert result.fault is not None
    assert result.fault.startswith("the solver's process ")


def order(instance: Instance, time_limit_s: float) -> SolveRequest:
    schedule = HEURISTICS["list"](instance)
    value = figures(schedule).value(instance.objective)
    return SolveRequest(
        instance=instance,
        starts=starts_of(expand(instance), schedule),
        value=value,
        bound=1,
        proved_by="bound:none",
        time_limit_s=time_limit_s,
        workers=1,
        seed=0,
        deterministic=False,
        memory_limit_mb=4096,
    )


def test_news_of_a_whole_search() -> None:
    """p = m = 2, unit times: bounds rise to m(F+B+W) + (p-1)F = 7, values fall to it, then the news end."""
    instance = Instance.uniform(stages=2, microbatches=2)
    news = [n for n in run(order(instance, 600)) if n is not None]
    bounds = [n.bound.value for n in news if n.bound is not None]
    assert bounds == sorted(bounds)
    assert bounds[-1] == 7
    values = [n.value for n in news if n.value is not None]
    assert values == sorted(values, reverse=True)
    assert min([*values, order(instance, 1).value]) == 7


def test_closing_ends_the_process(at_start: Callable[..., list[Popen]]) -> None:
    """Whoever stops listening need not wait for the search to end."""
    processes = at_start(lambda process: None)
    news = run(order(HARD, 60), poll_s=0.05)
    next(news)
    assert not gone(processes[0])
    news.close()  # type: ignore[attr-defined]  # the iterator is a generator
    assert gone(processes[0])


def test_silence_is_told(at_start: Callable[..., list[Popen]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``None`` for each ``poll_s`` without news, so that the caller can show that time passes, until limit and grace
    are over: by a clock that moves on half a second a look, (2 + 1) / 0.5 = 6 looks.
    """
    ticks = count()

    class HalfSeconds:
        @staticmethod
        def monotonic() -> float:
            return next(ticks) / 2

    monkeypatch.setattr(engine, "time", HalfSeconds)
    processes = at_start(lambda process: process.send_signal(signal.SIGSTOP), at_once=True)
    news = list(run(order(HARD, 2), poll_s=0.01))
    assert engine.GRACE_S == 1
    assert news == [None] * 6
    assert [gone(process) for process in processes] == [True]


@pytest.mark.parametrize(
    ("line", "news"),
    [
        ('{"bound": 7, "proved_by": "cp-sat"}\n', EngineMessage(bound=Bound(7, "cp-sat"))),
        ('{"found": 9, "starts": {"0": 0, "1": 4}}\n', EngineMessage(value=9, starts={0: 0, 1: 4})),
        ('{"doing": "schedule within 7"}\n', EngineMessage(doing="schedule within 7")),
        ('{"found": 9, "sta', EngineMessage()),
        ('{"done": true}\n', None),
    ],
)
def test_one_message(line: str, news: EngineMessage | None) -> None:
    """Each kind of news; a line that a kill has cut off says nothing."""
    assert engine._parsed(line) == news


def test_last_words_are_in_the_error() -> None:
    """A process that fails on its own: exit code and the last line of its errors."""
    refused = order(HARD, 600).model_copy(update={"workers": -3})
    with pytest.raises(SolverDiedError, match=r"^the solver's process ended with exit code 1: .*"):
        list(run(refused))


def test_bug_no_room_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no file or process left to start it, the call failed by "standard output: Too many open files"."""

    def start(*args: Any, **kwargs: Any) -> Popen:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(engine.subprocess, "Popen", start)
    result = solve(HARD, time_limit_s=60)
    assert result.schedule is not None
    assert validate(HARD, result.schedule).violations == ()
    assert result.fault == "the solver's process could not be started: Too many open files"


@pytest.mark.parametrize("delay_s", [0.0, 0.4, 1.5])
def test_kill_of_the_published_program(delay_s: float, at_start: Callable[..., list[Popen]]) -> None:
    """The other engine is under the same watch. It has no bound but its own, so that there may be none yet."""

    def shoot(process: Popen) -> None:
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)

    processes = at_start(shoot)
    result = solve(HARD, time_limit_s=60, engine="milp")
    assert result.schedule is not None
    assert validate(HARD, result.schedule).violations == ()
    assert (result.status, result.fault) == (Status.FEASIBLE, "the solver's process was killed by signal 9")
    assert result.bound.proved_by in ("bound:none", "milp")
    assert [gone(process) for process in processes] == [True]


def test_bug_an_empty_module_stood_for_pandas() -> None:
    """The solver's process put an empty ``pandas`` into ``sys.modules`` while OR-Tools loaded; all modules are real."""
    show = "import sys, zbopt.cpsat.child; print(sys.modules['pandas'].__spec__ is not None)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-P", "-c", show], capture_output=True, text=True, env=environment)
    assert done.stdout == "True\n", done.stderr


IN_THE_WAY = ("ortools", "pandas", "queue", "random", "json", "numpy", "sitecustomize", "zbopt")
"""Names of files in the user's folder that are modules of the standard library, of a dependency, or of zbopt."""


@pytest.mark.parametrize("on_path", [False, True], ids=["other-path", "on-path"])
@pytest.mark.parametrize("name", ["cp-sat", "milp"])
def test_bug_files_of_the_current_folder_were_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, on_path: bool
) -> None:
    """A file ``queue.py`` or ``random.py`` in the user's folder killed the search, and ``ortools.py`` was run by it.

    Here also where the folder is on the import path, as in a notebook. p = m = 2, unit times: 7.
    """
    for module in IN_THE_WAY:
        (tmp_path / f"{module}.py").write_text("raise SystemExit('loaded from the current folder')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if on_path:
        monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    instance = Instance.uniform(stages=2, microbatches=2)
    request = order(instance, 600).model_copy(update={"engine": Engine(name)})
    bounds = [message.bound for message in run(request) if message is not None and message.bound is not None]
    assert bounds[-1].value == 7


@pytest.mark.parametrize("name", [*IN_THE_WAY[:4], "numba"])
def test_bug_a_file_in_the_folder_of_a_solve_kills_it(tmp_path: Path, name: str) -> None:
    """The command ended with 0 and a warning that the solver had died, and its value was a heuristic's."""
    (tmp_path / f"{name}.py").write_text("raise SystemExit('loaded from the current folder')", encoding="utf-8")
    command = [
        sys.executable,
        "-P",
        "-m",
        "zbopt",
        "solve",
        "--stages",
        "5",
        "--micro",
        "11",
        "--mem-limit",
        "3",
        "--json",
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, "fault" in done.stderr, "ended" in done.stderr) == (0, False, False), done.stderr
    assert json.loads(done.stdout)["status"] == "optimal"


def test_an_engine_runs_the_zbopt_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run from a checkout, zbopt itself is in the current folder; another one, here broken, may be installed."""
    (tmp_path / "zbopt.py").write_text("raise SystemExit('another zbopt was loaded')", encoding="utf-8")
    root = Path(zbopt.__file__).parents[1]
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *(folder for folder in sys.path if Path(folder) != root)])
    bounds = [m.bound for m in run(order(Instance.uniform(stages=2, microbatches=2), 600)) if m is not None and m.bound]
    assert bounds[-1].value == 7
