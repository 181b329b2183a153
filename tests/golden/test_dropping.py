"""Recomputation and offloading: schedules under caps below what any schedule needs without them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from exact import proved_optimum

from zbopt.graph.memory import least_memory
from zbopt.portfolio.result import infeasible
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Instance, read_instance
from zbopt.problem.schedule import Status
from zbopt.validator import validate

EVERYTHING = Path(__file__).parents[2] / "instances" / "everything"


def problem(seed: int, way: str, mode: str) -> Instance:
    """Return two stages of two virtual stages each, under a cap one byte below what is needed if nothing is dropped.

    Args:
        seed: Of times and sizes, the same for each mode.
        way: ``recompute`` or ``offload``.
        mode: ``never``, ``always`` or ``choose``.
    """
    random = Random(f"{way} {seed}")
    fields: dict[str, object] = {
        "stages": 2,
        "stage_of": random.choice(([0, 1, 1, 0], [0, 1, 0, 1])),
        "microbatches": 2,
        "comm_ticks": random.randint(0, 1),
        "weight_share": random.choice((1, "1/2")),
        "memory_unit": "B",
        "parameters": random.randint(1000, 5000),
        "activation": [random.randint(500, 1500) for _ in range(4)],
    }
    for name in ("forward_ticks", "backward_ticks", "weight_ticks"):
        fields[name] = [random.randint(1, 4) for _ in range(4)]
    kept = Instance.model_validate(fields)
    fields["memory_cap"] = [least_memory(kept, stage) - 1 for stage in range(2)]
    left = [amount * random.randint(5, 30) // 100 for amount in kept.activation]
    if mode != "never" and way == "recompute":
        fields |= {"recompute": mode, "checkpoint": left}
    elif mode != "never":
        fields |= {"offload": mode, "offload_ticks": [random.randint(1, 3) for _ in range(4)], "offload_rest": left}
    return Instance.model_validate(fields)


@pytest.mark.parametrize("way", ["recompute", "offload"])
def test_choosing_finds_what_keeping_cannot_and_is_never_worse_than_always(way: str) -> None:
    """20 instances: never is infeasible; choose has an optimum, at most that of always, and mostly below it."""
    better = 0
    for seed in range(20):
        never, always, choose = (problem(seed, way, mode) for mode in ("never", "always", "choose"))
        assert infeasible(never) is not None
        assert infeasible(choose) is None
        best, forced = proved_optimum(choose), proved_optimum(always)
        assert best <= forced, f"seed {seed}"
        better += best < forced
    assert better >= 10


@pytest.mark.parametrize(
    ("name", "value", "proved_by"),
    [
        ("p4-m8-cap48-to-36", 161, "bound:load"),
        ("p4-m8-cap44-to-35", 164, "bound:last-gradient"),
        ("p4-m8-cap36-to-31", 168, "bound:last-gradient"),
    ],
)
def test_everything_switched_on_is_proved(name: str, value: int, proved_by: str) -> None:
    """4 stages, 8 microbatches, with every field that takes time or memory: a bound of the last stage is met.

    The load: its first F begins at 20 at the earliest (F 4, 5, 5 and three transfers of 1 + (1/2)/(1/2) = 2 ticks), 8
    microbatches of F 6 + 1 for the loss and B, W 6 + 4 or BW 10 take 17 each, 136; then the reduction 2, the barrier 1
    and O 2: 20 + 136 + 5 = 161.

    The last gradient, at a cap of 35: static memory is 3 + 3 + 6 + 1 + 1 and two receive buffers of 1/2, 15, so that 20
    are left. Its last B holds 4 + 1/2 + 1/2 and adds 1; each W that waits holds 4/2 + 1 = 3, so 4 fit beside it. With
    the B's own, five W of 4 may follow, and 20 + 136 - 20 = 136 comes before its end. Then the gradient goes up: three
    transfers of 2, B 5 twice and 7 for the backward of the first stage, 23, and the 5 above: 136 + 23 + 5 = 164.
    At a cap of 31 three W fit beside it instead of four: 4 ticks more.
    """
    instance = read_instance(EVERYTHING / f"{name}.json")
    result = solve(instance, time_limit_s=60, deterministic=True)
    assert result.schedule is not None
    assert validate(instance, result.schedule).violations == ()
    assert (result.value, result.bound.value, result.status) == (value, value, Status.OPTIMAL)
    assert result.bound.proved_by == proved_by
