"""Memory of one microbatch on a stage, and of the stage itself: the tensors behind the memory rule.

models/formulation.md, [C4]. The task graph, the heuristics and the ledger read memory here; the validator does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from math import lcm

from zbopt.problem.facts import Unit, fields_in
from zbopt.problem.instance import Drop, Instance, Kind

NOTHING = Fraction(0)


class ActivationPolicy(StrEnum):
    """Name what becomes of an activation between its F and its backward."""

    KEEP = "keep"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


class Tensor(StrEnum):
    """Name what an allocation holds."""

    ACTIVATION = "activation"
    INPUT = "boundary input"
    OUTPUT = "boundary output"
    GRADIENT_STATE = "gradient state"
    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    WORKSPACE = "workspace"
    RESERVE = "reserve"
    RECEIVE_BUFFERS = "receive buffers"


@dataclass(frozen=True, slots=True)
class Allocation:
    """Hold ``amount`` of a tensor for one microbatch, from the start of its op ``first`` to the end of ``last``."""

    tensor: Tensor
    amount: Fraction
    first: Kind
    last: Kind


POLICY_OF = {Kind.R: ActivationPolicy.RECOMPUTE, Kind.OUT: ActivationPolicy.OFFLOAD, Kind.IN: ActivationPolicy.OFFLOAD}
"""The policy that needs an op."""
_DROPS = {ActivationPolicy.RECOMPUTE: (Kind.F, Kind.R), ActivationPolicy.OFFLOAD: (Kind.OUT, Kind.IN)}
"""For each policy that drops an activation, the op at whose end it is freed, and the one that brings it back."""


def policies(instance: Instance, virtual_stage: int) -> tuple[ActivationPolicy, ...]:
    """Return the policies that an activation of ``virtual_stage`` may have; keeping it first, where it may be kept."""
    modes = {
        policy: Drop.NEVER if given is None else given[virtual_stage]
        for policy, given in (
            (ActivationPolicy.RECOMPUTE, instance.recompute),
            (ActivationPolicy.OFFLOAD, instance.offload),
        )
    }
    always = [policy for policy, mode in modes.items() if mode is Drop.ALWAYS]
    chosen = (policy for policy, mode in modes.items() if mode is Drop.CHOOSE)
    return tuple(always) or (ActivationPolicy.KEEP, *chosen)


def chooses(instance: Instance) -> bool:
    """Return whether the schedule chooses the policy of some activation."""
    return any(mode is Drop.CHOOSE for modes in (instance.recompute, instance.offload) for mode in modes or ())


def resident(instance: Instance, virtual_stage: int, policy: ActivationPolicy) -> Fraction:
    """Return how much of an activation stays on its stage while it is dropped; all of it where it is kept."""
    if policy is ActivationPolicy.KEEP:
        return instance.activation[virtual_stage]
    return _amount_at(
        instance.checkpoint if policy is ActivationPolicy.RECOMPUTE else instance.offload_rest, virtual_stage
    )


def allocations(
    instance: Instance, virtual_stage: int, policy: ActivationPolicy, *, fused: bool
) -> tuple[Allocation, ...]:
    """Return all that one microbatch allocates on ``virtual_stage``; allocations of nothing are left out.

    Args:
        instance: The problem.
        virtual_stage: Where the microbatch is.
        policy: What becomes of its activation.
        fused: Its backward is one BW.
    """
    has_b = not fused and instance.has_b(virtual_stage)
    last = Kind.BW if fused else Kind.W
    taker = Kind.B if has_b else last
    found = list(_activation(instance, virtual_stage, policy, taker, last))
    found.append(Allocation(Tensor.INPUT, received(instance, virtual_stage), Kind.F, taker))
    found.append(Allocation(Tensor.OUTPUT, _amount_at(instance.boundary, virtual_stage), Kind.F, taker))
    if has_b:
        found.append(
            Allocation(Tensor.GRADIENT_STATE, _amount_at(instance.gradient_state, virtual_stage), Kind.B, Kind.W)
        )
    return tuple(allocation for allocation in found if allocation.amount)


def allocated_units(
    instance: Instance, virtual_stage: int, policy: ActivationPolicy, scale: int, *, fused: bool
) -> dict[tuple[Kind, Kind], int]:
    """Return what one microbatch allocates from the start of one op to the end of another, all tensors together.

    Args:
        instance: The problem.
        virtual_stage: Where the microbatch is.
        policy: What becomes of its activation.
        scale: Memory units that make one unit of the instance.
        fused: Its backward is one BW.
    """
    amounts: dict[tuple[Kind, Kind], Fraction] = {}
    for allocation in allocations(instance, virtual_stage, policy, fused=fused):
        ends = (allocation.first, allocation.last)
        amounts[ends] = amounts.get(ends, NOTHING) + allocation.amount
    return {ends: int(amount * scale) for ends, amount in amounts.items()}


def taken_by_forward(instance: Instance, virtual_stage: int) -> Fraction:
    """Return what an F allocates at its start: its activation, its input and its output."""
    found = allocations(instance, virtual_stage, ActivationPolicy.KEEP, fused=not instance.may_split)
    return sum((allocation.amount for allocation in found if allocation.first is Kind.F), NOTHING)


def _activation(instance: Instance, v: int, policy: ActivationPolicy, taker: Kind, last: Kind) -> Iterator[Allocation]:
    """[C4] Yield the parts of an activation, the one that waits for W and the one that does not.

    While it is dropped, as much as possible of what stays is what W waits for.
    """
    whole = instance.activation[v]
    for_weight = whole * instance.weight_share[v] if taker is not last else whole
    stays = resident(instance, v, policy)
    stays_for_weight = min(stays, for_weight)
    stays_for_input = stays - stays_for_weight
    yield Allocation(Tensor.ACTIVATION, stays_for_input, Kind.F, taker)
    yield Allocation(Tensor.ACTIVATION, stays_for_weight, Kind.F, last)
    if policy is not ActivationPolicy.KEEP:
        freed_by, restored_by = _DROPS[policy]
        yield Allocation(Tensor.ACTIVATION, whole - stays, Kind.F, freed_by)
        yield Allocation(Tensor.ACTIVATION, whole - for_weight - stays_for_input, restored_by, taker)
        yield Allocation(Tensor.ACTIVATION, for_weight - stays_for_weight, restored_by, last)


def received(instance: Instance, virtual_stage: int) -> Fraction:
    """Return the copy of its input that F holds: none where its own stage made it, or on the first virtual stage."""
    before = instance.previous_of(virtual_stage)
    local = before is None or instance.stage_of[before] == instance.stage_of[virtual_stage]
    return NOTHING if local or before is None else _amount_at(instance.boundary, before)


def static_allocations(instance: Instance, stage: int) -> tuple[tuple[Tensor, Fraction], ...]:
    """Return what ``stage`` holds through the whole step, by tensor; those of nothing are left out."""
    found = [
        (Tensor.PARAMETERS, _amount_at(instance.parameters, stage)),
        (Tensor.GRADIENTS, _amount_at(instance.gradients, stage)),
        (Tensor.OPTIMIZER_STATE, _amount_at(instance.optimizer_state, stage)),
        (Tensor.WORKSPACE, _amount_at(instance.workspace, stage)),
        (Tensor.RESERVE, _amount_at(instance.reserve, stage)),
        (Tensor.RECEIVE_BUFFERS, _receive_buffers(instance, stage)),
    ]
    return tuple((tensor, amount) for tensor, amount in found if amount)


def _receive_buffers(instance: Instance, stage: int) -> Fraction:
    """Return the buffers for inputs and gradients from other stages, of every microbatch that has some."""
    if instance.boundary is None or not instance.receive_buffers:
        return NOTHING
    total = NOTHING
    for v in instance.virtual_stages_of(stage):
        passing, after = len(instance.microbatches_of(v)), instance.next_of(v)
        count = passing if instance.receive_buffers == "all" else min(passing, instance.receive_buffers)
        gradient = NOTHING if after is None or instance.stage_of[after] == stage else instance.boundary[v]
        total += count * (received(instance, v) + gradient)
    return total


def static_memory(instance: Instance, stage: int) -> Fraction:
    """Sum all that ``stage`` holds through the whole step."""
    return sum((amount for _, amount in static_allocations(instance, stage)), NOTHING)


def with_microbatches(instance: Instance, microbatches: int) -> Instance:
    """Copy ``instance`` with another number of microbatches, and the receive buffers that it has."""
    if not instance.receive_buffers:
        return instance.model_copy(update={"microbatches": microbatches})
    buffers = [
        _receive_buffers(instance, stage) + _amount_at(instance.reserve, stage) for stage in range(instance.stages)
    ]
    return instance.model_copy(
        update={"microbatches": microbatches, "receive_buffers": None, "reserve": tuple(buffers)}
    )


def whole_memory(instance: Instance, virtual_stage: int) -> Fraction:
    """Return what a microbatch holds on ``virtual_stage`` while its F runs: its activation and both boundaries."""
    around = received(instance, virtual_stage) + _amount_at(instance.boundary, virtual_stage)
    return instance.activation[virtual_stage] + around


def least_left(instance: Instance, virtual_stage: int) -> Fraction:
    """Return the least that a microbatch holds on ``virtual_stage`` from its F to the start of its B, BW or lone W."""
    dropped = min(resident(instance, virtual_stage, policy) for policy in policies(instance, virtual_stage))
    return whole_memory(instance, virtual_stage) - instance.activation[virtual_stage] + dropped


def dropped_by(instance: Instance, virtual_stage: int) -> ActivationPolicy:
    """Return the policy that drops an activation of ``virtual_stage``, R before OUT where both may; keep: none may."""
    return next(
        (policy for policy in policies(instance, virtual_stage) if policy is not ActivationPolicy.KEEP),
        ActivationPolicy.KEEP,
    )


def added_by_b(instance: Instance, virtual_stage: int) -> Fraction:
    """Return what B adds on ``virtual_stage``; nothing where there is no B."""
    return _amount_at(instance.gradient_state, virtual_stage) if instance.has_b(virtual_stage) else NOTHING


def least_memory(instance: Instance, stage: int) -> Fraction:
    """Return the least cap of ``stage`` under which a schedule exists.

    One microbatch at a time needs this: all of it on one of its virtual stages, the least that may stay on others.
    At the start of that backward no schedule holds less. Of several routes the one that needs most counts.
    """
    most = NOTHING
    below: dict[int, Fraction] = {}
    for v in instance.virtual_stages_of(stage):
        route = instance.microbatches_of(v).start
        before = below.get(route, NOTHING)
        most = max(
            most, before + whole_memory(instance, v) + (NOTHING if instance.has_bw(v) else added_by_b(instance, v))
        )
        below[route] = before + least_left(instance, v)
    return static_memory(instance, stage) + most


@lru_cache(maxsize=64)
def _scale(amounts: tuple[Fraction, ...]) -> int:
    return lcm(*(amount.denominator for amount in amounts))


def memory_scale(instance: Instance) -> int:
    """Return how many memory units make one unit of the instance, the least that makes every amount an integer."""
    amounts: list[Fraction] = []
    for field in fields_in(type(instance), Unit.MEMORY):
        amounts += getattr(instance, field) or ()
    for field in fields_in(type(instance), Unit.SHARE):
        amounts += (a * share for a, share in zip(instance.activation, getattr(instance, field), strict=True))
    return _scale(tuple(Fraction(amount) for amount in amounts))


def _amount_at(amounts: tuple[Fraction, ...] | None, place: int) -> Fraction:
    return NOTHING if amounts is None else amounts[place]


def with_drops(
    instance: Instance, steps: Iterable[tuple[Kind, int, int]], policy_of: Mapping[int, ActivationPolicy] | None = None
) -> list[tuple[Kind, int, int]]:
    """Put an R before each backward that needs one, in one stage's order of (kind, virtual stage, microbatch).

    Args:
        instance: The problem.
        steps: The order; a microbatch whose R is there already keeps it where it is.
        policy_of: What becomes of all activations of a virtual stage that has no R in ``steps``; ``None``: what the
            instance allows first.
    """
    steps = list(steps)
    virtual_stages = {v for _, v, _ in steps}
    policy = {v: policies(instance, v)[0] if policy_of is None else policy_of[v] for v in virtual_stages}
    recomputed = {(v, j) for kind, v, j in steps if kind is Kind.R}
    order = []
    for kind, v, j in steps:
        needs_activation = kind in (Kind.B, Kind.BW) or (kind is Kind.W and not instance.has_b(v))
        if needs_activation and policy[v] is ActivationPolicy.RECOMPUTE and (v, j) not in recomputed:
            order.append((Kind.R, v, j))
        if kind is not Kind.R or policy[v] is not ActivationPolicy.OFFLOAD:
            order.append((kind, v, j))
    return order


def with_policies(instance: Instance, policy_of: Mapping[int, ActivationPolicy]) -> Instance:
    """Copy ``instance`` with offloading decided: always on virtual stages of that policy, never on others."""
    if instance.offload is None:
        return instance
    offloads = [policy_of[v] is ActivationPolicy.OFFLOAD for v in range(instance.virtual_stages)]
    update = {"offload": tuple(Drop.ALWAYS if offloaded else Drop.NEVER for offloaded in offloads)}
    if instance.recompute is not None:
        modes = zip(instance.recompute, offloads, strict=True)
        update["recompute"] = tuple(Drop.NEVER if offloaded else mode for mode, offloaded in modes)
    return instance.model_copy(update=update)
