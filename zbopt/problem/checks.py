"""Checks of fields of several groups together. Each group checks what its own fields promise."""

from __future__ import annotations

from zbopt.problem.facts import spread_fields
from zbopt.problem.fields import InstanceFields
from zbopt.problem.numbers import MAX_FORWARDS, MAX_TICKS, counted
from zbopt.problem.routes import TIMES, MicrobatchTimes


def check_fields(instance: InstanceFields) -> None:
    """Refuse fields that do not go together.

    Raises:
        ValueError: One line that names the field, the value, the limit and the way out.
    """
    instance.check_placement()
    _check_lengths(instance)
    _check_size(instance)
    instance.check_op_times()
    _check_missing_ops(instance)
    _check_own_times(instance)
    _check_overlapped(instance)
    instance.check_memory()
    instance.check_communication(instance.stages, sized=instance.boundary is not None)
    _check_transfers_fit(instance)
    _check_collectives_fit(instance)
    instance.check_update(instance.microbatches, ports=instance.occupies_ports)
    instance.check_goal()


def _check_lengths(instance: InstanceFields) -> None:
    counts = {"stage": instance.stages, "virtual stage": instance.virtual_stages}
    for field, axis in spread_fields(type(instance)).items():
        expected, values = counts[axis.value], getattr(instance, field)
        if values is not None and len(values) != expected:
            give = "1" if expected == 1 else f"1 or {expected}" if values != (None,) else f"{expected}"
            raise ValueError(
                f"{field} has {counted(len(values), 'value')} for {counted(expected, axis.value)}; give {give}"
            )


def _check_size(instance: InstanceFields) -> None:
    forwards = instance.virtual_stages * instance.microbatches
    if forwards > MAX_FORWARDS:
        virtual_stages = counted(instance.virtual_stages, "virtual stage")
        raise ValueError(
            f"{virtual_stages} with {instance.microbatches} microbatches make {forwards} forwards, "
            f"of at most {MAX_FORWARDS}; lower microbatches to {MAX_FORWARDS // instance.virtual_stages}"
        )
    if forwards * instance.iterations > MAX_FORWARDS:
        raise ValueError(
            f"{instance.iterations} iterations of {forwards} forwards are more than {MAX_FORWARDS}; lower iterations "
            f"to {MAX_FORWARDS // forwards}"
        )


def _check_missing_ops(instance: InstanceFields) -> None:
    """Refuse a backward that lacks an op it has to run: only the first virtual stage of a route may have no B."""
    backward, fused = instance.backward_ticks, instance.fused_backward_ticks
    without_b = {v for v, ticks in enumerate(backward or ()) if ticks is None}
    without_fused = {v for v, ticks in enumerate(fused or ()) if ticks is None}
    allowed = without_b & {v for v in range(instance.virtual_stages) if instance.previous_of(v) is None}
    for field, missing in (("backward_ticks", without_b), ("fused_backward_ticks", without_fused)):
        if missing - allowed:
            raise ValueError(
                f"{field}[{min(missing - allowed)}] is null; only the first virtual stage may have no B, and then no BW"
            )
    if fused is not None and without_b - without_fused:
        first = min(without_b - without_fused)
        raise ValueError(
            f"fused_backward_ticks[{first}] is given, but virtual stage {first} has no B to fuse; set it to null"
        )


def _check_own_times(instance: InstanceFields) -> None:
    """Refuse times of single microbatches that are not of the same ops, or of no microbatch."""
    seen: set[int] = set()
    for g, group in enumerate(instance.microbatch_times or ()):
        for j in group.microbatches:
            if j >= instance.microbatches:
                raise ValueError(
                    f"microbatch_times[{g}]: {j} is no microbatch; microbatches are 0 to {instance.microbatches - 1}"
                )
            if j in seen:
                raise ValueError(f"microbatch_times[{g}]: microbatch {j} has times already; give each microbatch once")
            seen.add(j)
        _check_group(instance, group, f"microbatch_times[{g}]")


def _check_group(instance: InstanceFields, group: MicrobatchTimes, where: str) -> None:
    for field in TIMES:
        ours, own = getattr(instance, field) or (), getattr(group, field) or ()
        if own and len(own) != instance.virtual_stages:
            raise ValueError(
                f"{where}.{field} has {len(own)} values for {instance.virtual_stages} virtual stages; "
                f"give 1 or {instance.virtual_stages}"
            )
        if [ticks is None for ticks in ours] != [ticks is None for ticks in own]:
            raise ValueError(f"{where}.{field} has other ops than {field}; give times for the same ones")


def _check_overlapped(instance: InstanceFields) -> None:
    """Refuse an overlapped op that could not be, or would be shorter than one of its halves."""
    if instance.overlapped_ticks is None:
        return
    if instance.fused_backward_ticks is None:
        raise ValueError("overlapped_ticks is given but fused_backward_ticks is not; one op runs an F and a BW")
    if not instance.is_simple or instance.collectives is not None:
        raise ValueError("overlapped_ticks goes with one iteration and a latency as transfer; leave one of them out")
    for v, j in instance.passes():
        stage, ticks = instance.stage_of[v], instance.ticks_of(v, j)
        overlapped, longest = instance.overlapped_ticks[stage], max(ticks.forward, ticks.fused or 0)
        if overlapped is not None and overlapped < longest:
            raise ValueError(
                f"overlapped_ticks[{stage}] = {overlapped} is below the {longest} of an op of its own on virtual stage "
                f"{v}; give at least {longest}"
            )


def _check_transfers_fit(instance: InstanceFields) -> None:
    if instance.boundary is None:
        return
    neighbours = ((u, v) for u in range(instance.virtual_stages) if (v := instance.next_of(u)) is not None)
    for u, v in (ends for pair in neighbours for ends in (pair, pair[::-1])):
        ticks = instance.lag_ticks(u, v)
        if ticks > MAX_TICKS:
            raise ValueError(
                f"boundary[{min(u, v)}] takes {ticks} ticks from virtual stage {u} to {v}, of at most {MAX_TICKS}; "
                "give a longer tick or a greater bandwidth"
            )


def _check_collectives_fit(instance: InstanceFields) -> None:
    for i, inside in enumerate(instance.collectives or ()):
        times = [t for v, j in instance.passes() if (t := instance.op_ticks(inside.kind, v, j)) is not None]
        end = inside.start + inside.ticks
        if end > min(times, default=end):
            raise ValueError(
                f"collectives[{i}] ends at {end} in {inside.kind.value}, which takes {min(times)}; end it before that"
            )
