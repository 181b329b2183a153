"""A bound is silent, or true, where a field is in use that it does not understand; a new field silences every bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations
from random import Random
from typing import Annotated, Any

import pytest
from exact import FREE, least, proved_optimum
from overlapped import optimum_with_pairs
from pydantic import Field

from zbopt.bounds import ARGUMENTS, lower_bound
from zbopt.bounds.crossings import Crossings, pipe
from zbopt.bounds.growing import growing_bound
from zbopt.bounds.relax import keep_stages, may_relax
from zbopt.bounds.understood import COMMON, EVERYTHING
from zbopt.bounds.valley import Valley, relaxation
from zbopt.graph import expand
from zbopt.graph.memory import least_memory
from zbopt.problem.bound import Bound
from zbopt.problem.facts import Axis, Facts, Unit, fields_in_use
from zbopt.problem.instance import Instance

BLOCKS, BLOCK = 10, 30
"""300 instances."""

NOT_BY_ALL = tuple(sorted(EVERYTHING - COMMON))
"""Fields that some bound does not understand."""

GROWN = {"crossings": pipe, "valley": relaxation}
"""Modules that declare what a growing bound understands."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_bounds_are_silent_or_true(block: int) -> None:
    """Each instance has one such field in use, in turn. The optimum is CP-SAT's, without any cut."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        field = NOT_BY_ALL[seed % len(NOT_BY_ALL)]
        instance = _instance(Random(seed), field)
        assert field in fields_in_use(instance)
        best = _optimum(instance)
        above = {name: value for name, value in _values(instance, best) if value > best}
        assert above == {}, f"seed {seed}, {field}: above the optimum {best}"
        for name, argument in ARGUMENTS.items():
            silent = field in argument.understood or argument(instance) is None
            assert silent, f"seed {seed}: {name} does not understand {field}"
        assert growing_bound(instance, 0, best) is None, f"seed {seed}: no growing bound knows {field}"
        graph = expand(instance)
        for stages in _stage_sets(instance) if may_relax(instance) else ():
            # None would say that the relaxation has no solution within the optimum of the whole.
            assert least(keep_stages(graph, stages), best) is not None, f"seed {seed}, {field}: stages {stages}"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("crossings", "fused_backward_ticks"),
        ("valley", "fused_backward_ticks"),
        ("round-trip", "overlapped_ticks"),
        ("turns", "overlapped_ticks"),
        ("area", "microbatch_times"),
        ("last-gradient", "overlapped_ticks"),
        ("last-forward", "overlapped_ticks"),
    ],
)
def test_a_bound_that_claims_too_much_is_found(name: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants of the declarations, one field too many in each: the check above finds a false bound among them."""
    if name in GROWN:
        monkeypatch.setattr(GROWN[name], "UNDERSTOOD", COMMON | {field})
    else:
        argument = ARGUMENTS[name]
        monkeypatch.setattr(argument, "understood", argument.understood | {field})
    assert any(_claims_too_much(name, _instance(Random(seed), field)) for seed in range(60))


def _claims_too_much(name: str, instance: Instance) -> bool:
    found = dict(_values(instance, 10**6))
    return name in found and found[name] > _optimum(instance)


class Toy(Instance):
    """Represent an instance with a field that no bound understands."""

    toy_ticks: Annotated[int, Facts(axis=Axis.NONE, unit=Unit.TICKS)] = Field(0, description="A toy.")


@pytest.mark.parametrize("placement", ["linear", "v"])
def test_a_field_that_nobody_thought_of_silences_every_bound(placement: str) -> None:
    """Every argument, relaxation and growing bound is silent. At its default the new field changes nothing."""
    plain = _pipeline(Random(0), placement).model_dump()
    absent, in_use = Toy.model_validate(plain), Toy.model_validate(plain | {"toy_ticks": 1})
    assert lower_bound(absent) == lower_bound(Instance.model_validate(plain))
    assert may_relax(absent)
    assert {name: argument(in_use) for name, argument in ARGUMENTS.items()} == dict.fromkeys(ARGUMENTS)
    assert lower_bound(in_use) == Bound(0, "bound:none")
    assert not may_relax(in_use)
    with pytest.raises(ValueError, match="toy_ticks is in use, and a relaxation to a few stages does not"):
        keep_stages(expand(in_use), (0,))
    assert (growing_bound(absent, 0, 10**6) is None, growing_bound(in_use, 0, 10**6)) == (False, None)


def test_declarations_name_fields_that_there_are() -> None:
    """A name that is no field would understand nothing, and nobody would notice."""
    assert set(Instance.model_fields) >= EVERYTHING
    assert all(argument.understood <= EVERYTHING for argument in ARGUMENTS.values())


def _optimum(instance: Instance) -> int:
    """Return the least value of the objective. zbopt's model has no overlapped ops."""
    return proved_optimum(instance, FREE) if instance.overlapped_ticks is None else optimum_with_pairs(instance)


def _values(instance: Instance, roof: int) -> Iterator[tuple[str, int]]:
    """Yield the values of all bounds that say something, relaxations left out."""
    for name, argument in ARGUMENTS.items():
        bound = argument(instance)
        if bound is not None:
            yield name, bound.value
    for name, growing in (("crossings", Crossings.of(instance)), ("valley", Valley.of(instance, 0, roof + 1))):
        if growing is not None:
            growing.grow(lambda: False)
            yield name, growing.bound().value


def _stage_sets(instance: Instance) -> Iterator[tuple[int, ...]]:
    for count in range(1, instance.stages):
        yield from combinations(range(instance.stages), count)


def _instance(random: Random, field: str) -> Instance:
    """Draw a pipeline for which crossings or the valley would say something if ``field`` were not in use."""
    placement = "v" if field == "routes" else random.choice(("linear", "v"))
    instance = _pipeline(random, placement)
    fields = instance.model_dump() | _IN_USE[field](random, instance)
    # More under the largest span are seconds each to prove.
    if instance.stages == 2 and fields.get("iterations", 1) == 1 and random.random() < 0.12:
        fields["objective"] = "max_stage_span"
    return Instance.model_validate(fields)


def _pipeline(random: Random, placement: str) -> Instance:
    """Draw two or three stages in a row, or two of a V, with memory for hardly more than one microbatch on each."""
    stages, microbatches = (random.choice((2, 2, 3)), 3) if placement == "linear" else (2, 2)
    stage_of = range(stages) if placement == "linear" else (*range(stages), *reversed(range(stages)))

    def times(most: int) -> list[int]:
        return [random.randint(1, most) for _ in stage_of]

    fields: dict[str, Any] = {
        "stages": stages,
        "stage_of": list(stage_of),
        "microbatches": microbatches,
        "forward_ticks": times(4),
        "backward_ticks": times(4),
        "weight_ticks": times(4),
        "comm_ticks": random.randint(1, 3),
        "weight_share": random.choice((1, Fraction(1, 2))),
    }
    free = Instance.model_validate(fields)
    more = (0, 0, Fraction(1, 2)) if placement == "linear" else (0, Fraction(1, 2))
    caps = [least_memory(free, stage) + random.choice(more) for stage in range(stages)]
    return Instance.model_validate(fields | {"memory_cap": caps})


def _fused(random: Random, instance: Instance) -> dict[str, Any]:
    return {"fused_backward_ticks": [random.randint(1, 4) for _ in instance.stage_of]}


def _overlapped(random: Random, instance: Instance) -> dict[str, Any]:
    """Let a pair take no longer than the longer of its ops."""
    fused = [random.randint(2, 5) for _ in instance.stage_of]
    longest = [
        max(max(instance.forward_ticks[v], fused[v]) for v in instance.virtual_stages_of(stage))
        for stage in range(instance.stages)
    ]
    assert instance.memory_cap is not None
    return {
        "backward_ticks": None,
        "weight_ticks": None,
        "fused_backward_ticks": fused,
        "overlapped_ticks": longest,
        "memory_cap": [cap + random.choice((1, 2)) for cap in instance.memory_cap],
        "comm_ticks": random.randint(0, 1),
    }


def _routes(random: Random, instance: Instance) -> dict[str, Any]:
    ways = random.choice((((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))))
    return {"routes": [{"virtual_stages": way, "microbatches": 1} for way in ways], "memory_cap": None} | (
        {"memory_cap": instance.memory_cap} if random.random() < 0.8 else {}
    )


def _microbatch_times(random: Random, instance: Instance) -> dict[str, Any]:
    """Let all microbatches but the first take one tick for each op."""
    names = ("forward_ticks", "backward_ticks", "weight_ticks")
    group: dict[str, Any] = {name: [1] * instance.virtual_stages for name in names}
    others = range(1, instance.microbatches) if random.random() < 0.8 else range(1)
    return {"microbatch_times": [group | {"microbatches": list(others)}]}


def _link(random: Random, _: Instance) -> dict[str, Any]:
    return {"communication": random.choice(("link", "blocking"))}


def _port(random: Random, instance: Instance) -> dict[str, Any]:
    return _link(random, instance) | {"transfer_occupies": "port"}


def _collectives(random: Random, instance: Instance) -> dict[str, Any]:
    return _port(random, instance) | {"collectives": [{"kind": random.choice(("F", "B")), "start": 0, "ticks": 1}]}


def _iterations(random: Random, instance: Instance) -> dict[str, Any]:
    fields = {"barrier": "global", "optimizer_ticks": [random.randint(0, 2) for _ in range(instance.stages)]}
    objective = random.choice(("makespan", "period")) if instance.stages == 2 else "makespan"
    return fields | {"iterations": 2, "microbatches": 2 if instance.is_linear else 1, "objective": objective}


def _inputs(random: Random, instance: Instance) -> dict[str, Any]:
    late = random.randint(1, 9)
    return {"input_ready_ticks": [0, *(late + j for j in range(1, instance.microbatches))]}


def _modes(random: Random, instance: Instance) -> list[str]:
    return [random.choice(("always", "choose")), *(["never"] * (instance.virtual_stages - 1))]


def _recompute(random: Random, instance: Instance) -> dict[str, Any]:
    return {"recompute": _modes(random, instance)}


def _offload(random: Random, instance: Instance) -> dict[str, Any]:
    return {"offload": _modes(random, instance), "offload_ticks": [random.randint(1, 2) for _ in instance.stage_of]}


_IN_USE: dict[str, Callable[[Random, Instance], dict[str, Any]]] = {
    "fused_backward_ticks": _fused,
    "overlapped_ticks": _overlapped,
    "routes": _routes,
    "microbatch_times": _microbatch_times,
    "communication": _link,
    "transfer_occupies": _port,
    "collectives": _collectives,
    "iterations": _iterations,
    "input_ready_ticks": _inputs,
    "recompute": _recompute,
    "offload": _offload,
}
"""Functions that put each field to use."""
