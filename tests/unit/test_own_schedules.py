"""Heuristics and a start schedule that the caller of ``solve`` brings."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from zbopt.heuristics import HEURISTICS
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule, Status
from zbopt.validator import validate

STEP = Instance.uniform(stages=4, microbatches=8, memory_cap=4)
"""Unit times, cap p: the optimum is m(F+B+W) + (p-1)F = 27, and ZB-H1 has it."""
LONG = Instance.uniform(stages=2, microbatches=200, memory_cap=2)
"""A step that zbopt's own heuristics see as a short one: 3m + 1 = 601 at unit times."""


def test_a_candidate_is_tried_first() -> None:
    """It meets the bound, so that nothing of zbopt's own is tried."""
    result = solve(STEP, candidates={"mine": HEURISTICS["zb-h1"]})
    assert (result.status, result.value, result.notes) == (Status.OPTIMAL, 27, ())
    assert result.best_heuristic is not None
    assert (result.best_heuristic.name, result.best_heuristic.value) == ("mine", 27)


def test_a_candidate_gets_the_whole_step() -> None:
    """zbopt's own get a short step of a long one; what a caller wrote for one instance would not know that."""
    asked: list[Instance] = []

    def mine(instance: Instance) -> Schedule:
        asked.append(instance)
        return HEURISTICS["zb-h1"](instance)

    result = solve(LONG, candidates={"mine": mine})
    assert asked == [LONG]
    assert (result.status, result.value) == (Status.OPTIMAL, 601)


def raises(instance: Instance) -> Schedule:
    raise RuntimeError("out of ideas")


def returns_none(instance: Instance) -> Schedule:
    return None  # type: ignore[return-value]  # the fault under test


def above_the_cap(instance: Instance) -> Schedule:
    return HEURISTICS["gpipe"](instance.model_copy(update={"memory_cap": None}))


@pytest.mark.parametrize(
    ("candidate", "note"),
    [
        (raises, "candidate mine raised RuntimeError: out of ideas"),
        (returns_none, "candidate mine returned NoneType; it must return a Schedule"),
        (above_the_cap, "candidate mine returned an invalid schedule: memory_exceeded: stage 0 holds up to 8"),
    ],
)
def test_a_bad_candidate_ends_nothing(
    candidate: Callable[[Instance], Schedule], note: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The solve goes on without it, a warning is logged, and the result says why; the fault is not zbopt's."""
    with caplog.at_level(logging.WARNING):
        result = solve(STEP, candidates={"mine": candidate})
    assert (result.status, result.value, result.fault) == (Status.OPTIMAL, 27, None)
    assert result.best_heuristic is not None
    assert result.best_heuristic.name != "mine"
    assert [one.startswith(note) for one in result.notes] == [True]
    assert [record.getMessage() for record in caplog.records] == list(result.notes)


def test_a_candidate_that_does_not_fit_is_no_fault() -> None:
    """Heuristics of zbopt raise where they are not defined; given as candidates they may."""
    result = solve(STEP, candidates={"v": HEURISTICS["zb-v"], "h2": HEURISTICS["zb-h2"]})
    assert (result.value, result.notes) == (27, ())


def test_ctrl_c_in_a_candidate_ends_the_solve() -> None:
    """It is the caller's key, not a fault of the candidate."""

    def interrupted(instance: Instance) -> Schedule:
        raise KeyboardInterrupt

    result = solve(STEP, candidates={"mine": interrupted})
    assert (result.interrupted, result.status, result.notes) == (True, Status.UNKNOWN, ())


def test_the_start_is_never_lost() -> None:
    """No time for more than the start: the result is as good, and is a schedule of the instance that was asked about.

    The start comes from another instance, without a cap, that it fits all the same.
    """
    free = STEP.model_copy(update={"memory_cap": None, "name": "free"})
    start = HEURISTICS["zb-h1"](free)
    result = solve(STEP, start=start, time_limit_s=1e-9)
    assert (result.status, result.value) == (Status.OPTIMAL, 27)
    assert result.schedule is not None
    assert result.schedule.instance == STEP
    assert result.schedule.provenance.source == "heuristic:zb-h1"
    assert result.best_heuristic is None
    assert validate(STEP, result.schedule).violations == ()


def test_a_poor_start_is_improved() -> None:
    """One microbatch after another takes m(pF + pB + W) = 8 x 9 = 72 ticks; the optimum is 27."""
    one_by_one = HEURISTICS["list"](Instance.uniform(stages=4, microbatches=8, memory_cap=1))
    values: list[int | None] = []
    result = solve(STEP, start=one_by_one, on_progress=lambda progress: values.append(progress.value))
    assert (result.status, result.value) == (Status.OPTIMAL, 27)
    assert values[0] == 72


def test_a_start_that_breaks_a_rule_is_refused() -> None:
    """ZB-H2 holds 2p - 1 = 7 activations, above the cap of 4."""
    start = HEURISTICS["zb-h2"](Instance.uniform(stages=4, microbatches=8))
    with pytest.raises(ValueError, match=r"^start is not a valid schedule of the instance: memory_exceeded: stage 0"):
        solve(STEP, start=start)
