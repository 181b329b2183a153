"""A list schedule for every placement, every cap that holds one microbatch, and every choice of backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from zbopt.heuristics.tools.best_rule import best_of
from zbopt.heuristics.tools.build import (
    CannotFitError,
    OrderedOp,
    fitted_schedule,
    keeps_activations,
    provenance_of,
    whole_backward,
    with_value,
)
from zbopt.heuristics.tools.dispatch import Dispatched
from zbopt.heuristics.tools.patience import is_over, limited, never
from zbopt.heuristics.tools.rule import Rule
from zbopt.heuristics.zb_auto import warm_ups
from zbopt.problem.instance import Instance, Kind, Objective
from zbopt.problem.schedule import Event, Schedule

_MOST_OPS = 300_000
"""Ops to simulate over all rules, and once more over all surprises: a few seconds in all. Not measured in bench/."""


def list_schedule(instance: Instance) -> Schedule:
    """Return the best schedule of a few dispatching rules, or of the best of these with seeded surprises.

    Where no rule can be sure to finish under the cap, microbatches run one after another.

    Raises:
        CannotFitError: A stage's cap is below what one microbatch needs; no schedule fits then.
    """
    return fitted_schedule("list", instance, list_orders("list", instance))


def first_schedule(instance: Instance) -> Schedule | None:
    """Return a schedule at once: the first rule as simulated, without a task graph, which takes several times as long.

    No limit stops it. ``None``: the instance has more than a simulation knows of, which is transfers that are events,
    several iterations, optimizer steps, reductions or dropped activations; or no rule is sure to finish.
    """
    plain = instance.is_simple and instance.optimizer_ticks is None and instance.reduction_ticks is None
    if not plain or not keeps_activations(instance) or instance.objective is Objective.PERIOD:
        return None
    try:
        with limited(never):
            _, found = best_of("list", instance, _rules(instance)[:1], 0)
        events = tuple(_events(found))
        return with_value("list", Schedule(instance=instance, provenance=provenance_of("list"), events=events))
    except CannotFitError:
        return None


def _events(found: Dispatched) -> Iterator[Event]:
    """Yield all ops as simulated."""
    for stage, (order, times) in enumerate(zip(found.orders, found.times, strict=True)):
        for (kind, v, microbatch), (start, end) in zip(order, times, strict=True):
            yield Event(kind=kind, stage=stage, virtual_stage=v, microbatch=microbatch, start=start, end=end)


def list_orders(name: str, instance: Instance, most_ops: int = _MOST_OPS) -> list[list[OrderedOp]]:
    """Return the orders of a list schedule, for the heuristic ``name``, after ``most_ops`` simulated ops or two rules.

    Raises:
        CannotFitError: A stage's cap is below what one microbatch needs; no schedule fits then.
    """
    try:
        rule, best = best_of(name, instance, _rules(instance), most_ops)
    except CannotFitError:
        return _one_by_one(instance)
    if is_over():
        return best.orders
    surprised = [replace(rule, surprise=share, seed=seed) for seed in range(64) for share in (0.02, 0.1)]
    _, other = best_of(name, instance, surprised, most_ops)
    return min(best, other, key=lambda found: found.value).orders


def _one_by_one(instance: Instance) -> list[list[OrderedOp]]:
    """Return orders that finish each microbatch before the next one begins: they fit if anything does."""
    orders: list[list[OrderedOp]] = [[] for _ in range(instance.stages)]
    for microbatch in range(instance.microbatches):
        route = [v for v in range(instance.virtual_stages) if microbatch in instance.microbatches_of(v)]
        for v in route:
            orders[instance.stage_of[v]].append((Kind.F, v, microbatch))
        for v in reversed(route):
            orders[instance.stage_of[v]] += whole_backward(instance, v, microbatch)
    return orders


def _rules(instance: Instance) -> list[Rule]:
    """Return the rules to try, the most useful first, since large instances try only some."""
    groups = [1] if instance.virtual_stages == instance.stages else [instance.stages, 1]
    fuses = [False, True] if instance.may_split and instance.may_fuse else [False]
    linear = instance.virtual_stages == instance.stages and instance.routes is None
    limits = warm_ups(instance) if linear else [None, *warm_ups(instance)]
    sequences = [0] if instance.microbatch_times is None else [0, 1, 2]
    fills = ((0.0, False), (1.0, True))
    options = product(fills, sequences, fuses, (True, False), dict.fromkeys(limits), groups)
    return [
        Rule(in_flight, alternate, least_fill=fill, share_idle=shares, fuse=fuse, group=group, sequence=sequence)
        for (fill, shares), sequence, fuse, alternate, in_flight, group in options
    ]
