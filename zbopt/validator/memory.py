"""Live memory of each stage over time. Changes at one tick are summed, so that releases make room at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from math import lcm
from typing import Generic, NamedTuple, TypeVar

from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event
from zbopt.validator.drops import Report, TaskEvents
from zbopt.validator.routes import Routes
from zbopt.validator.verdict import Code, shown

_NOTHING = Fraction(0)


def peak_memory(instance: Instance, routes: Routes, at: TaskEvents, report: Report) -> tuple[Fraction, ...]:
    """Return the peak of each stage, and report each interval in which a stage is above its cap."""
    sizes = [_sizes(instance, v, routes.before[v]) for v in range(instance.virtual_stages)]
    static = [_static(instance, stage, routes) for stage in range(instance.stages)]
    amounts = [amount for size in sizes for amount in size] + static
    scale = lcm(*(amount.denominator for amount in amounts))
    units = [_Sizes(*(int(amount * scale) for amount in size)) for size in sizes]
    changes: list[dict[int, int]] = [defaultdict(int) for _ in range(instance.stages)]
    for number, stage in enumerate(instance.stage_of * instance.iterations):
        v = number % instance.virtual_stages
        indices = (number * instance.microbatches + microbatch for microbatch in routes.passing[v])
        _lifetimes(at, indices, _has_lone_w(instance, v), units[v], changes[stage])
    for change_at, amount in zip(changes, static, strict=True):
        if amount:
            change_at[min(change_at, default=0)] += int(amount * scale)
    return tuple(_peak(instance, stage, change_at, scale, report) for stage, change_at in enumerate(changes))


_Amount = TypeVar("_Amount", Fraction, int)


class _Sizes(NamedTuple, Generic[_Amount]):
    """Hold what one microbatch takes on a virtual stage.

    ``activation`` is all of it, ``until_w`` the share of it that only W frees. ``boundaries`` are the inputs and
    outputs of the virtual stage. ``added_by_b`` lives from B to W. ``offloaded`` and ``recomputed`` are what a drop
    frees.
    """

    activation: _Amount
    until_w: _Amount
    boundaries: _Amount
    added_by_b: _Amount
    offloaded: _Amount
    recomputed: _Amount


def _sizes(instance: Instance, v: int, before: int | None) -> _Sizes[Fraction]:
    activation, boundary = instance.activation[v], instance.boundary
    split = instance.backward_ticks is not None and instance.backward_ticks[v] is not None
    boundaries = boundary[v] if boundary is not None else _NOTHING
    if boundary is not None and before is not None and instance.stage_of[before] != instance.stage_of[v]:
        boundaries += boundary[before]
    return _Sizes(
        activation=activation,
        until_w=activation * instance.weight_share[v] if split else activation,
        boundaries=boundaries,
        added_by_b=instance.gradient_state[v] if instance.gradient_state is not None else _NOTHING,
        offloaded=activation - (instance.offload_rest[v] if instance.offload_rest is not None else _NOTHING),
        recomputed=activation - (instance.checkpoint[v] if instance.checkpoint is not None else _NOTHING),
    )


def _has_lone_w(instance: Instance, v: int) -> bool:
    """Return whether W takes the gradient itself, since the virtual stage has no B."""
    return instance.backward_ticks is not None and instance.backward_ticks[v] is None


def _static(instance: Instance, stage: int, routes: Routes) -> Fraction:
    """Return what a stage holds through the whole step."""
    fields = (instance.parameters, instance.gradients, instance.optimizer_state, instance.workspace, instance.reserve)
    total = sum((amounts[stage] for amounts in fields if amounts is not None), _NOTHING)
    buffers = instance.receive_buffers
    for v, amount in enumerate(instance.boundary or ()):
        after, most = routes.after[v], len(routes.passing[v])
        count = most if buffers == "all" else min(buffers or 0, most)
        ends = [instance.stage_of[v], None if after is None else instance.stage_of[after]]
        if ends[1] is not None and ends[0] != ends[1]:
            # The next stage receives the output, this one its gradient.
            total += count * amount * ends.count(stage)
    return total


def _lifetimes(
    at: TaskEvents, indices: Iterable[int], has_lone_w: bool, size: _Sizes[int], change_at: dict[int, int]
) -> None:
    """Add the changes by all that microbatches take on a virtual stage; what no op frees stays to the end."""
    for index in indices:
        forward, backward, weight, fused = (at[kind][index] for kind in (Kind.F, Kind.B, Kind.W, Kind.BW))
        recompute_op, offload_op, reload_op = (at[kind][index] for kind in (Kind.R, Kind.OUT, Kind.IN))
        if forward is None:
            continue
        change_at[forward.start] += size.activation + size.boundaries
        if recompute_op is not None:
            _free(change_at, forward, forward, size.recomputed)
            change_at[recompute_op.start] += size.recomputed
        elif offload_op is not None:
            _free(change_at, forward, offload_op, size.offloaded)
            if reload_op is not None:
                change_at[max(reload_op.start, forward.start)] += size.offloaded
        if fused is not None or has_lone_w:
            _free(change_at, forward, fused or weight, size.activation + size.boundaries)
            continue
        _free(change_at, forward, backward, size.activation - size.until_w + size.boundaries)
        _free(change_at, forward, weight, size.until_w)
        if backward is not None:
            change_at[backward.start] += size.added_by_b
            _free(change_at, backward, weight, size.added_by_b)


def _free(change_at: dict[int, int], taken_by: Event, freed_by: Event | None, amount: int) -> None:
    """Free ``amount`` at the end of an op, but not before it was taken; never where there is no such op."""
    if freed_by is not None and amount:
        change_at[max(freed_by.end, taken_by.start)] -= amount


def _peak(instance: Instance, stage: int, change_at: dict[int, int], scale: int, report: Report) -> Fraction:
    cap = instance.memory_cap[stage] * scale if instance.memory_cap else None
    limit = None if cap is None else cap.numerator // cap.denominator
    live = peak = most = 0
    exceeded_since: int | None = None

    def report_excess(until: str) -> None:
        assert exceeded_since is not None
        what = f"stage {stage} holds up to {Fraction(most, scale)} from {shown(exceeded_since)} {until}"
        report(
            Code.MEMORY_EXCEEDED, f"{what}; its cap is {instance.memory_cap[stage] if instance.memory_cap else None}"
        )

    for time in sorted(change_at):
        live += change_at[time]
        peak = max(peak, live)
        if limit is None:
            continue
        if live > limit:
            exceeded_since, most = (time, live) if exceeded_since is None else (exceeded_since, max(most, live))
        elif exceeded_since is not None:
            report_excess(f"to {shown(time)}")
            exceeded_since = None
    if exceeded_since is not None:
        report_excess("on, never released")
    return Fraction(peak, scale)
