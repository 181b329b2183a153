"""Long steps from short ones: a short step whose middle repeats becomes a step of any length.

models/formulation.md, [D6]. A run of microbatches repeats where every op is a translate, by one period, of the same op
``stride`` microbatches before. Putting further strides into the run keeps every precedence, and every exclusion between
microbatches that were on a stage together. Whether other microbatches stay apart is for the validator to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, groupby
from operator import attrgetter

from zbopt.graph import Key, TaskGraph
from zbopt.graph.memory import least_left, static_memory, with_microbatches
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event, Schedule

_STRIDES = 12
"""A short step leaves out a multiple of this where memory asks for nothing else: strides of 1, 2, 3, 4 and 6 fit.

A larger multiple admits more strides and makes the short step longer. Not measured; chosen.
"""

_ROUND_TRIPS = 4
"""The fewest microbatches of a short step, counted in those that are in flight at once.

Fewer leave a middle that is too short to show that it repeats. Not measured; chosen.
"""


@dataclass(frozen=True, slots=True)
class RepeatingRun:
    """Represent microbatches ``first`` to ``last`` that repeat every ``stride`` microbatches and ``period`` ticks."""

    first: int
    last: int
    stride: int
    period: int


def in_flight(instance: Instance) -> int:
    """Return how many microbatches a stage holds at once at most: what memory allows, up to two round trips."""
    most = 2 * instance.virtual_stages
    if instance.memory_cap is None:
        return most
    room = []
    for stage, cap in enumerate(instance.memory_cap):
        size = sum((least_left(instance, v) for v in instance.virtual_stages_of(stage)), Fraction(0))
        room.append(int((cap - static_memory(instance, stage)) / size) if size else most)
    return max(1, min(most, *room))


def shortened(instance: Instance) -> Instance | None:
    """Return the problem with as few microbatches as show a repeating middle; ``None`` where that saves nothing.

    It is ``None`` too where microbatches differ, or where the ends of steps lie between microbatches, since nothing
    repeats then. Transfers that are events repeat like ops.
    """
    alone = instance.iterations == 1 and instance.input_ready_ticks is None
    if not (alone and instance.alike) or instance.overlapped_ticks is not None:
        return None
    most = in_flight(instance)
    modulus = most if most < instance.virtual_stages else _STRIDES
    least = _ROUND_TRIPS * most + 2 * modulus
    left_out = (instance.microbatches - least) // modulus * modulus
    if left_out <= least:
        return None
    return with_microbatches(instance, instance.microbatches - left_out)


def find_run(graph: TaskGraph, starts: Mapping[int, int], multiple: int) -> RepeatingRun | None:
    """Return the longest run of ``starts`` whose stride divides ``multiple``; ``None`` where nothing repeats."""
    columns = _columns(graph, starts)
    if columns is None:
        return None
    runs = [run for stride in _divisors(multiple, len(columns) // 3) if (run := _longest(columns, stride)) is not None]
    return max(runs, key=lambda run: (run.last - run.first, -run.stride), default=None)


def unrolled(short: TaskGraph, starts: Mapping[int, int], run: RepeatingRun, long: TaskGraph) -> dict[int, int]:
    """Return starts of the long step: the short one with as many strides put into its run as it lacks.

    Args:
        short: Task graph of the short step.
        starts: Start of each of its tasks that runs, in ticks.
        run: Where it repeats. Its stride divides the difference of the microbatches.
        long: Task graph of the long step.
    """
    missing = (long.instance.microbatches - short.instance.microbatches) // run.stride
    longer: dict[int, int] = {}
    for (kind, where, microbatch, _), task in long.index.items():
        if microbatch is None:
            source, strides = short.index[Key(kind, where, None)], missing
        else:
            strides = min(missing, max(0, -(-(microbatch - run.last) // run.stride)))
            source = short.index[Key(kind, where, microbatch - strides * run.stride)]
        if source in starts:
            longer[task] = starts[source] + strides * run.period
    return longer


def lengthened(short: Schedule, run: RepeatingRun, instance: Instance) -> Schedule:
    """Return the schedule of the long step ``instance``, as ``unrolled``, without a task graph of all its microbatches.

    Args:
        short: A schedule of the short step.
        run: Where it repeats; every virtual stage runs the same kinds of ops on every microbatch.
        instance: The long step.
    """
    missing = (instance.microbatches - short.instance.microbatches) // run.stride
    strides = [min(missing, max(0, -((run.last - j) // run.stride))) for j in range(instance.microbatches)]
    source = [(j - n * run.stride, n * run.period) for j, n in enumerate(strides)]
    ops: dict[tuple[Kind, int], dict[int, Event]] = {}
    for event in short.events:
        if event.microbatch is not None and event.virtual_stage is not None:
            ops.setdefault((event.kind, event.virtual_stage), {})[event.microbatch] = event
    by_stage: list[list[Event]] = [[] for _ in range(instance.stages)]
    for (kind, virtual_stage), events in ops.items():
        first = events[0]
        times = [events[j].start for j in range(short.instance.microbatches)]
        starts = [times[j] + later for j, later in source]
        ticks, stage = first.end - first.start, first.stage
        by_stage[stage] += [
            Event(kind, stage, virtual_stage, j, start, start + ticks) for j, start in enumerate(starts)
        ]
    for event in short.events:
        if event.microbatch is None:
            later = missing * run.period
            by_stage[event.stage].append(replace(event, start=event.start + later, end=event.end + later))
    for of_stage in by_stage:
        of_stage.sort(key=attrgetter("start", "end"))
    return Schedule(instance=instance, provenance=short.provenance, events=tuple(chain.from_iterable(by_stage)))


def _columns(graph: TaskGraph, starts: Mapping[int, int]) -> list[tuple[int, ...]] | None:
    """Return for each microbatch the starts of its ops; ``None`` where microbatches differ in the ops that they run."""
    ops = sorted({(kind.value, where) for kind, where, microbatch, _ in graph.index if microbatch is not None})
    starts_of_op = []
    for kind, where in ops:
        tasks = [graph.index[Key(Kind(kind), where, j)] for j in range(graph.instance.microbatches)]
        running = [task in starts for task in tasks]
        if all(running):
            starts_of_op.append([starts[task] for task in tasks])
        elif any(running):
            return None
    return list(zip(*starts_of_op, strict=True))


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, most + 1) if number % d == 0]


def _longest(columns: Sequence[tuple[int, ...]], stride: int) -> RepeatingRun | None:
    """Return the longest run of microbatches whose ops are all translates of those a stride before, by one period."""
    periods = [_period(*pair) for pair in zip(columns, columns[stride:], strict=False)]
    best: RepeatingRun | None = None
    first = 0
    for period, group in groupby(periods):
        length = len(list(group))
        last = first + length - 1 + stride
        if period is not None and period > 0 and length >= stride:
            run = RepeatingRun(first, last, stride, period)
            if best is None or run.last - run.first > best.last - best.first:
                best = run
        first += length
    return best


def _period(starts: tuple[int, ...], later: tuple[int, ...]) -> int | None:
    """Return by how many ticks all of ``later`` are after ``starts``; ``None`` where they differ in that."""
    period = later[0] - starts[0]
    return period if all(b - a == period for a, b in zip(starts, later, strict=True)) else None
