"""From an order on each stage to a valid schedule, or the reason why there is none: the end of every family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from zbopt.analysis.metrics import figures
from zbopt.graph import Key, Precedence, TaskGraph, expand
from zbopt.graph.memory import ActivationPolicy, policies, with_drops, with_policies
from zbopt.problem.instance import Instance, Kind, Objective
from zbopt.problem.schedule import Provenance, Schedule, versions
from zbopt.timing import best_starts, orders_of_steps, running, schedule_of, within_cap
from zbopt.timing.iterations import all_iterations, one_iteration

OrderedOp = tuple[Kind, int, int]
"""One op of an order: kind, virtual stage, microbatch."""


class CannotFitError(ValueError):
    """Say that a schedule by its definition needs more memory than a stage's cap; ``above`` are all such stages."""

    def __init__(self, name: str, stage: int, peak: Fraction, cap: Fraction, above: Sequence[int] = ()) -> None:
        self.stage, self.peak, self.cap, self.above = stage, peak, cap, tuple(above) or (stage,)
        super().__init__(
            f"{name}: stage {stage} holds {peak} at its peak, above its memory cap {cap}; "
            f"raise the cap to {peak} or take another schedule"
        )


class NotApplicableError(ValueError):
    """Say that a schedule is not defined for this instance; the message says which rule it breaks."""


def require_one_virtual_stage_a_stage(name: str, instance: Instance) -> None:
    """Raise ``NotApplicableError`` where a stage holds several virtual stages, or there are several routes."""
    require_one_route(name, instance)
    if instance.virtual_stages != instance.stages:
        raise NotApplicableError(
            f"{name}: {instance.virtual_stages} virtual stages on {instance.stages} stages; "
            "it needs one virtual stage a stage, take interleaved or list"
        )


def is_plain(instance: Instance) -> bool:
    """Return whether a step has only ops to place, each alone, and keeps each activation until its backward."""
    alike = instance.microbatch_times is None and instance.overlapped_ticks is None
    only_ops = instance.is_simple and instance.reduction_ticks is None
    return alike and only_ops and keeps_activations(instance)


def keeps_activations(instance: Instance) -> bool:
    """Return whether no activation is or may be dropped before its backward."""
    return all(policies(instance, v) == (ActivationPolicy.KEEP,) for v in range(instance.virtual_stages))


def require_plain_step(name: str, instance: Instance) -> None:
    """Raise ``NotApplicableError`` where more has to be placed than the ops of one step on one route.

    That is where microbatches differ, transfers or reductions occupy links, or activations may be dropped.
    """
    require_one_route(name, instance)
    if instance.microbatch_times is not None:
        raise NotApplicableError(f"{name}: microbatches take times of their own; it needs them alike, take list")
    if not instance.is_simple or instance.reduction_ticks is not None:
        raise NotApplicableError(
            f"{name}: transfers or reductions occupy links, inputs come late or there are several iterations; "
            "it packs one step's ops alone, take list"
        )
    if not keeps_activations(instance):
        raise NotApplicableError(
            f"{name}: it keeps activations until their backward, and recompute or offload is not never; take list"
        )


def require_one_route(name: str, instance: Instance) -> None:
    """Raise ``NotApplicableError`` where microbatches pass different virtual stages."""
    if instance.routes is not None:
        raise NotApplicableError(
            f"{name}: microbatches take {len(instance.routes)} routes; it needs one, take chimera, dualpipe or list"
        )


def require_split(name: str, instance: Instance) -> None:
    """Raise ``NotApplicableError`` where no backward may run as B and W."""
    if not instance.may_split:
        raise NotApplicableError(
            f"{name}: the backward is never split; give backward_ticks and weight_ticks, or take 1f1b"
        )


def whole_backward(instance: Instance, virtual_stage: int, microbatch: int) -> list[OrderedOp]:
    """Return the whole backward of a microbatch: BW where the instance has one, else B and W back to back."""
    if instance.ticks_of(virtual_stage, microbatch).fused is not None:
        return [(Kind.BW, virtual_stage, microbatch)]
    return split_backward(instance, virtual_stage, microbatch)


def split_backward(instance: Instance, virtual_stage: int, microbatch: int) -> list[OrderedOp]:
    """Return B and W of a microbatch back to back."""
    return [*_input_gradient(instance, virtual_stage, microbatch), (Kind.W, virtual_stage, microbatch)]


def _input_gradient(instance: Instance, virtual_stage: int, microbatch: int) -> list[OrderedOp]:
    """Return the B of a microbatch; nothing where the virtual stage has none."""
    ticks = instance.ticks_of(virtual_stage, microbatch)
    has_none = ticks.weight is not None and ticks.backward is None
    return [] if has_none else [(Kind.B, virtual_stage, microbatch)]


def fitted_schedule(
    name: str, instance: Instance, orders: Sequence[Iterable[OrderedOp]], *, gradient_after_weight: bool = False
) -> Schedule:
    """Return the schedule that runs ``orders`` at the best times for the instance's objective, each stage's O last.

    Args:
        name: The heuristic's name, for provenance and errors.
        instance: The problem. Activations that have to be dropped are dropped. Where the schedule may choose, all those
            of a stage are dropped that would be above its cap. Each R comes just before its backward.
        orders: For each stage, its ops in the order in which they run.
        gradient_after_weight: Let a W hold back the gradient that its B sends up, as a fused backward would.

    Raises:
        CannotFitError: The order needs more memory than a stage's cap.
        DeadlockError: The orders contradict the precedences.
    """
    if instance.objective is Objective.PERIOD:
        one = fitted_schedule(name, one_iteration(instance), orders, gradient_after_weight=gradient_after_weight)
        return with_value(name, all_iterations(one, instance))
    ops = [list(order) for order in orders]
    policy_of = {v: policies(instance, v)[0] for v in range(instance.virtual_stages)}
    while True:
        try:
            return _in_order(name, instance, ops, policy_of, gradient_after_weight=gradient_after_weight)
        except CannotFitError as fault:
            further = dict(policy for stage in fault.above for policy in _further(instance, stage, policy_of))
            if not further:
                raise
            policy_of |= further


def _further(
    instance: Instance, stage: int, policy_of: Mapping[int, ActivationPolicy]
) -> Iterator[tuple[int, ActivationPolicy]]:
    """Yield the next activation policy of each virtual stage of ``stage`` that has one left."""
    for v in instance.virtual_stages_of(stage):
        allowed = policies(instance, v)
        place = allowed.index(policy_of[v]) + 1
        if place < len(allowed):
            yield v, allowed[place]


def _in_order(
    name: str,
    instance: Instance,
    orders: Sequence[Sequence[OrderedOp]],
    policy_of: Mapping[int, ActivationPolicy],
    *,
    gradient_after_weight: bool,
) -> Schedule:
    """Return the schedule that runs ``orders`` under one activation policy for each virtual stage."""
    graph = expand(with_policies(instance, policy_of))
    tasks = orders_of_steps(graph, [with_drops(instance, order, policy_of) for order in orders])
    timed = within_cap(graph, tasks, set(running(graph, tasks)))
    timed = _with_held_gradients(timed) if gradient_after_weight else timed
    schedule = schedule_of(graph, best_starts(timed, tasks), provenance_of(name))
    return with_value(name, schedule.model_copy(update={"instance": instance}))


def provenance_of(name: str) -> Provenance:
    """Return the provenance of a heuristic's schedule whose value is not computed yet."""
    return Provenance(source=f"heuristic:{name}", versions=versions())


def with_value(name: str, schedule: Schedule) -> Schedule:
    """Return ``schedule`` with its value in the provenance.

    Raises:
        CannotFitError: It needs more memory than a stage's cap.
    """
    instance = schedule.instance
    found = figures(schedule)
    caps = instance.memory_cap or ()
    above = [stage for stage, cap in enumerate(caps) if found.peak_memory[stage] > cap]
    if above:
        raise CannotFitError(name, above[0], found.peak_memory[above[0]], caps[above[0]], above)
    value = found.value(instance.objective)
    return schedule.model_copy(update={"provenance": schedule.provenance.model_copy(update={"value": value})})


def _with_held_gradients(graph: TaskGraph) -> TaskGraph:
    """Return ``graph`` with an arc from each W to the op that its B feeds upstream."""
    held = []
    for edge in graph.precedences:
        giver, taker = graph.tasks[edge.before], graph.tasks[edge.after]
        upstream = taker.kind is Kind.SEND_B or giver.virtual_stage != taker.virtual_stage
        if giver.kind is Kind.B and upstream:
            weight = graph.index[Key(Kind.W, giver.virtual_stage, giver.microbatch, giver.iteration)]
            held.append(Precedence(weight, edge.after, edge.lag_ticks))
    return replace(graph, precedences=graph.precedences + tuple(held))
