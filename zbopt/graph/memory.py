"""What one microbatch holds on a stage, and what the stage holds anyway: the tensors behind the memory rule.

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
    """What becomes of an activation between its F and its backward."""

    KEEP = "keep"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


class Tensor(StrEnum):
    """What a piece of memory is."""

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
class Part:
    """``amount`` of a tensor that one microbatch holds from the start of its op ``first`` to the end of ``last``."""

    tensor: Tensor
    amount: Fraction
    first: Kind
    last: Kind


WAY_OF = {Kind.R: ActivationPolicy.RECOMPUTE, Kind.OUT: ActivationPolicy.OFFLOAD, Kind.IN: ActivationPolicy.OFFLOAD}
"""The way that an op is there for."""
_DROPS = {ActivationPolicy.RECOMPUTE: (Kind.F, Kind.R), ActivationPolicy.OFFLOAD: (Kind.OUT, Kind.IN)}
"""For each way that drops an activation, the op at whose end it goes, and the one that brings it back."""


def policies(instance: Instance, virtual_stage: int) -> tuple[ActivationPolicy, ...]:
    """What may become of an activation on ``virtual_stage``; keeping it first, where that is allowed."""
    modes = {
        way: Drop.NEVER if rows is None else rows[virtual_stage]
        for way, rows in (
            (ActivationPolicy.RECOMPUTE, instance.recompute),
            (ActivationPolicy.OFFLOAD, instance.offload),
        )
    }
    always = [way for way, mode in modes.items() if mode is Drop.ALWAYS]
    return tuple(always) or (ActivationPolicy.KEEP, *(way for way, mode in modes.items() if mode is Drop.CHOOSE))


def chooses(instance: Instance) -> bool:
    """Whether some activation's way is for the schedule to choose."""
    return any(mode is Drop.CHOOSE for modes in (instance.recompute, instance.offload) for mode in modes or ())


def left(instance: Instance, virtual_stage: int, way: ActivationPolicy) -> Fraction:
    """What stays of an activation while it is dropped; all of it where it is kept."""
    if way is ActivationPolicy.KEEP:
        return instance.activation[virtual_stage]
    return _of(instance.checkpoint if way is ActivationPolicy.RECOMPUTE else instance.offload_rest, virtual_stage)


def parts(instance: Instance, virtual_stage: int, way: ActivationPolicy, *, fused: bool) -> tuple[Part, ...]:
    """What one microbatch holds on ``virtual_stage``, piece by piece; pieces of nothing are left out.

    Args:
        instance: The problem.
        virtual_stage: Where the microbatch is.
        way: What becomes of its activation.
        fused: Its backward is one BW.
    """
    has_b = not fused and instance.has_b(virtual_stage)
    last = Kind.BW if fused else Kind.W
    taker = Kind.B if has_b else last
    found = list(_activation(instance, virtual_stage, way, taker, last))
    found.append(Part(Tensor.INPUT, received(instance, virtual_stage), Kind.F, taker))
    found.append(Part(Tensor.OUTPUT, _of(instance.boundary, virtual_stage), Kind.F, taker))
    if has_b:
        found.append(Part(Tensor.GRADIENT_STATE, _of(instance.gradient_state, virtual_stage), Kind.B, Kind.W))
    return tuple(part for part in found if part.amount)


def pieces(
    instance: Instance, virtual_stage: int, way: ActivationPolicy, scale: int, *, fused: bool
) -> dict[tuple[Kind, Kind], int]:
    """The same from the start of one op to the end of another, in units of which ``scale`` make one of the instance."""
    held: dict[tuple[Kind, Kind], Fraction] = {}
    for part in parts(instance, virtual_stage, way, fused=fused):
        held[part.first, part.last] = held.get((part.first, part.last), NOTHING) + part.amount
    return {ends: int(amount * scale) for ends, amount in held.items()}


def taken_by_forward(instance: Instance, virtual_stage: int) -> Fraction:
    """What an F takes at its start: its activation, and what it is handed and hands on."""
    held = parts(instance, virtual_stage, ActivationPolicy.KEEP, fused=not instance.may_split)
    return sum((part.amount for part in held if part.first is Kind.F), NOTHING)


def _activation(instance: Instance, v: int, way: ActivationPolicy, taker: Kind, last: Kind) -> Iterator[Part]:
    """[C4] Of what stays while it is dropped, as much as possible is what W waits for."""
    whole = instance.activation[v]
    held = whole * instance.weight_share[v] if taker is not last else whole
    stays = left(instance, v, way)
    stays_held = min(stays, held)
    for amount, release in ((stays - stays_held, taker), (stays_held, last)):
        yield Part(Tensor.ACTIVATION, amount, Kind.F, release)
    if way is not ActivationPolicy.KEEP:
        goes, comes = _DROPS[way]
        yield Part(Tensor.ACTIVATION, whole - stays, Kind.F, goes)
        for amount, release in ((whole - held - (stays - stays_held), taker), (held - stays_held, last)):
            yield Part(Tensor.ACTIVATION, amount, comes, release)


def received(instance: Instance, virtual_stage: int) -> Fraction:
    """The copy of its input that F holds: none where the stage itself made it, and on the first virtual stage."""
    before = instance.previous_of(virtual_stage)
    local = before is None or instance.stage_of[before] == instance.stage_of[virtual_stage]
    return NOTHING if local or before is None else _of(instance.boundary, before)


def static_parts(instance: Instance, stage: int) -> tuple[tuple[Tensor, Fraction], ...]:
    """What ``stage`` holds through the whole step; pieces of nothing are left out."""
    found = [
        (Tensor.PARAMETERS, _of(instance.parameters, stage)),
        (Tensor.GRADIENTS, _of(instance.gradients, stage)),
        (Tensor.OPTIMIZER_STATE, _of(instance.optimizer_state, stage)),
        (Tensor.WORKSPACE, _of(instance.workspace, stage)),
        (Tensor.RESERVE, _of(instance.reserve, stage)),
        (Tensor.RECEIVE_BUFFERS, _receive_buffers(instance, stage)),
    ]
    return tuple((tensor, amount) for tensor, amount in found if amount)


def _receive_buffers(instance: Instance, stage: int) -> Fraction:
    """A boundary for each microbatch that has buffers: of every input, and of every gradient, from another stage."""
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
    """All that ``stage`` holds through the whole step."""
    return sum((amount for _, amount in static_parts(instance, stage)), NOTHING)


def with_microbatches(instance: Instance, microbatches: int) -> Instance:
    """``instance`` with so many microbatches, and the receive buffers that it has."""
    if not instance.receive_buffers:
        return instance.model_copy(update={"microbatches": microbatches})
    buffers = [_receive_buffers(instance, stage) + _of(instance.reserve, stage) for stage in range(instance.stages)]
    return instance.model_copy(
        update={"microbatches": microbatches, "receive_buffers": None, "reserve": tuple(buffers)}
    )


def whole_memory(instance: Instance, virtual_stage: int) -> Fraction:
    """What a microbatch whose F is running holds on ``virtual_stage``: its activation and both boundaries."""
    around = received(instance, virtual_stage) + _of(instance.boundary, virtual_stage)
    return instance.activation[virtual_stage] + around


def least_left(instance: Instance, virtual_stage: int) -> Fraction:
    """The least that a microbatch holds on ``virtual_stage`` from its F to the start of its B, BW or lone W."""
    dropped = min(left(instance, virtual_stage, way) for way in policies(instance, virtual_stage))
    return whole_memory(instance, virtual_stage) - instance.activation[virtual_stage] + dropped


def dropped_by(instance: Instance, virtual_stage: int) -> ActivationPolicy:
    """The way that drops an activation of ``virtual_stage``, R before OUT where both do; keep: none does."""
    return next(
        (way for way in policies(instance, virtual_stage) if way is not ActivationPolicy.KEEP), ActivationPolicy.KEEP
    )


def added_by_b(instance: Instance, virtual_stage: int) -> Fraction:
    """What B adds on ``virtual_stage``; nothing where there is no B."""
    return _of(instance.gradient_state, virtual_stage) if instance.has_b(virtual_stage) else NOTHING


def least_memory(instance: Instance, stage: int) -> Fraction:
    """The least cap of ``stage`` under which a schedule exists.

    One microbatch at a time needs this: whole on one of its virtual stages, the least that can be left of it on those
    before. At the start of that backward no schedule holds less. Of several routes the one that needs most counts.
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


def _of(amounts: tuple[Fraction, ...] | None, place: int) -> Fraction:
    return NOTHING if amounts is None else amounts[place]


def with_drops(
    instance: Instance, steps: Iterable[tuple[Kind, int, int]], policy_of: Mapping[int, ActivationPolicy] | None = None
) -> list[tuple[Kind, int, int]]:
    """An order of one stage's (kind, virtual stage, microbatch) with an R before each backward that needs one.

    Args:
        instance: The problem.
        steps: The order; a microbatch whose R is there already keeps it where it is.
        policy_of: What becomes of all activations of a virtual stage that has no R in ``steps``; ``None``: what the
            instance allows first.
    """
    steps = list(steps)
    way = {v: policies(instance, v)[0] if policy_of is None else policy_of[v] for v in {v for _, v, _ in steps}}
    there = {(v, j) for kind, v, j in steps if kind is Kind.R}
    order = []
    for kind, v, j in steps:
        takes = kind in (Kind.B, Kind.BW) or (kind is Kind.W and not instance.has_b(v))
        if takes and way[v] is ActivationPolicy.RECOMPUTE and (v, j) not in there:
            order.append((Kind.R, v, j))
        if kind is not Kind.R or way[v] is not ActivationPolicy.OFFLOAD:
            order.append((kind, v, j))
    return order


def with_policies(instance: Instance, policy_of: Mapping[int, ActivationPolicy]) -> Instance:
    """``instance`` with offloading decided: always on the virtual stages of that way, never on others."""
    if instance.offload is None:
        return instance
    out = [policy_of[v] is ActivationPolicy.OFFLOAD for v in range(instance.virtual_stages)]
    update = {"offload": tuple(Drop.ALWAYS if taken else Drop.NEVER for taken in out)}
    if instance.recompute is not None:
        modes = zip(instance.recompute, out, strict=True)
        update["recompute"] = tuple(Drop.NEVER if taken else mode for mode, taken in modes)
    return instance.model_copy(update=update)
