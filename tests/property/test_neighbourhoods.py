"""Neighbourhoods of random schedules: the schedule itself is one of theirs, and what they find is valid and as good."""

from __future__ import annotations

from random import Random

import pytest
from exact import any_instance
from random_instances import random_instance, random_schedule, with_memory
from random_time import timed_instance

from zbopt.cpsat.budget import Budget
from zbopt.cpsat.known_schedule import KnownSchedule
from zbopt.cpsat.neighbourhood import Neighbourhood, Neighbourhoods
from zbopt.cpsat.question import Answer, ask
from zbopt.cpsat.search import tightened
from zbopt.graph import expand
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Provenance
from zbopt.timing import schedule_of, starts_of
from zbopt.validator import validate


@pytest.mark.parametrize("block", range(4))
def test_neighbourhoods_hold_the_schedule_and_better_ones(block: int) -> None:
    """Three windows of each of 10 schedules a block: every sort of instance, and every sort of neighbourhood.

    Within the schedule's own value there is always an answer, since nothing has to move. Its times are the model's but
    where OUT or IN run beside the ops: there the order of all that takes memory may ask for more.
    """
    better = 0
    for seed in range(block * 10, block * 10 + 10):
        random = Random(seed)
        instance = _instance(random, seed)
        graph = expand(instance)
        value, starts = tightened(graph, starts_of(graph, random_schedule(random, instance)))
        drawn = Neighbourhoods(seed)
        for _ in range(3):
            drawn.sizes = dict.fromkeys(drawn.sizes, float(random.randint(2, len(starts) + 2)))
            _, window = drawn.draw(KnownSchedule(graph, starts))
            reply = ask(Neighbourhood(window, value, 0), Budget(600, 1, 0, deterministic=True), 20.0)
            assert reply.answer is Answer.OPTIMAL, f"seed {seed}"
            assert reply.starts is not None
            assert reply.bound <= value, f"seed {seed}"
            found, best = tightened(graph, window.starts(reply.starts))
            verdict = validate(instance, schedule_of(graph, best, Provenance(source="cp-sat")))
            assert verdict.violations == (), f"seed {seed}"
            assert found <= reply.bound or instance.offload is not None, f"seed {seed}"
            if found < value:
                better += 1
                value, starts = found, best
    assert better >= 3


def _instance(random: Random, seed: int) -> Instance:
    if seed % 3 == 0:
        return any_instance(random)
    if seed % 3 == 1:
        return timed_instance(random, most_ops=12)
    return with_memory(random, random_instance(random, most_stages=3, unlike=random.random() < 0.3))
