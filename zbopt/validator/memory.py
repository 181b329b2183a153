"""The memory of each stage over time, from changes netted by time: what goes makes room for what comes at that time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from math import lcm
from typing import Generic, NamedTuple, TypeVar

from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event
from zbopt.validator.drops import At, Report
from zbopt.validator.routes import Routes
from zbopt.validator.verdict import Code, shown

_NOTHING = Fraction(0)


def peak_memory(instance: Instance, routes: Routes, at: At, report: Report) -> tuple[Fraction, ...]:
    """Peak of each stage; reports each interval in which one is above its cap."""
    sizes = [_sizes(instance, v, routes.before[v]) for v in range(instance.virtual_stages)]
    static = [_static(instance, stage, routes) for stage in range(instance.stages)]
    amounts = [amount for size in sizes for amount in size] + static
    scale = lcm(*(amount.denominator for amount in amounts))
    units = [_Sizes(*(int(amount * scale) for amount in size)) for size in sizes]
    changes: list[dict[int, int]] = [defaultdict(int) for _ in range(instance.stages)]
    for row, stage in enumerate(instance.stage_of * instance.iterations):
        v = row % instance.virtual_stages
        places = (row * instance.microbatches + microbatch for microbatch in routes.passing[v])
        _lifetimes(at, places, _lone(instance, v), units[v], changes[stage])
    for net, held in zip(changes, static, strict=True):
        if held:
            net[min(net, default=0)] += int(held * scale)
    return tuple(_peak(instance, stage, net, scale, report) for stage, net in enumerate(changes))


_Number = TypeVar("_Number", Fraction, int)


class _Sizes(NamedTuple, Generic[_Number]):
    """What one microbatch holds on a virtual stage, by what takes and what frees it."""

    activation: _Number
    until_w: _Number
    boundaries: _Number
    added_by_b: _Number
    offloaded: _Number
    recomputed: _Number


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


def _lone(instance: Instance, v: int) -> bool:
    """A W takes the gradient itself, since the virtual stage has no B."""
    return instance.backward_ticks is not None and instance.backward_ticks[v] is None


def _static(instance: Instance, stage: int, routes: Routes) -> Fraction:
    """What a stage holds through the whole step."""
    fields = (instance.parameters, instance.gradients, instance.optimizer_state, instance.workspace, instance.reserve)
    held = sum((amounts[stage] for amounts in fields if amounts is not None), _NOTHING)
    buffers = instance.receive_buffers
    for v, amount in enumerate(instance.boundary or ()):
        after, most = routes.after[v], len(routes.passing[v])
        count = most if buffers == "all" else min(buffers or 0, most)
        ends = [instance.stage_of[v], None if after is None else instance.stage_of[after]]
        if ends[1] is not None and ends[0] != ends[1]:
            # The next stage receives the output, this one its gradient.
            held += count * amount * ends.count(stage)
    return held


def _lifetimes(at: At, places: Iterable[int], lone: bool, size: _Sizes[int], net: dict[int, int]) -> None:
    """Add the changes by all that microbatches hold on a virtual stage; what nothing releases stays to the end."""
    for place in places:
        forward, backward, weight, fused = (at[kind][place] for kind in (Kind.F, Kind.B, Kind.W, Kind.BW))
        again, out, back = (at[kind][place] for kind in (Kind.R, Kind.OUT, Kind.IN))
        if forward is None:
            continue
        net[forward.start] += size.activation + size.boundaries
        if again is not None:
            _free(net, forward, forward, size.recomputed)
            net[again.start] += size.recomputed
        elif out is not None:
            _free(net, forward, out, size.offloaded)
            if back is not None:
                net[max(back.start, forward.start)] += size.offloaded
        if fused is not None or lone:
            _free(net, forward, fused or weight, size.activation + size.boundaries)
            continue
        _free(net, forward, backward, size.activation - size.until_w + size.boundaries)
        _free(net, forward, weight, size.until_w)
        if backward is not None:
            net[backward.start] += size.added_by_b
            _free(net, backward, weight, size.added_by_b)


def _free(net: dict[int, int], taken_by: Event, freed_by: Event | None, amount: int) -> None:
    """Give ``amount`` back at the end of an op, not before it was taken; never where there is no such op."""
    if freed_by is not None and amount:
        net[max(freed_by.end, taken_by.start)] -= amount


def _peak(instance: Instance, stage: int, net: dict[int, int], scale: int, report: Report) -> Fraction:
    cap = instance.memory_cap[stage] * scale if instance.memory_cap else None
    limit = None if cap is None else cap.numerator // cap.denominator
    live = peak = most = 0
    since: int | None = None

    def over(until: str) -> None:
        assert since is not None
        held = f"stage {stage} holds up to {Fraction(most, scale)} from {shown(since)} {until}"
        report(
            Code.MEMORY_EXCEEDED, f"{held}; its cap is {instance.memory_cap[stage] if instance.memory_cap else None}"
        )

    for time in sorted(net):
        live += net[time]
        peak = max(peak, live)
        if limit is None:
            continue
        if live > limit:
            since, most = (time, live) if since is None else (since, max(most, live))
        elif since is not None:
            over(f"to {shown(time)}")
            since = None
    if since is not None:
        over("on, never released")
    return Fraction(peak, scale)
