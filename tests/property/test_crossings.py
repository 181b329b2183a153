"""The bound from crossings: never above a proved optimum, and equal to that of what it keeps of the problem."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from exact import proved_optimum, solver
from ortools.sat.python import cp_model

from zbopt.bounds.crossings import Crossings
from zbopt.bounds.crossings.front import Front
from zbopt.bounds.crossings.pipe import Pipe, pipe_of
from zbopt.graph.memory import least_memory
from zbopt.problem.instance import Instance

BLOCKS, BLOCK = 13, 40
"""520 instances."""


def test_instances_are_such_that_the_bound_says_something() -> None:
    """The bound says something on these instances. Otherwise the tests below would show nothing."""
    said = [Crossings.of(_instance(Random(seed))) is not None for seed in range(BLOCKS * BLOCK)]
    assert sum(said) > len(said) // 3


@pytest.mark.parametrize("block", range(BLOCKS))
def test_bound_is_never_above_the_optimum(block: int) -> None:
    """From every stage that limits, grown to the end or broken off, the bound is at most CP-SAT's optimum."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        instance = _instance(Random(seed))
        pipes = [pipe for stage in range(instance.stages) if (pipe := pipe_of(instance, stage)) is not None]
        if not pipes:
            continue
        best = proved_optimum(instance)
        for pipe in pipes:
            assert _least(pipe, instance.microbatches) <= best, f"seed {seed}, stage {pipe.first}"
            short = Crossings(instance, Front(pipe))
            short.front.grow(2, lambda: False)
            assert short.bound().value <= best, f"seed {seed}, stage {pipe.first}: two layers"


@pytest.mark.parametrize("block", range(4))
def test_layers_give_the_optimum_of_what_is_kept(block: int) -> None:
    """The first stage's least span equals CP-SAT's, which has these ops without microbatch order and layers."""
    compared = 0
    for seed in range(9000 + block * 10, 9000 + (block + 1) * 10):
        fields = _instance(Random(seed)).model_dump() | {"objective": "max_stage_span"}
        instance = Instance.model_validate(fields)
        pipe = pipe_of(instance, 0)
        if pipe is not None:
            assert _least(pipe, instance.microbatches) == _kept_optimum(pipe, instance.microbatches), f"seed {seed}"
            compared += 1
    assert compared >= 5


def _least(pipe: Pipe, microbatches: int) -> int:
    front = Front(pipe)
    assert front.grow(microbatches, lambda: False)
    return front.least(microbatches)


def _instance(random: Random) -> Instance:
    """Draw a linear pipeline with uneven times and caps near what one, two or three microbatches need."""
    stages = random.choice((2, 2, 3, 3, 4))

    def times(most: int) -> list[int]:
        return [random.randint(1, most) for _ in range(stages)]

    fields: dict[str, object] = {
        "stages": stages,
        "microbatches": random.choice((2, 3, 3, 4)),
        "forward_ticks": times(5),
        "backward_ticks": times(5),
        "weight_ticks": times(5),
        "comm_ticks": random.choice((0, 0, 1, 2, 5)),
        "weight_share": random.choice((1, 1, Fraction(1, 2), Fraction(1, 3), 0)),
        "activation": [random.choice((1, 1, 2)) for _ in range(stages)],
        "objective": random.choice(("makespan", "makespan", "max_stage_span")),
    }
    if random.random() < 0.2:
        fields |= {"barrier": random.choice(("global", "post_validation")), "optimizer_ticks": times(3)}
    if random.random() < 0.2:
        fields["gradient_state"] = [random.choice((0, Fraction(1, 2), 1)) for _ in range(stages)]
    free = Instance.model_validate(fields)
    sizes = [random.choice((1, 1, 2, 2, Fraction(5, 2), 3)) * amount for amount in free.activation]
    caps = [max(least_memory(free, stage), size) for stage, size in enumerate(sizes)]
    return Instance.model_validate(fields | {"memory_cap": caps})


def _kept_optimum(pipe: Pipe, microbatches: int) -> int:
    """Return the least end on the first stage, with F and B of all stages, and with W and memory of the first."""
    model, many, stages = cp_model.CpModel(), range(microbatches), range(len(pipe.forward))
    longest = microbatches * sum((*pipe.forward, *pipe.backward, *pipe.weight, *pipe.down, *pipe.up)) + 1

    def time() -> cp_model.IntVar:
        return model.new_int_var(0, longest, "")

    f, b = [[time() for _ in stages] for _ in many], [[time() for _ in stages] for _ in many]
    w = [time() for _ in many]
    for s in stages:
        ops = [(f[j][s], pipe.forward[s]) for j in many] + [(b[j][s], pipe.backward[s]) for j in many]
        if s == 0 and pipe.waiting:
            ops += [(w[j], pipe.weight[0]) for j in many]
        model.add_no_overlap(model.new_fixed_size_interval_var(start, ticks, "") for start, ticks in ops)
    for j in many:
        for s in stages[:-1]:
            model.add(f[j][s + 1] >= f[j][s] + pipe.forward[s] + pipe.down[s])
            model.add(b[j][s] >= b[j][s + 1] + pipe.backward[s + 1] + pipe.up[s])
        model.add(b[j][-1] >= f[j][-1] + pipe.forward[-1])
        model.add(w[j] >= b[j][0] + pipe.backward[0])
        _memory_fits(model, pipe, [(f[i][0], b[i][0], w[i]) for i in many if i != j], f[j][0])
    end = time()
    model.add_max_equality(end, [w[j] + pipe.weight[0] for j in many])
    model.minimize(end)
    search = solver()
    assert search.solve(model) == cp_model.OPTIMAL
    return round(search.objective_value) + pipe.after_weight


def _memory_fits(
    model: cp_model.CpModel,
    pipe: Pipe,
    others: list[tuple[cp_model.IntVar, cp_model.IntVar, cp_model.IntVar]],
    start: cp_model.IntVar,
) -> None:
    """Tell whether the memory that the others hold at ``start`` leaves room."""

    def by_then(time: cp_model.LinearExprT) -> cp_model.IntVar:
        literal = model.new_bool_var("")
        model.add(time <= start).only_enforce_if(literal)
        model.add(time >= start + 1).only_enforce_if(~literal)
        return literal

    held: list[cp_model.LinearExprT] = []
    for forward, backward, weight in others:
        begun, ended = by_then(forward), by_then(backward + pipe.backward[0])
        held += [pipe.each * begun, -pipe.each * ended]
        if pipe.waiting:
            held += [pipe.waiting * ended, -pipe.waiting * by_then(weight + pipe.weight[0])]
    model.add(cp_model.LinearExpr.sum(held) <= pipe.room)
