"""The adaptive V schedule's largest stage span (models/bounds.md, section 12): max(6m, 6m + 6p - 1 - 3k) ticks."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from zbopt.analysis.metrics import figures
from zbopt.bounds import lower_bound
from zbopt.graph import expand
from zbopt.heuristics import HEURISTICS
from zbopt.heuristics.tools.build import fitted_schedule
from zbopt.heuristics.tools.building_block import Block, packed_block
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Provenance, Schedule
from zbopt.timing import schedule_of, starts_of
from zbopt.timing.repeat import RepeatingRun, find_run, unrolled
from zbopt.validator import validate

WITNESSES = [
    Block((1.0, 0.0, 1.0, 0.0)),
    Block((0.0, 0.0, 0.0, 0.0), weight=1.0),
    Block((0.5, 0.0, 1.0, 0.0), period=1.25),
    Block((1.0, 0.0, 3.0, 0.0)),
    Block((2.0, 0.0, 2.0, 0.0)),
]


def problem(p: int, m: int, k: int) -> Instance:
    return Instance.uniform(
        stages=p, microbatches=m, placement="v", virtual=2, memory_cap=Fraction(k, 2), objective="max_stage_span"
    )


def span(p: int, m: int, k: int) -> int:
    return max(6 * m, 6 * m + 6 * p - 1 - 3 * k)


def even_caps(stages: tuple[int, ...], last: int) -> list[tuple[int, int]]:
    return [(p, k) for p in stages for k in range(2 * ((p + 4) // 3), 2 * p + last, 2)]


@pytest.mark.parametrize(("p", "k"), even_caps((4, 5, 6), 1))
def test_v_auto_meets_the_formula(p: int, k: int) -> None:
    """k even from 2((p + 4) // 3) to 2p, m = 2p; and nothing is below it."""
    instance = problem(p, 2 * p, k)
    schedule = HEURISTICS["v-auto"](instance)
    assert validate(instance, schedule).valid
    assert figures(schedule).max_stage_span == span(p, 2 * p, k) == lower_bound(instance).value


@pytest.mark.parametrize(("p", "k"), even_caps((4, 5, 6), -1) + even_caps((7, 8), -3))
def test_witness_of_any_length(p: int, k: int) -> None:
    """K even below 2p, or below 2p - 2: a schedule of 3p microbatches that meets the formula and repeats every 6 ticks.

    With t microbatches put into its middle it stays valid and takes 6t more; models/bounds.md says why that is enough.
    """
    short, run = next(_witnesses(p, 3 * p, k))
    graph = expand(short.instance)
    starts = starts_of(graph, short)
    assert max(_stays(short)) <= 12 * p
    for more in (1, p, 2 * p):
        long = problem(p, 3 * p + more, k)
        schedule = schedule_of(expand(long), unrolled(graph, starts, run, expand(long)), Provenance(source="test"))
        assert validate(long, schedule).valid
        assert figures(schedule).max_stage_span == span(p, 3 * p + more, k)


def _stays(schedule: Schedule) -> Iterator[int]:
    """Return the ticks from each microbatch's first start on a stage to its last end there."""
    for stage in range(schedule.instance.stages):
        for microbatch in range(schedule.instance.microbatches):
            own = [e for e in schedule.events if (e.stage, e.microbatch) == (stage, microbatch)]
            yield max(e.end for e in own) - min(e.start for e in own)


def _witnesses(p: int, m: int, k: int) -> Iterator[tuple[Schedule, RepeatingRun]]:
    instance = problem(p, m, k)
    graph = expand(instance)
    for block in WITNESSES:
        for rounds in range(4):
            packed = packed_block(graph, block, rounds)
            if packed is None:
                break
            schedule = fitted_schedule("block", instance, packed[0].orders(packed[1]))
            run = find_run(graph, starts_of(graph, schedule), 1)
            if figures(schedule).max_stage_span == span(p, m, k) and run is not None and run.period == 6:
                yield schedule, run
