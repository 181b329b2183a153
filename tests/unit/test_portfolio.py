"""``solve``: proved values of published cases, honest answers when it is stopped, and what it refuses to believe."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from zbopt.engine.request import SolveRequest
from zbopt.engine.watch import GRACE_S, EngineMessage, ParentWork
from zbopt.portfolio import engine_phase, run
from zbopt.portfolio.clock import Clock
from zbopt.portfolio.result import Progress, Result, infeasible
from zbopt.portfolio.run import solve
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Status
from zbopt.validator import validate

pytestmark = pytest.mark.alone

HARD = {
    "stages": 12,
    "microbatches": 40,
    "forward_ticks": [11, 13, 10, 17, 12, 15, 11, 14, 19, 10, 16, 13],
    "backward_ticks": [12, 13, 11, 15, 12, 17, 11, 16, 18, 11, 15, 13],
    "weight_ticks": [7, 9, 8, 9, 8, 7, 9, 8, 11, 6, 9, 10],
    "comm_ticks": 1,
    "memory_cap": 7,
}
"""Uneven stages with little memory: 5 % open after 25 s."""


def proved(instance: Instance, value: int) -> Result:
    result = solve(instance, time_limit_s=600, workers=2)
    assert (result.status, result.value, result.bound.value) == (Status.OPTIMAL, value, value)
    assert result.schedule is not None
    assert validate(instance, result.schedule).violations == ()
    assert result.gap == 0
    assert result.fault is None
    return result


@pytest.mark.parametrize(("cap", "value"), [*zip(range(1, 9), [72, 41, 31, *[27] * 5], strict=True)])
def test_unit_times_by_cap(cap: int, value: int) -> None:
    """p = 4, m = 8, unit times, held until W.

    Cap 1: one microbatch after another, m (pF + pB + W) = 72. From cap p on: m(F+B+W) + (p-1)F = 27. Between, by plain
    CP-SAT (design notes, "what was measured").
    """
    proved(Instance.uniform(stages=4, microbatches=8, memory_cap=cap), value)


@pytest.mark.parametrize(
    ("stages", "microbatches", "cap", "value"), [(4, 16, 3, 57), (8, 8, 4, 43), (8, 16, 6, 61), (8, 16, 4, 79)]
)
def test_caps_below_the_stages(stages: int, microbatches: int, cap: int, value: int) -> None:
    """Unit times, held until W, caps below p: proved by plain CP-SAT (design notes, "what was measured")."""
    proved(Instance.uniform(stages=stages, microbatches=microbatches, memory_cap=cap), value)


@pytest.mark.parametrize(
    ("cap", "value"), [(1, 72), ("1.5", 65), (2, 41), ("2.5", 37), (3, 31), ("3.5", 29), (4, 27), (5, 27)]
)
def test_frontier_of_makespan(cap: int | str, value: int) -> None:
    """p = 4, m = 8, unit times, half released at B: public case c06-pareto-p4m8-zb, each proved by exact CP-SAT."""
    proved(Instance.uniform(stages=4, microbatches=8, memory_cap=cap, weight_share="1/2"), value)


@pytest.mark.parametrize(("cap", "value"), [(3, 31), (4, 27), (5, 26), (6, 25), ("6.5", 25), (7, 24)])
def test_frontier_of_span(cap: int | str, value: int) -> None:
    """The frontier under the largest stage span: 24 = m(F+B+W) at cap 2p - 1 is ZB-H2 (cases c05 and c06)."""
    span = "max_stage_span"
    proved(Instance.uniform(stages=4, microbatches=8, memory_cap=cap, weight_share="1/2", objective=span), value)


@pytest.mark.parametrize(("cap", "value"), [(1, 32), (2, 18), (3, 16), (4, 14)])
def test_frontier_of_fused_backward(cap: int, value: int) -> None:
    """p = m = 4, F = BW = 1 (case c07): 32 = m p (F + BW) is serial, 14 = (m + p - 1)(F + BW)."""
    times = {"backward_ticks": None, "weight_ticks": None, "fused_backward_ticks": 1}
    proved(Instance.uniform(stages=4, microbatches=4, memory_cap=cap, **times), value)


def test_zero_bubble_on_five_stages() -> None:
    """p = 5, m = 10, cap 2p - 1 (case c18): the span is the load, m(F+B+W) = 30."""
    proved(Instance.uniform(stages=5, microbatches=10, memory_cap=9, objective="max_stage_span"), 30)


@pytest.mark.parametrize(("comm", "value"), [(0, 270), (1, 282), (2, 294), (5, 330)])
def test_each_group_pays_a_round_trip(comm: int, value: int) -> None:
    """p = cap = 4, m = 8, F = B = W = 10 (case c29): 270 + 2 (p-1) (m/p) comm."""
    assert value == 270 + 2 * 3 * 2 * comm
    ten = {"forward_ticks": 10, "backward_ticks": 10, "weight_ticks": 10}
    proved(Instance.uniform(stages=4, microbatches=8, comm_ticks=comm, memory_cap=4, **ten), value)


def test_room_for_half_an_activation() -> None:
    """Case c56: one activation counts 1, the cap is 1/2 on every stage."""
    result = solve(Instance.uniform(stages=4, microbatches=8, memory_cap="1/2"))
    assert (result.status, result.schedule, result.value, result.gap) == (Status.INFEASIBLE, None, None, None)
    said = "stage 0: memory cap 1/2 is below the 1 that one microbatch needs; raise it to 1"
    assert str(result.infeasible) == said


def test_infeasible_names_the_stage_that_lacks_most() -> None:
    """V placement on two stages: a microbatch holds both slices of a stage, 1/2 + 1/2 by default."""
    instance = Instance.uniform(stages=2, microbatches=2, placement="v", virtual=2)
    tight = instance.model_copy(update={"memory_cap": (instance.activation[0], instance.activation[0] / 2)})
    reason = infeasible(tight)
    assert reason is not None
    assert (reason.stage, reason.needed) == (1, 1)
    assert infeasible(instance) is None


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"time_limit_s": 0}, "time_limit_s = 0: give more than 0 and less than 10 million seconds"),
        ({"time_limit_s": float("nan")}, "time_limit_s = nan: give more than 0 and less than 10 million seconds"),
        ({"workers": 0}, "workers = 0: give 1 to 1024, or none for all processors"),
        ({"seed": -1}, "seed = -1: give 0 to 2147483647"),
    ],
)
def test_limits_out_of_range(limits: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        solve(Instance.uniform(stages=1, microbatches=1), **limits)  # type: ignore[arg-type]  # the fault under test


def hard() -> Instance:
    return Instance.model_validate(HARD)


def check_stopped(result: Result) -> None:
    """Check what holds of every result with a schedule: it is valid, and status, value and bound fit together."""
    assert result.schedule is not None
    assert result.value is not None
    assert validate(result.instance, result.schedule).violations == ()
    assert (result.status is Status.OPTIMAL) == (result.bound.value == result.value)
    assert 0 < result.bound.value <= result.value
    provenance = result.schedule.provenance
    assert (provenance.status, provenance.value, provenance.lower_bound, provenance.proved_by) == (
        result.status,
        result.value,
        result.bound.value,
        result.bound.proved_by,
    )


def test_time_limit_and_history() -> None:
    """Two seconds are not exceeded by much; values fall, bounds and times rise, and the last entry is the result.

    How much is what a limit of a millisecond takes at the same time on the same machine, that is the first heuristic,
    and what it takes to load the engine in a process, and its grace. The least of three, as other work comes and goes.
    """

    def took(time_limit_s: float) -> tuple[float, Result]:
        before = time.monotonic()
        result = solve(hard(), time_limit_s=time_limit_s, workers=2)
        return time.monotonic() - before, result

    pairs = []
    for _ in range(3):
        before = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", "import zbopt.cpsat.child"], env={"PYTHONPATH": ":".join(sys.path)}, check=True
        )
        took(0.001)
        overhead_s = time.monotonic() - before + GRACE_S
        whole_s, result = took(2)
        pairs.append(whole_s - 2 - 2 * overhead_s)
        if pairs[-1] < 1:
            break
    assert min(pairs) < 1
    check_stopped(result)
    values = [p.value for p in result.history if p.value is not None]
    assert values == sorted(values, reverse=True)
    assert [p.bound for p in result.history] == sorted(p.bound for p in result.history)
    assert [p.time_s for p in result.history] == sorted(p.time_s for p in result.history)
    assert (result.history[-1].value, result.history[-1].bound) == (result.value, result.bound.value)


def test_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Value, bound and argument are the same twice, with a limit that ends the search before it is done.

    Once the clock used to cut the heuristics short as well: here the second time it says at once that time is over.
    """
    found = [solve(hard(), time_limit_s=0.2, deterministic=True)]
    monkeypatch.setattr(Clock, "elapsed_s", lambda self: 1e6)
    found.append(solve(hard(), time_limit_s=0.2, deterministic=True))
    assert found[0].value == found[1].value
    assert found[0].bound == found[1].bound
    for result in found:
        check_stopped(result)
        assert result.schedule is not None
        assert (result.schedule.provenance.deterministic, result.schedule.provenance.workers) == (True, 1)


@pytest.mark.parametrize("by_heuristics", [True, False])
def test_interrupt_keeps_the_best(by_heuristics: bool) -> None:
    """Ctrl-C as soon as a heuristic's schedule is there, and at the first news of the search in the child."""

    def stop(progress: Progress) -> None:
        if progress.value is not None and progress.doing.startswith("heuristic") == by_heuristics:
            raise KeyboardInterrupt

    result = solve(hard(), time_limit_s=20, workers=2, on_progress=stop)
    assert result.interrupted
    assert result.status is Status.FEASIBLE
    check_stopped(result)


def test_interrupt_before_anything_is_known() -> None:
    """Ctrl-C at the first news: no schedule yet, and the bound that was told."""

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    result = solve(hard(), on_progress=stop)
    assert (result.interrupted, result.status, result.schedule, result.value) == (True, Status.UNKNOWN, None, None)
    assert result.bound.value > 0


SIGNALLED = f"""
import json, signal, zbopt
from zbopt.portfolio.run import solve
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
told = lambda progress: print("news", flush=True)
result = solve(zbopt.Instance.model_validate({HARD!r}), time_limit_s=600, workers=1, on_progress=told)
valid = zbopt.validate(result.instance, result.schedule).valid
print(json.dumps([result.status, result.interrupted, valid, result.bound.value <= result.value]))
"""


def test_ctrl_c_of_a_terminal() -> None:
    """A real SIGINT in the middle of the search: the best schedule, no traceback, and no process left behind."""
    process = subprocess.Popen(
        [sys.executable, "-c", SIGNALLED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert process.stdout is not None
    for _ in range(8):
        assert process.stdout.readline() == "news\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "Traceback" not in err
    assert json.loads(out.splitlines()[-1]) == ["feasible", True, True, True]


def test_what_the_validator_rejects_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that claims an impossible schedule: the heuristic's stays, with the bound proved before."""

    def lying(order: SolveRequest, work: ParentWork) -> Iterator[EngineMessage]:
        yield EngineMessage(value=1, starts=dict.fromkeys(order.starts, 0))

    monkeypatch.setattr(engine_phase, "run", lying)
    result = solve(hard(), time_limit_s=5)
    check_stopped(result)
    assert result.value is not None
    assert result.value > 1


def test_wrong_bound_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that claims more than a valid schedule takes is not believed, and the result says so."""
    monkeypatch.setattr(run, "lower_bound", lambda instance: Bound(28, "bound:wrong"))
    monkeypatch.setattr(engine_phase, "run", lambda order, beside: iter(()))
    result = solve(Instance.uniform(stages=4, microbatches=8, memory_cap=4))
    assert (result.status, result.value, result.bound.value) == (Status.FEASIBLE, 27, 0)
    assert result.fault is not None
    assert "bound:wrong claims that nothing is below 28 ticks, but a valid schedule takes 27" in result.fault
