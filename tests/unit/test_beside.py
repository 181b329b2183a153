"""Work in this process while an engine runs in its own: done piece by piece, told of, and stopped with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from zbopt.analysis.metrics import value_of
from zbopt.bounds import lower_bound
from zbopt.bounds.valley import Valley
from zbopt.cpsat.budget import Budget
from zbopt.cpsat.growth import Growth
from zbopt.cpsat.search import CpSatSearch
from zbopt.engine import watch
from zbopt.engine.request import ParentMessage, SolveRequest
from zbopt.engine.watch import EngineMessage, ParentWork, run
from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS
from zbopt.portfolio import engine_phase, improving_phase
from zbopt.portfolio import run as portfolio
from zbopt.portfolio.result import Progress
from zbopt.portfolio.run import solve
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Status
from zbopt.timing import starts_of
from zbopt.validator import validate

pytestmark = pytest.mark.alone

V = Instance.uniform(
    stages=8,
    microbatches=24,
    forward_ticks=9261,
    backward_ticks=9043,
    weight_ticks=4669,
    comm_ticks=601,
    memory_cap=4,
    weight_share="0.366412",
    placement="v",
    virtual=2,
)
"""1.5B times of instances/zb-iclr2024 on a V with half the memory of 8 stages: open for longer than any test waits."""


def order(instance: Instance, **fields: object) -> SolveRequest:
    schedule = HEURISTICS["v-min" if instance == V else "list"](instance)
    return SolveRequest.model_validate(
        {
            "instance": instance,
            "starts": starts_of(expand(instance), schedule),
            "value": value_of(schedule),
            "bound": 1,
            "proved_by": "bound:none",
            "time_limit_s": 600,
            "workers": 2,
            "busy": 1,
            "seed": 0,
            "deterministic": False,
            "memory_limit_mb": 4096,
        }
        | fields
    )


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Collect the processes that are started."""
    started: list[subprocess.Popen[str]] = []

    class Spied:
        PIPE = subprocess.PIPE

        @staticmethod
        def Popen(*args: object, **kwargs: object) -> subprocess.Popen[str]:  # noqa: N802  # the name that is spied
            started.append(subprocess.Popen(*args, **kwargs))  # type: ignore[call-overload]
            return started[-1]

    monkeypatch.setattr(watch, "subprocess", Spied)
    return started


def gone(process: subprocess.Popen[str]) -> bool:
    """Tell whether nothing is left of a process, not even a zombie."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_work_is_done_until_there_is_none(processes: list[subprocess.Popen[str]]) -> None:
    """Each piece is followed by none; the engine goes on to the end, m(F+B+W) + (p-1)F = 7."""
    done: list[int] = []

    def work() -> Iterator[None]:
        for n in range(5):
            done.append(n)
            yield

    parent = ParentWork(work())
    instance = Instance.uniform(stages=2, microbatches=2)
    news = list(run(order(instance), parent))
    assert done == list(range(5))
    assert news.count(None) >= 5
    assert [n.bound.value for n in news if n is not None and n.bound is not None][-1] == 7
    assert [gone(process) for process in processes] == [True]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ZeroDivisionError])
def test_work_that_is_broken_off_ends_the_process(
    fault: type[BaseException], processes: list[subprocess.Popen[str]]
) -> None:
    """Ctrl-C comes while this process works, or the work has a fault: no engine is left behind."""

    def work() -> Iterator[None]:
        yield
        raise fault

    with pytest.raises(fault):
        list(run(order(V), ParentWork(work())))
    assert [gone(process) for process in processes] == [True]


def test_ctrl_c_while_both_search(processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The best schedule and bound stay, the engine's process does not; it is begun beside improving, not after."""
    monkeypatch.setattr(engine_phase, "_ALONE_S", 0.0)
    monkeypatch.setattr(portfolio, "candidates_of", lambda instance: {"v-min": HEURISTICS["v-min"]})

    def stop(progress: Progress) -> None:
        if processes and progress.bound > 1_369_823:
            raise KeyboardInterrupt

    result = solve(V, time_limit_s=600, workers=2, on_progress=stop)
    assert (result.interrupted, result.status) == (True, Status.FEASIBLE)
    assert result.bound.proved_by == "bound:valley"
    assert result.schedule is not None
    assert validate(V, result.schedule).valid
    assert [gone(process) for process in processes] == [True]


def test_improving_outlives_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that dies at once takes nothing with it: what is better is found all the same, and the fault told."""

    worse, better = HEURISTICS["list"](V), HEURISTICS["v-min"](V)

    def dying(order: SolveRequest, work: ParentWork) -> Iterator[EngineMessage]:
        raise watch.SolverDiedError("the solver's process was killed by signal 9")
        yield

    def two(*args: object) -> Iterator[tuple[str, object]]:
        yield "first", None
        yield "second", better

    monkeypatch.setattr(engine_phase, "_ALONE_S", -1.0)
    monkeypatch.setattr(engine_phase, "run", dying)
    monkeypatch.setattr(improving_phase, "improved", two)
    monkeypatch.setattr(portfolio, "candidates_of", lambda instance: {"list": lambda instance: worse})
    result = solve(V, time_limit_s=600, workers=2)
    assert result.fault == "the solver's process was killed by signal 9"
    assert result.value == value_of(better) < value_of(worse)


def test_one_worker_improves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one worker, this process improves first. Then the engine has that worker from the start."""
    orders: list[SolveRequest] = []

    def heard(order: SolveRequest, work: ParentWork) -> Iterator[EngineMessage]:
        orders.append(order)
        assert list(work.pieces) == []
        return iter(())

    monkeypatch.setattr(engine_phase, "run", heard)
    monkeypatch.setattr(portfolio, "candidates_of", lambda instance: {"v-min": HEURISTICS["v-min"]})
    monkeypatch.setattr(improving_phase, "improved", lambda *args: iter([("nothing", None)]))
    solve(V, time_limit_s=600, workers=1)
    assert [(order.workers, order.busy) for order in orders] == [(1, 0)]


ECHO = """
from zbopt.engine.serve import serve
def echo(request, channel):
    messages = []
    while len(messages) < 2:
        messages += channel.messages()
    channel.send_activity(str([(message.value, message.starts, message.busy) for message in messages]))
serve(echo)
"""


def echo(*messages: ParentMessage) -> subprocess.Popen[str]:
    """Run an engine that repeats the two messages that it receives."""
    process = subprocess.Popen(
        [sys.executable, "-c", ECHO],
        env={"PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    for line in (order(Instance.uniform(stages=1, microbatches=1)), *messages):
        process.stdin.write(line.model_dump_json() + "\n")
    process.stdin.flush()
    return process


def test_messages_reach_the_engine() -> None:
    """A better schedule and a worker that is free, one a line after the order."""
    with echo(ParentMessage(value=3, starts={0: 0}), ParentMessage(busy=0)) as process:
        assert process.stdout is not None
        news = [json.loads(line) for line in process.stdout]
    assert news == [{"doing": "[(3, {0: 0}, None), (None, None, 0)]"}, {"done": True}]
    assert process.returncode == 0


def test_an_engine_ends_with_its_parent() -> None:
    """Whoever was killed closes its end of the pipe: the engine waits for a second word that never comes."""
    with echo(ParentMessage(busy=0)) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 1


def search(budget: Budget, bound: Bound, bounds: list[Bound], messages: list[ParentMessage]) -> CpSatSearch:
    return CpSatSearch(
        graph=expand(V),
        starts={},
        value=1_500_000,
        bound=bound,
        budget=budget,
        on_schedule=lambda value, starts: None,
        on_bound=bounds.append,
        on_activity=lambda activity: None,
        messages=lambda: messages,
        busy=1,
    )


def test_a_search_takes_what_it_is_told_and_tells_what_grows() -> None:
    """A better value lowers what the valley looks for; its floor is a bound at once; a free worker asks too."""
    bounds: list[Bound] = []
    messages = [
        ParentMessage(value=1_450_000, starts={0: 5}),
        ParentMessage(busy=0),
        ParentMessage(value=1_460_000, starts={0: 6}),
    ]
    told = search(Budget(600, 2, 0), lower_bound(V), bounds, messages)
    valley = Valley.of(V, told.bound.value, told.value)
    assert valley is not None
    growth = told.growths[Future()] = Growth(valley, told.budget, told.bound.value)
    assert told.idle_threads() == 0
    told.receive_messages()
    valley.floor = 1_390_000
    assert not growth._must_stop()
    told.receive_bounds()
    assert (told.value, told.starts, valley.roof) == (1_450_000, {0: 5}, 1_450_000)
    assert bounds == [Bound(1_390_000, "bound:valley")]
    assert told.idle_threads() == 1


def test_a_growing_bound_and_its_search_share_no_state() -> None:
    """Each side learns by its queue, once: what is told before the other looks is not lost, and not told twice."""
    told = search(Budget(600, 2, 0), lower_bound(V), [], [])
    valley = Valley.of(V, told.bound.value, told.value)
    assert valley is not None
    growth = Growth(valley, told.budget, told.bound.value)
    growth.send_value(1_480_000)
    growth.send_value(1_490_000)
    assert valley.roof == 1_500_000
    valley.floor += 1
    assert not growth._must_stop()
    assert not growth._must_stop()
    assert valley.roof == 1_480_000
    assert [growth.bounds(), growth.bounds()] == [[Bound(valley.floor, "bound:valley")], []]
    growth.stop()
    assert growth._must_stop()


def test_a_valley_that_rises_has_more_time() -> None:
    """0.8 of 100 s; or until three times as long as when it last rose, and never longer than all."""
    told = search(Budget(100, 1, 0, deterministic=True), Bound(1_369_823, "bound:load"), [], [])
    valley = Valley.of(V, told.bound.value, told.value)
    assert valley is not None
    growth = Growth(valley, told.budget, told.bound.value)

    def stops_after(seconds: int) -> bool:
        valley.expanded = seconds * Valley.states_a_second
        return growth._must_stop()

    assert [stops_after(seconds) for seconds in (20, 79, 81)] == [False, False, True]
    valley.floor += 1_000
    assert [stops_after(seconds) for seconds in (30, 89, 91)] == [False, False, True]
    valley.floor += 1_000
    assert [stops_after(seconds) for seconds in (50, 99, 101)] == [False, False, True]
