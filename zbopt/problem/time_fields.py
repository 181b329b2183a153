"""What an instance's time fields promise together: which ops there are, for all microbatches and for single ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zbopt.problem.routes import TIMES, MicrobatchTimes

if TYPE_CHECKING:
    from zbopt.problem.instance import Instance


def check_backward(instance: Instance) -> None:
    """Refuse a backward that cannot run.

    Raises:
        ValueError: There are no times, half of a pair, or none for an op that has to run.
    """
    backward, fused = instance.backward_ticks, instance.fused_backward_ticks
    if (backward is None) != (instance.weight_ticks is None):
        raise ValueError("backward_ticks and weight_ticks go together; give both, or fused_backward_ticks alone")
    if backward is None and fused is None:
        raise ValueError("no backward times; give backward_ticks and weight_ticks, or fused_backward_ticks")
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


def check_own_times(instance: Instance) -> None:
    """Refuse times of single microbatches that are not of the same ops, or of no microbatch.

    Raises:
        ValueError: A list has another length, another op is there, or a microbatch is named twice or does not exist.
    """
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


def _check_group(instance: Instance, group: MicrobatchTimes, where: str) -> None:
    for field in TIMES:
        ours, own = getattr(instance, field) or (), getattr(group, field) or ()
        if own and len(own) != instance.virtual_stages:
            raise ValueError(
                f"{where}.{field} has {len(own)} values for {instance.virtual_stages} virtual stages; "
                f"give 1 or {instance.virtual_stages}"
            )
        if [ticks is None for ticks in ours] != [ticks is None for ticks in own]:
            raise ValueError(f"{where}.{field} has other ops than {field}; give times for the same ones")


def check_overlapped(instance: Instance) -> None:
    """Refuse an overlapped op that could not be, or would be shorter than one of its halves.

    Raises:
        ValueError: There is no BW, transfers are events, or a time is below that of an F or BW of its stage.
    """
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
