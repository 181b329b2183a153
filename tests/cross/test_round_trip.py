"""Export, then import: the same order, on every instance of the plain sets, for each format that goes both ways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from zbopt.analysis.metrics import figures, memory_curve
from zbopt.formats.chrome_trace import from_chrome_trace, to_chrome_trace
from zbopt.formats.jaxpp import from_jaxpp, to_jaxpp
from zbopt.formats.megatron_layout import read_layout, spread, write_layout
from zbopt.formats.order import OrderedOp, order_of_schedule
from zbopt.formats.sail_zb import from_sail_zb, to_sail_zb
from zbopt.formats.torch_csv import compute_only, order_from_csv, rows_text
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.heuristics.tools.patience import limited
from zbopt.portfolio.result import infeasible
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Instance, Kind, read_instance
from zbopt.problem.schedule import Provenance, Schedule
from zbopt.replay.lowering import lower
from zbopt.timing import schedule_of_orders

INSTANCES = Path(__file__).parents[2] / "instances"
SETS = ("audit", "unit", "zb-iclr2024")
"""Sets whose schedules every format can express."""
FEW_FORWARDS = 80
"""Up to so many, the heuristics and the solver are quick. Larger instances are cut to their first microbatches."""


def _read(name: str) -> Iterator[Instance]:
    """Read every instance of a set, and leave out its name."""
    for path in sorted((INSTANCES / name).glob("*.json")):
        if not path.name.endswith(".events.json"):
            yield read_instance(path).model_copy(update={"name": None})


def _short(name: str) -> list[Instance]:
    """Return every instance of a set, the large ones with fewer microbatches, equal ones once."""
    found: dict[Instance, None] = {}
    for instance in _read(name):
        most = max(3, FEW_FORWARDS // instance.virtual_stages)
        cut = instance.model_copy(update={"microbatches": min(instance.microbatches, most)})
        if infeasible(cut) is None:
            found[cut] = None
    return list(found)


def _whole(name: str) -> list[Instance]:
    """Return every instance of a set with all its microbatches, once for all its caps."""
    return list(dict.fromkeys(instance.model_copy(update={"memory_cap": None}) for instance in _read(name)))


def _longest(name: str) -> list[Instance]:
    """Return the step with the most microbatches by placement and stages: other times change no file's shape."""
    most: dict[tuple[int, ...], Instance] = {}
    for instance in _whole(name):
        known = most.get(instance.stage_of)
        if known is None or instance.microbatches > known.microbatches:
            most[instance.stage_of] = instance
    return list(most.values())


def _made(heuristic: str, instance: Instance) -> Schedule | None:
    """Return the schedule that a heuristic makes of an instance at once. Any schedule will do here."""
    with limited(lambda: True):
        try:
            return HEURISTICS[heuristic](instance)
        except (CannotFitError, NotApplicableError):
            return None


def _schedules(name: str) -> Iterator[Schedule]:
    """Yield each heuristic's schedule of each instance (with the cap if it plans for one), and small ones' optima."""
    for instance in _short(name):
        free = instance.model_copy(update={"memory_cap": None})
        tried = (("1f1b", free), ("zb-h1", free), ("interleaved", free), ("list", instance))
        yield from filter(None, (_made(heuristic, problem) for heuristic, problem in tried))
        if instance.virtual_stages * instance.microbatches <= 32:
            solved = solve(instance, time_limit_s=1, workers=1).schedule
            if solved is not None:
                yield solved


def _wave(instance: Instance) -> Schedule:
    """Build a wave: each microbatch there and back, three turns after the one before, on any placement, without a cap.

    F of virtual stage v in turn v, B in turn 2n - 1 - v, W right after it: every op comes after its input.
    """
    n = instance.virtual_stages
    turns = sorted(
        (3 * j + turn, rank, v, kind, j)
        for j in range(instance.microbatches)
        for v in range(n)
        for rank, kind, turn in ((0, Kind.F, v), (1, Kind.B, 2 * n - 1 - v), (2, Kind.W, 2 * n - 1 - v))
    )
    rows: list[list[OrderedOp]] = [[] for _ in range(instance.stages)]
    for _, _, v, kind, j in turns:
        rows[instance.stage_of[v]].append((kind, v, j))
    return schedule_of_orders(instance, rows, Provenance(source="test"))


def _back(schedule: Schedule) -> Iterator[str]:
    """Yield each two-way format that takes ``schedule``, after the schedule came back with the same order."""
    order, instance = order_of_schedule(schedule), schedule.instance
    rows = lower(schedule)
    assert order_from_csv(rows_text(compute_only(rows)), instance) == order
    assert order_from_csv(rows_text(rows), instance) == order
    yield "torch-csv"
    for form, write, read in (("jaxpp", to_jaxpp, from_jaxpp), ("sail-zb", to_sail_zb, from_sail_zb)):
        try:
            text = write(schedule)
        except ValueError:
            continue
        assert read(json.loads(text), instance) == order
        yield form
    curves = [memory_curve(instance, row) for row in schedule.by_stage()]
    assert from_chrome_trace(json.loads(to_chrome_trace(schedule, curves)), "trace") == schedule
    yield "chrome-trace"


FORMS = {"torch-csv", "jaxpp", "sail-zb", "chrome-trace"}


@pytest.mark.parametrize("name", SETS)
def test_export_then_import_gives_the_same_order(name: str) -> None:
    """Each two-way format on each instance set; JaxPP and sail where they do not refuse the schedule.

    At the earliest starts of its order a schedule ends no later than it did.
    """
    taken = set()
    for schedule in _schedules(name):
        instance = schedule.instance
        taken |= set(_back(schedule))
        again = schedule_of_orders(instance, order_of_schedule(schedule).rows, Provenance(source="test"))
        assert figures(again).value(instance.objective) <= figures(schedule).value(instance.objective)
    assert taken == FORMS


@pytest.mark.parametrize("name", SETS)
def test_whole_steps_come_back(name: str) -> None:
    """Every microbatch of the longest steps, up to 49,152 events, comes back. Caps do not matter to a format."""
    taken = set()
    for instance in _longest(name):
        schedule = HEURISTICS["zb-h1"](instance) if instance.virtual_stages == instance.stages else _wave(instance)
        assert len(schedule.events) == 3 * instance.virtual_stages * instance.microbatches
        taken |= set(_back(schedule))
    assert taken == FORMS


@pytest.mark.parametrize("name", SETS)
def test_layouts_come_back(name: str) -> None:
    """Uneven layers come back, on every placement that goes round the stages."""
    tried = 0
    for instance in _whole(name):
        stages, n = instance.stages, instance.virtual_stages
        if instance.stage_of != tuple(range(stages)) * (n // stages):
            continue
        layers = spread([2 + v % 3 for v in range(n)], instance.stage_of)
        assert read_layout(write_layout(layers), stages) == layers
        tried += 1
    assert tried
