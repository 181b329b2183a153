"""The bound from a V's last stage: never above a proved optimum, and the optimum itself where all is kept."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from exact import proved_optimum

from zbopt.bounds.valley import Valley
from zbopt.bounds.valley.relaxation import can_be_full
from zbopt.graph.memory import least_memory
from zbopt.problem.instance import Instance, Objective

BLOCKS, BLOCK = 13, 40
"""520 instances."""


def test_instances_are_such_that_the_bound_says_something() -> None:
    """The bound says something on these instances. Otherwise the tests below would show nothing."""
    said = [Valley.of(_instance(Random(seed)), 0, 1000) is not None for seed in range(BLOCKS * BLOCK)]
    assert sum(said) > 0.9 * len(said)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_bound_is_never_above_the_optimum(block: int) -> None:
    """The growing bound, some stages with some of them full, and all stages stay at or below CP-SAT's optimum."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        random = Random(seed)
        instance = _instance(random)
        best = proved_optimum(instance)
        valley = Valley.of(instance, 0, best + 1)
        if valley is None:
            continue
        assert valley.grow(lambda: False)
        assert valley.bound().value <= best, f"seed {seed}"
        broken_off = Valley(instance, 0, best + 1)
        limit = random.randint(1, 200)
        broken_off.grow(lambda valley=broken_off, limit=limit: valley.expanded > limit)  # type: ignore[misc]
        assert broken_off.bound().value <= best, f"seed {seed}: broken off"
        able = [stage for stage in range(instance.stages) if can_be_full(instance, stage)]
        full = tuple(random.sample(able, random.randint(1, len(able))))
        stages = tuple({*full, *random.sample(range(instance.stages), random.randint(0, instance.stages - 1))})
        every = tuple(range(instance.stages))
        for kept, limited in ((stages, full), (every, full), (every, tuple(able))):
            least, complete = valley.least(kept, limited, best + 1, lambda: False)
            assert complete
            assert least <= best, f"seed {seed}: {kept}, {limited}"
        if len(able) == instance.stages and _nothing_else(instance):
            assert least == best, f"seed {seed}: all is kept"
            assert valley.least(every, able, best, lambda: False) == (best, True), f"seed {seed}: refuted"


def _nothing_else(instance: Instance) -> bool:
    """Tell whether both virtual stages of a stage hold as much, their W take one tick, and nothing else takes memory.

    Under the largest span, what is left of W on other stages than the first is not kept.
    """
    if any((instance.gradient_state, instance.optimizer_ticks, instance.reduction_ticks)):
        return False
    if instance.objective is not Objective.MAKESPAN:
        return False
    assert instance.weight_ticks is not None
    alike = all(row == row[::-1] for row in (instance.activation, instance.weight_share))
    return alike and set(instance.weight_ticks) == {1}


def _instance(random: Random) -> Instance:
    """Draw a V with uneven times, and caps near what one, two or three microbatches need."""
    stages, microbatches = random.choice(((2, 2), (2, 2), (2, 3), (2, 4), (3, 2), (3, 2), (4, 2)))
    alike = random.random() < 0.7

    def times(most: int) -> list[int]:
        return [random.randint(1, most) for _ in range(2 * stages)]

    def mirrored(most: int) -> list[int]:
        row = times(most)
        return [*row[:stages], *reversed(row[:stages])] if alike else row

    fields: dict[str, object] = {
        "stages": stages,
        "stage_of": [*range(stages), *reversed(range(stages))],
        "microbatches": microbatches,
        "forward_ticks": times(5),
        "backward_ticks": times(5),
        "weight_ticks": mirrored(random.choice((1, 2, 5))),
        "comm_ticks": random.choice((0, 0, 1, 2, 5)),
        "weight_share": random.choice((1, Fraction(1, 2), Fraction(1, 3), 0)),
        "activation": mirrored(2),
    }
    if random.random() < 0.4:
        steps = [random.randint(0, random.choice((3, 40))) for _ in range(stages)]
        fields |= {"barrier": random.choice(("global", "post_validation")), "optimizer_ticks": steps}
    if random.random() < 0.2:
        fields["reduction_ticks"] = times(random.choice((3, 30)))
    if random.random() < 0.2:
        fields["gradient_state"] = [random.choice((0, Fraction(1, 2))) for _ in range(2 * stages)]
    free = Instance.model_validate(fields)
    caps = [least_memory(free, stage) + random.choice((0, 0, Fraction(1, 2), 1)) for stage in range(stages)]
    # More under the span are seconds each to prove.
    if (stages, microbatches) == (2, 2) and random.random() < 0.5:
        fields["objective"] = "max_stage_span"
    return Instance.model_validate(fields | {"memory_cap": caps})
