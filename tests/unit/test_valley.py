"""Valley: what it says at published times, broken off and to the end, and where it says nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pickle import UnpicklingError
from random import Random

import pytest
from exact import known_value, proved_optimum

from zbopt.bounds import lower_bound
from zbopt.bounds.valley import Valley, layers, relaxation
from zbopt.bounds.valley.states import extend
from zbopt.cpsat.budget import Budget
from zbopt.cpsat.search import CpSatSearch
from zbopt.graph import expand
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective


def published(microbatches: int, cap: int) -> Instance:
    """Return the 1.5B times of instances/zb-iclr2024 on a V of 8 stages: half of each on a virtual stage."""
    return Instance.uniform(
        stages=8,
        microbatches=microbatches,
        forward_ticks=9261,
        backward_ticks=9043,
        weight_ticks=4669,
        comm_ticks=601,
        memory_cap=cap,
        weight_share=Fraction(366412, 10**6),
        placement="v",
        virtual=2,
    )


def test_published_times_take_more_than_the_load() -> None:
    """Half the memory of 8 stages: 1,397,547 us from stages 4 and 7, one stage says 1,369,823 (bench/README.md)."""
    instance = published(24, 4)
    assert lower_bound(instance).value == 1_369_823
    valley = Valley(instance, 1_390_000, 1_440_000)
    assert valley.ask((4, 7), (7,), lambda: False)
    assert valley.bound().value == 1_397_547


def test_a_long_step_costs_what_one_costs_that_repeats() -> None:
    """64 microbatches as before layers were skipped (bench/README.md): 3,313,947 us; 192 more cost no more states.

    The layers repeat every two microbatches, 95,820 us later: so do 192 more.
    """
    least, expanded = [], []
    for microbatches in (64, 256):
        valley = Valley(published(microbatches, 4), 0, 10**8)
        least.append(valley.least((4, 7), (7,), 10**8, lambda: False))
        expanded.append(valley.expanded)
    assert least == [(3_313_947, True), (3_313_947 + 96 * 95_820, True)]
    assert expanded[0] == expanded[1]


def test_skipping_what_repeats_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 small V, 20 to 40 microbatches: the least value is that of all layers, which are many more."""
    skipped = all_of_them = 0
    for seed in range(40):
        random = Random(seed)
        instance = Instance.uniform(
            stages=random.randint(2, 3),
            microbatches=random.randint(20, 40),
            forward_ticks=random.randint(1, 5),
            backward_ticks=random.randint(1, 5),
            weight_ticks=random.randint(1, 5),
            comm_ticks=random.randint(0, 2),
            memory_cap=random.choice((1, Fraction(3, 2), 2)),
            weight_share=Fraction(1, random.randint(1, 3)),
            placement="v",
            virtual=2,
        )
        stages = tuple(range(instance.stages))
        valley, whole = Valley(instance, 0, 10**6), Valley(instance, 0, 10**6)
        least = valley.least(stages, stages, 10**6, lambda: False)
        with monkeypatch.context() as patched:
            patched.setattr(relaxation, "_LONG_STEP", 10**6)
            assert whole.least(stages, stages, 10**6, lambda: False) == least, f"seed {seed}"
        skipped, all_of_them = skipped + valley.expanded, all_of_them + whole.expanded
    assert 2 * skipped < all_of_them


def small(**changed: object) -> Instance:
    """Return a V of 2 stages with all times 1."""
    fields = {"stages": 2, "stage_of": (0, 1, 1, 0), "microbatches": 2, "forward_ticks": (1,) * 4}
    fields |= {"backward_ticks": (1,) * 4, "weight_ticks": (1,) * 4, "memory_cap": (2, 2)}
    return Instance.model_validate(fields | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"comm_ticks": 5, "barrier": "post_validation", "optimizer_ticks": (1, 30)},
        {"comm_ticks": 40, "reduction_ticks": (1, 30, 30, 1)},
        {
            "stages": 3,
            "stage_of": (0, 1, 2, 2, 1, 0),
            "forward_ticks": (1,) * 6,
            "backward_ticks": (2,) * 6,
            "weight_ticks": (1,) * 6,
            "memory_cap": (2,) * 3,
            "comm_ticks": 1,
            "barrier": "post_validation",
            "optimizer_ticks": (1, 1, 9),
        },
    ],
)
def test_a_stage_that_is_done_waits_for_nothing(changed: dict[str, object]) -> None:
    """A long step or reduction follows at once what a stage did last, whatever others do; CP-SAT knows the optimum."""
    instance = small(**changed)
    best = proved_optimum(instance)
    valley = Valley(instance, 0, best + 50)
    assert valley.grow(lambda: False)
    assert valley.floor <= best


@pytest.mark.parametrize(
    "changed",
    [
        {"memory_cap": (3, 3 + Fraction(1, 2**61 - 1)), "weight_share": Fraction(1, 3)},
        {"forward_ticks": (10**9,) * 4, "backward_ticks": (10**9,) * 4, "weight_ticks": (10**9,) * 4}
        | {"weight_share": Fraction(1, 10**11), "memory_cap": (4, 3)},
        {"activation": (0.36641212345678,) * 4, "weight_share": 0.123456789012, "memory_cap": (1.09, 1.3)},
        {"activation": (Fraction(1, 10**19), 1, 1, Fraction(1, 10**19))},
    ],
)
def test_no_amount_of_memory_is_too_long_a_number(changed: dict[str, object]) -> None:
    """Denominators of up to 19 digits: a bound, and none above what a list schedule takes."""
    instance = small(microbatches=3, comm_ticks=1, **changed)
    value = known_value(instance)
    valley = Valley(instance, 0, value + 10)
    for stages in ((1,), (0, 1)):
        least, complete = valley.least(stages, stages, value + 10, lambda: False)
        assert complete
        assert 0 < least <= value


@pytest.mark.parametrize("fault", [OSError("no space left"), EOFError(), UnpicklingError("truncated")])
def test_compiled_code_that_cannot_be_kept_is_made_anew(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, or a file on it is cut off: the same value."""

    def broken(*_: object) -> tuple[int, int]:
        raise fault

    monkeypatch.setattr(layers, "_compiled", broken)
    valley = Valley(small(comm_ticks=1), 0, 100)
    expected = Valley(small(comm_ticks=1), 0, 100).least((0, 1), (0, 1), 100, lambda: False)
    assert valley.least((0, 1), (0, 1), 100, lambda: False) == expected
    assert layers._compiled is extend


def test_broken_off_it_says_less_and_never_more() -> None:
    """Twelve microbatches; the bound rises with the states that there is time for."""
    values = []
    for limit in (0, 1_000, 2_000, 100_000):
        valley = Valley(published(12, 4), 0, 900_000)
        assert valley.ask((4, 7), (7,), lambda valley=valley, limit=limit: valley.expanded > limit) == (
            limit == 100_000
        )  # type: ignore[misc]
        values.append(valley.bound().value)
    assert values == sorted(values)
    assert values[0] < values[2] < values[3]


def test_a_search_takes_what_it_proves() -> None:
    """Four stages, one microbatch at a time on each: every set of stages has its say on a thread of the search."""
    instance = Instance.uniform(
        stages=4, microbatches=4, comm_ticks=1, memory_cap=Fraction(3, 2), placement="v", virtual=2
    )
    bounds: list[Bound] = []
    search = CpSatSearch(
        graph=expand(instance),
        starts={},
        value=100,
        bound=lower_bound(instance),
        budget=Budget(600, 1, 0),
        on_schedule=lambda value, starts: None,
        on_bound=bounds.append,
        on_activity=lambda activity: None,
    )
    with ThreadPoolExecutor(1) as threads:
        search.start_growth(threads)
    [(grown, growth)] = search.growths.items()
    assert search.receive_grown() == []
    assert search.bound == bounds[-1] == grown.result() == growth.growing.bound()
    assert lower_bound(instance).value < search.bound.value < 100


@pytest.mark.parametrize("objective", ["makespan", "max_stage_span"])
def test_largest_span_is_no_less(objective: str) -> None:
    """1.5B times, m = 24, half the memory, stages 4 and 7: 1,397,547 us under both (models/bounds.md, section 14)."""
    instance = published(24, 4).model_copy(update={"objective": Objective(objective)})
    assert Valley(instance, 0, 1_440_183).least((4, 7), (4, 7), 1_440_183, lambda: False) == (1_397_547, True)


@pytest.mark.parametrize(
    "changed",
    [
        {"memory_cap": None},
        {"memory_cap": (24,) * 8},
        {"fused_backward_ticks": (19_000,) * 16},
        {"input_ready_ticks": (0, *(5,) * 11)},
        {"backward_ticks": (None, *(9043,) * 15)},
        {"objective": "period", "iterations": 2, "barrier": "global", "optimizer_ticks": (1,) * 8},
        {"stage_of": (*range(8), *range(8))},
    ],
)
def test_says_nothing_where_its_argument_does_not_hold(changed: dict[str, object]) -> None:
    """It is silent without a cap, with room for all, on fused backwards, late inputs, no first B, period, no V."""
    instance = Instance.model_validate(published(12, 4).model_dump() | changed)
    assert Valley.of(instance, 0, 10**6) is None
