"""Perturbation: every schedule that it yields is valid and better than the one before, and the seed decides all."""

from __future__ import annotations

from itertools import islice

import pytest
from uneven import uneven

from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS, NotApplicableError
from zbopt.heuristics.tools.patience import limited
from zbopt.improve.perturbation import perturbed
from zbopt.problem.instance import Drop, Instance
from zbopt.problem.schedule import Schedule
from zbopt.validator import validate

CASES = [("v", 2, "makespan", "list"), ("interleaved", 3, "makespan", "list"), ("v", 3, "max_stage_span", "list")]


def _found(instance: Instance, start: Schedule, seed: int) -> list[Schedule]:
    """Return the better schedules of the first forty perturbations."""
    return [better for better in islice(perturbed(start, expand(instance), seed), 40) if better is not None]


@pytest.mark.parametrize(("placement", "cap", "objective", "heuristic"), CASES)
def test_each_is_valid_and_better(placement: str, cap: int, objective: str, heuristic: str) -> None:
    """At caps below p, where the list schedule leaves much to gain."""
    instance = uneven(4, 8, cap, placement, objective=objective)
    start = HEURISTICS[heuristic](instance)
    found = _found(instance, start, seed=0)
    values = [schedule.provenance.value for schedule in (start, *found)]
    assert found
    assert all(validate(instance, schedule).valid for schedule in found)
    assert values == sorted(set(values), reverse=True)
    assert [schedule.events for schedule in _found(instance, start, seed=0)] == [schedule.events for schedule in found]


def test_ragged_and_few_microbatches() -> None:
    """Fewer microbatches than stages: nothing worse comes out."""
    instance = uneven(4, 3, 2, "v")
    start = HEURISTICS["v-auto"](instance)
    for better in islice(perturbed(start, expand(instance), 0), 100):
        assert better is None or (better.provenance.value or 0) < (start.provenance.value or 0)


def test_out_of_time_is_a_perturbation_in_vain() -> None:
    """With no time at all each perturbation gives up at once."""
    instance = uneven(4, 8, 2, "v")
    start = HEURISTICS["list"](instance)
    with limited(lambda: True):
        assert set(perturbed(start, expand(instance), 0)) == {None}


def test_activations_that_are_dropped_are_refused() -> None:
    """Packing knows of no op that brings an activation back."""
    instance = uneven(4, 8, 2, "v").model_copy(update={"recompute_ticks": (10,) * 8, "recompute": (Drop.ALWAYS,) * 8})
    start = HEURISTICS["list"](instance)
    with pytest.raises(NotApplicableError, match="perturbation: it keeps activations"):
        next(perturbed(start, expand(instance), 0))


@pytest.mark.parametrize("barrier", ["global", "post_validation"])
def test_bug_optimizer_steps_are_not_perturbed(barrier: str) -> None:
    """O belongs to no virtual stage and comes last on its stage: only ops of microbatches are packed."""
    fields = {"barrier": barrier, "optimizer_ticks": (3, 1, 2, 0)}
    instance = Instance.model_validate(uneven(4, 8, 3, "interleaved").model_dump() | fields)
    start = HEURISTICS["list"](instance)
    found = _found(instance, start, seed=0)
    assert found
    assert all(validate(instance, schedule).valid for schedule in found)
