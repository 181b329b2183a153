"""Iterations that repeat: the period of a step is the least largest stage span of one (models/formulation.md, [T6])."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from zbopt.graph import TaskGraph, expand
from zbopt.problem.instance import Instance, Kind, Objective
from zbopt.problem.schedule import Schedule
from zbopt.timing import starts_of


def one_iteration(instance: Instance) -> Instance:
    """Return the problem of the first iteration alone, under the objective that decides the period."""
    ready = instance.input_ready_ticks
    fields: dict[str, object] = {"iterations": 1, "objective": Objective.MAX_STAGE_SPAN}
    fields["input_ready_ticks"] = None if ready is None else ready[: instance.microbatches]
    return instance.model_copy(update=fields)


def first_iteration(schedule: Schedule) -> Schedule:
    """Return the events of the first iteration, as a schedule of ``one_iteration``."""
    events = tuple(event for event in schedule.events if event.iteration == 0)
    return Schedule(instance=one_iteration(schedule.instance), provenance=schedule.provenance, events=events)


def all_iterations(one: Schedule, instance: Instance) -> Schedule:
    """Return a schedule whose iterations are translates of ``one``, by the least period that keeps them apart.

    Args:
        one: A valid schedule of ``one_iteration(instance)``.
        instance: The problem with all its iterations.
    """
    graph = expand(one.instance)
    starts = starts_of(graph, one)
    period = _period(graph, starts, instance)
    events = tuple(
        replace(e, iteration=k, start=e.start + k * period, end=e.end + k * period)
        for k in range(instance.iterations)
        for e in one.events
    )
    return Schedule(instance=instance, provenance=one.provenance, events=events)


def _period(graph: TaskGraph, starts: Mapping[int, int], instance: Instance) -> int:
    """Return the least ticks between translates that wait for each other on stages, channels, links and inputs."""
    period = max(_least_periods(graph, starts, instance))
    while (later := _apart(graph, starts, period, instance.iterations)) > period:
        period = later
    return period


def _least_periods(graph: TaskGraph, starts: Mapping[int, int], instance: Instance) -> Iterator[int]:
    """Yield the least period by each stage, each channel, and each input that comes late, in ticks."""
    ends = {i: start + graph.tasks[i].duration_ticks for i, start in starts.items()}
    for ops in graph.resources:
        runs = [i for i in ops if i in starts]
        yield max(ends[i] for i in runs) - min(starts[i] for i in runs)
    for channel in graph.channels:
        yield max(ends[s.send] for s in channel.sent) - min(starts[s.send] for s in channel.sent)
    for i, start in starts.items():
        this = graph.tasks[i]
        if instance.input_ready_ticks is None or this.kind is not Kind.F:
            continue
        assert this.virtual_stage is not None
        assert this.microbatch is not None
        if instance.previous_of(this.virtual_stage) is None:
            for k in range(1, instance.iterations):
                ready = instance.input_ready_ticks[k * instance.microbatches + this.microbatch]
                yield -((start - ready) // k)


def _apart(graph: TaskGraph, starts: Mapping[int, int], period: int, iterations: int) -> int:
    """Return ``period``, or the least longer one that parts the first two uses of a link that overlap."""
    for link in graph.links:
        uses = [(starts[u.task] + u.offset_ticks, u.ticks) for u in link.uses if u.task in starts]
        for (first, ticks), (second, others), k in product(uses, uses, range(1, iterations)):
            later = second + k * period
            if first < later + others and later < first + ticks:
                return -((second - first - ticks) // k)
    return period
