"""models/pipeline.mzn, solved by MiniZinc's own solver, against zbopt: same optimum, and schedules that are valid."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from random import Random

import pytest
from brute_force import optimum
from random_instances import random_instance

from zbopt.analysis.metrics import figures
from zbopt.formats.minizinc import from_minizinc, to_minizinc
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Barrier, Instance
from zbopt.problem.schedule import Status
from zbopt.validator import validate

MODEL = Path(__file__).parents[2] / "models" / "pipeline.mzn"
MINIZINC = shutil.which("minizinc")
needs_minizinc = pytest.mark.skipif(
    MINIZINC is None, reason="the program minizinc is not installed; Debian's package of that name brings it"
)


def instances() -> Iterator[Instance]:
    """Yield random instances of two or more stages and microbatches: every placement, option, barrier, objective."""
    for seed in count():
        instance = random_instance(Random(seed), most_stages=3, most_microbatches=3)
        if min(instance.stages, instance.microbatches) >= 2 and instance.virtual_stages * instance.microbatches <= 8:
            yield instance


VARIED = list(islice(instances(), 32))


def answer(instance: Instance, folder: Path) -> str | None:
    """Return MiniZinc's proved best solution as JSON; ``None`` where it proves that there is none."""
    assert MINIZINC is not None
    data = folder / "instance.dzn"
    data.write_text(to_minizinc(instance))
    printed = printed_by([MINIZINC, "--output-mode", "json", str(MODEL), str(data)], timeout_s=600)
    if "=====UNSATISFIABLE=====" in printed:
        return None
    *solutions, rest = printed.split("----------")
    assert "==========" in rest, f"MiniZinc did not prove its answer optimal: {printed[-500:]}"
    return solutions[-1]


def printed_by(command: list[str], timeout_s: float) -> str:
    """Run a program and return what it prints. Whatever happens, no process that it started is left behind."""
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, errors = program.communicate(timeout=timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # MiniZinc's solver outlives it
        program.wait()
    assert program.returncode == 0, errors
    return printed


def test_bug_solvers_left_behind(tmp_path: Path) -> None:
    """A program that ran out of time was ended, but what it had started went on: here a shell and its ``sleep``."""
    child = tmp_path / "child"
    script = f"sleep 1000 & echo $! > {child}; wait"
    with pytest.raises(subprocess.TimeoutExpired):
        printed_by(["sh", "-c", script], timeout_s=2)
    state = ["ps", "-o", "stat=", "-p", child.read_text().strip()]
    until = time.monotonic() + 60  # a killed process may take its time to go
    while (left := subprocess.run(state, capture_output=True, text=True).stdout.strip()[:1]) not in ("", "Z"):
        assert time.monotonic() < until, left
        time.sleep(0.05)


def test_instances_are_varied() -> None:
    """Each part of the formulation occurs in several instances, so the comparison below covers it."""
    assert len(VARIED) >= 30
    kinds = {
        "several virtual stages a stage": [not i.is_linear for i in VARIED],
        "transfers": [i.comm_ticks > 0 for i in VARIED],
        "cap": [i.memory_cap is not None for i in VARIED],
        "share released at B": [i.memory_cap is not None and min(i.weight_share) < 1 for i in VARIED],
        "free choice": [i.may_split and i.may_fuse for i in VARIED],
        "never split": [not i.may_split for i in VARIED],
        "first B missing": [i.backward_ticks is not None and i.backward_ticks[0] is None for i in VARIED],
        "global barrier": [i.barrier is Barrier.GLOBAL for i in VARIED],
        "post-validation": [i.barrier is Barrier.POST_VALIDATION for i in VARIED],
        "span": [i.objective == "max_stage_span" for i in VARIED],
    }
    assert {kind: sum(found) for kind, found in kinds.items() if sum(found) < 3} == {}


@needs_minizinc
@pytest.mark.parametrize("instance", VARIED)
def test_same_optimum(instance: Instance, tmp_path: Path) -> None:
    """MiniZinc's optimum, stated a second time and searched by another solver, is the one that zbopt proves."""
    found = answer(instance, tmp_path)
    assert found is not None
    schedule = from_minizinc(instance, found)
    assert validate(instance, schedule).violations == ()
    ours = solve(instance, time_limit_s=600)
    assert ours.status is Status.OPTIMAL
    assert figures(schedule).value(instance.objective) == ours.value


@needs_minizinc
@pytest.mark.parametrize(
    ("objective", "cap", "value"),
    [("makespan", None, 7), ("makespan", 1, 10), ("max_stage_span", 2, 7), ("makespan", "1/2", None)],
)
def test_known_optima(objective: str, cap: int | str | None, value: int | None, tmp_path: Path) -> None:
    """p = m = 2, unit times: m(F+B+W) + (p-1)F = 7; serial on stage 0 at cap 1: m (2(F+B) + W) = 10; 1/2 fits nothing.

    The least span is that of the exhaustive solver.
    """
    instance = Instance.uniform(stages=2, microbatches=2, objective=objective, memory_cap=cap)
    assert optimum(instance) == value
    found = answer(instance, tmp_path)
    assert (None if found is None else figures(from_minizinc(instance, found)).value(instance.objective)) == value


def test_data_of_an_instance() -> None:
    """By hand: halves and thirds of 3/2 are 1/2 and 1 of a unit 1/2, so that a cap of 3.2 holds 6 of them."""
    fields = {
        "stages": 2,
        "microbatches": 2,
        "forward_ticks": 1,
        "backward_ticks": 1,
        "weight_ticks": 1,
        "comm_ticks": 1,
    }
    memory = {"memory_cap": 3.2, "activation": 1.5, "weight_share": "2/3", "barrier": "global"}
    instance = Instance.model_validate(fields | memory)
    lines = to_minizinc(instance).splitlines()
    assert "memory_cap = [6, 6];" in lines
    assert "released_by_b = [1, 1];" in lines
    assert "released_by_w = [2, 2];" in lines
    assert "fused_backward_ticks = [0, 0];" in lines
    assert "optimizer_ticks = [0, 0];" in lines
    assert "horizon = 16;" in lines  # 2 microbatches of 2 (F + B + W) + 2 transfers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("=====UNKNOWN=====", r"MiniZinc's answer is not JSON: .*; run it with --output-mode json"),
        ('{"start_f": []}', r"MiniZinc's answer lacks one of start_f, .*; solve models/pipeline.mzn"),
        ("[1]", r"MiniZinc's answer lacks one of start_f, .*; solve models/pipeline.mzn"),
    ],
)
def test_answers_that_cannot_be_read(text: str, message: str) -> None:
    """Each error says what is wrong and what to run instead."""
    with pytest.raises(ValueError, match=message):
        from_minizinc(Instance.uniform(stages=2, microbatches=2), text)
