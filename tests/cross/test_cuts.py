"""Cuts of the formulation: none is added where it does not understand a field, and none moves a proved optimum."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Annotated

import pytest
from exact import FREE, any_instance, known_value, proved_optimum
from random_instances import random_instance, with_memory
from random_time import timed_instance

from zbopt.bounds import lower_bound
from zbopt.bounds.relax import whole
from zbopt.cpsat.budget import Budget
from zbopt.cpsat.cuts import CUTS, cuts_of
from zbopt.cpsat.formulation import Formulation, Rules
from zbopt.cpsat.periodic import repeating_shape
from zbopt.cpsat.search import CpSatSearch
from zbopt.cpsat.strategy import NeighbourhoodStrategy
from zbopt.graph import expand
from zbopt.problem.facts import Axis, Facts, Unit, fields_in_use
from zbopt.problem.instance import Instance

IN_THE_MODEL = ("D1", "D2", "D5", "D9")
"""Cuts that a refutation may rest on. [D6] and [D10] only find schedules."""

LINKS = {"communication", "transfer_occupies", "collectives"}
ITERATIONS = {"iterations", "input_ready_ticks"}
NOT_UNDERSTOOD = {
    "D1": {"overlapped_ticks"},
    "D2": {"overlapped_ticks"},
    "D5": {"overlapped_ticks", "microbatch_times"},
    "D6": {"overlapped_ticks", "microbatch_times", "routes", *LINKS, *ITERATIONS},
    "D9": {"overlapped_ticks", "microbatch_times", "routes", *ITERATIONS},
    "D10": {"overlapped_ticks"},
}
"""Fields of each proof in models/formulation.md, section 6, and of its remarks on transfers, iterations and inputs."""

_MOST_TASKS = 24
"""Most tasks of an instance. Without [D1], more of them take CP-SAT minutes."""

SMALL = {"stages": 2, "microbatches": 3, "forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1}
PORTS = {"communication": "link", "comm_ticks": 1, "transfer_occupies": "port"}
STEPS = {"iterations": 2, "barrier": "post_validation", "objective": "max_stage_span", "microbatches": 2}
USING: dict[str, dict[str, object]] = {
    "overlapped_ticks": {"fused_backward_ticks": 2, "overlapped_ticks": 2},
    "microbatch_times": {"microbatch_times": [{"microbatches": [1], "forward_ticks": 2}]},
    "routes": {
        "stage_of": [0, 1, 1, 0],
        "routes": [{"virtual_stages": [0, 1], "microbatches": 2}, {"virtual_stages": [2, 3], "microbatches": 1}],
    },
    "communication": {"communication": "link", "comm_ticks": 1},
    "transfer_occupies": PORTS,
    "collectives": PORTS | {"collectives": [{"kind": "F", "start": 0, "ticks": 1}]},
    "iterations": STEPS,
    "input_ready_ticks": {"input_ready_ticks": [0, 2, 4]},
}
"""For each field that some cut does not understand, fields with which it is in use."""

SEEDS = {"D1": 90, "D2": 60, "D5": 120, "D9": 120}
"""Random instances for each cut: as many as it takes for five whose model it changes, and then some."""

CAPPED = {"memory_cap": 2, "objective": "max_stage_span"}


def model_of(instance: Instance, rules: Rules | None = None) -> str:
    """Return the model's text, within the value of a schedule with one microbatch after another."""
    horizon = instance.iterations * 100
    return str(Formulation(whole(expand(instance)), horizon, minimise=False, rules=rules).model)


def test_what_each_cut_understands() -> None:
    """A field that is struck switches a cut off where it cuts today; one that is added is not covered by its proof."""
    for tag, understood in CUTS.items():
        assert set(Instance.model_fields) - understood == NOT_UNDERSTOOD[tag], tag
        assert understood <= set(Instance.model_fields), tag


@pytest.mark.parametrize(("tag", "field"), [(tag, field) for tag in CUTS for field in sorted(NOT_UNDERSTOOD[tag])])
def test_a_cut_is_off_where_it_does_not_understand(tag: str, field: str) -> None:
    """The model is then the one without the cut, the step repeats nowhere, or no neighbourhood is asked."""
    instance = Instance.model_validate(SMALL | CAPPED | USING[field])
    assert field in fields_in_use(instance)
    assert tag not in cuts_of(instance)
    if tag == "D6":
        assert repeating_shape(instance) is None
    elif tag == "D10":
        assert not any(isinstance(strategy, NeighbourhoodStrategy) for strategy in search(instance).strategies())
    elif field == "overlapped_ticks":
        with pytest.raises(ValueError, match="overlapped_ticks"):
            model_of(instance)
    else:
        assert model_of(instance) == model_of(instance, Rules(without=frozenset({tag})))


def search(instance: Instance) -> CpSatSearch:
    return CpSatSearch(
        graph=expand(instance),
        starts={},
        value=100,
        bound=lower_bound(instance),
        budget=Budget(600, 1, 0),
        on_schedule=lambda value, starts: None,
        on_bound=lambda bound: None,
        on_activity=lambda activity: None,
    )


def any_kind(seed: int) -> Instance:
    """Draw a tiny instance with any fields of ops, memory and activation policies, or transfers and iterations."""
    random = Random(f"cuts {seed}")
    while True:
        if seed % 3 == 0:
            instance = any_instance(random)
        elif seed % 3 == 1:
            instance = timed_instance(random, most_ops=6)
        else:
            small = random_instance(random, most_stages=2, most_microbatches=3, unlike=seed % 2 == 0)
            instance = with_memory(random, small)
        if len(expand(instance).tasks) <= _MOST_TASKS:
            return instance


@pytest.mark.parametrize("tag", IN_THE_MODEL)
def test_no_cut_moves_an_optimum(tag: str) -> None:
    """Each cut leaves the proved optimum where it is, on every instance whose model it changes, and it changes some."""
    changed, used = 0, Counter[str]()
    for seed in range(SEEDS[tag]):
        instance = any_kind(seed)
        without = Rules(without=frozenset({tag}))
        problem, horizon = whole(expand(instance)), known_value(instance)
        texts = [str(Formulation(problem, horizon, minimise=True, rules=rules).model) for rules in (None, without)]
        if texts[0] == texts[1]:
            continue
        changed += 1
        used.update(fields_in_use(instance))
        assert proved_optimum(instance) == proved_optimum(instance, without), f"seed {seed}"
    assert changed >= 5
    assert not set(used) & NOT_UNDERSTOOD[tag]


class NewField(Instance):
    """Represent an instance with a field that nobody has read a proof for."""

    toy_ticks: Annotated[int, Facts(axis=Axis.NONE, unit=Unit.TICKS)] = 0


@pytest.mark.parametrize("seed", range(12))
def test_a_new_field_switches_every_cut_off(seed: int) -> None:
    """At its default the new field changes nothing. In use it leaves no cut, and the optimum is as before."""
    instance = any_kind(seed)
    plain = NewField.model_validate(instance.model_dump())
    new = NewField.model_validate(instance.model_dump() | {"toy_ticks": 1})
    assert cuts_of(plain) == cuts_of(instance)
    assert cuts_of(new) == frozenset()
    assert model_of(new) == model_of(instance, FREE)
    assert proved_optimum(instance) == proved_optimum(instance, FREE)
