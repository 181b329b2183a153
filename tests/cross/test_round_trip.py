"""Export, then import: the same order, on every instance of every set, for each format that goes both ways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from zbopt.formats.chrome_trace import from_chrome_trace, to_chrome_trace
from zbopt.formats.jaxpp import from_jaxpp, to_jaxpp
from zbopt.formats.megatron_layout import read_layout, spread, write_layout
from zbopt.formats.order import order_of_schedule
from zbopt.formats.sail_zb import from_sail_zb, to_sail_zb
from zbopt.formats.torch_csv import compute_only, order_from_csv, rows_text
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.instance import Instance, read_instance
from zbopt.metrics import figures, memory_curve
from zbopt.portfolio import infeasible, solve
from zbopt.replay.lowering import lower
from zbopt.schedule import Provenance, Schedule
from zbopt.timing import schedule_in_order

INSTANCES = Path(__file__).parents[2] / "instances"
SETS = sorted(p.name for p in INSTANCES.iterdir() if p.is_dir())
MOST_FORWARDS = 200
"""Larger instances repeat: of these, their first microbatches."""


def _instances(name: str) -> Iterator[Instance]:
    """Every instance of a set, the large ones with fewer microbatches; equal ones once."""
    seen = set()
    for path in sorted((INSTANCES / name).glob("*.json")):
        if path.name.endswith(".events.json"):
            continue
        instance = read_instance(path)
        most = max(3, MOST_FORWARDS // instance.virtual_stages)
        cut = instance.model_copy(update={"microbatches": min(instance.microbatches, most)})
        if infeasible(cut) is None and (key := cut.model_copy(update={"name": None})) not in seen:
            seen.add(key)
            yield cut


def _schedules(name: str) -> Iterator[Schedule]:
    """What the heuristics make of each instance, with the cap where they plan for it, and the optimum of small ones."""
    for instance in _instances(name):
        free = instance.model_copy(update={"memory_cap": None})
        for heuristic, problem in (("1f1b", free), ("zb-h1", free), ("interleaved", free), ("list", instance)):
            try:
                yield HEURISTICS[heuristic](problem)
            except (CannotFitError, NotApplicableError):
                continue
        if instance.virtual_stages * instance.microbatches <= 32:
            solved = solve(instance, time_limit_s=1, workers=1).schedule
            if solved is not None:
                yield solved


@pytest.mark.parametrize("name", SETS)
def test_export_then_import_gives_the_same_order(name: str) -> None:
    """Each two-way format on each instance set; JaxPP and sail where they do not refuse the schedule.

    At the earliest starts of its order a schedule ends no later than it did.
    """
    runs = dict.fromkeys(("torch-csv", "jaxpp", "sail-zb"), 0)
    for schedule in _schedules(name):
        order, instance = order_of_schedule(schedule), schedule.instance
        rows = lower(schedule)
        assert order_from_csv(rows_text(compute_only(rows)), instance) == order
        assert order_from_csv(rows_text(rows), instance) == order
        runs["torch-csv"] += 1
        for form, write, read in (("jaxpp", to_jaxpp, from_jaxpp), ("sail-zb", to_sail_zb, from_sail_zb)):
            try:
                text = write(schedule)
            except ValueError:
                continue
            assert read(json.loads(text), instance) == order
            runs[form] += 1
        curves = [memory_curve(instance, row) for row in schedule.by_stage()]
        assert from_chrome_trace(json.loads(to_chrome_trace(schedule, curves)), "trace") == schedule
        again = schedule_in_order(instance, order.rows, Provenance(source="test"))
        assert figures(again).value(instance.objective) <= figures(schedule).value(instance.objective)
    assert all(runs.values()), runs


@pytest.mark.parametrize("name", SETS)
def test_layouts_come_back(name: str) -> None:
    """Uneven layers, on every placement that goes round the stages."""
    tried = 0
    for instance in _instances(name):
        stages, n = instance.stages, instance.virtual_stages
        if instance.stage_of != tuple(range(stages)) * (n // stages):
            continue
        layers = spread([2 + v % 3 for v in range(n)], instance.stage_of)
        assert read_layout(write_layout(layers), stages) == layers
        tried += 1
    assert tried
