"""Rules of activations that are dropped after their F and brought back before their backward, by R or OUT and IN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from zbopt.problem.instance import Drop, Instance, Kind, MicrobatchTimes
from zbopt.problem.schedule import Event
from zbopt.validator.exclusive import overlaps
from zbopt.validator.verdict import Code, name_of, shown

TaskEvents = Mapping[Kind, Sequence[Event | None]]
"""The event of each task, by kind and index: virtual stages of all iterations in turn, microbatches within each."""
Report = Callable[[Code, str], None]

FORBIDDEN = {
    Kind.R: Code.RECOMPUTE_FORBIDDEN,
    Kind.OUT: Code.OFFLOAD_FORBIDDEN,
    Kind.IN: Code.OFFLOAD_FORBIDDEN,
}
DROP_TOO_EARLY = (
    Code.RECOMPUTE_BEFORE_FORWARD,
    Code.BACKWARD_BEFORE_RECOMPUTE,
    Code.OFFLOAD_BEFORE_FORWARD,
    Code.RELOAD_BEFORE_OFFLOAD,
    Code.BACKWARD_BEFORE_RELOAD,
)


def drop_times(instance: Instance, times_of: Instance | MicrobatchTimes) -> dict[Kind, tuple[int | None, ...]]:
    """Return the ticks of R, OUT and IN by virtual stage; ``None`` where there must not be one."""
    fields = {
        Kind.R: (instance.recompute, times_of.recompute_ticks),
        Kind.OUT: (instance.offload, instance.offload_ticks),
        Kind.IN: (instance.offload, instance.reload_ticks),
    }
    never, none = (Drop.NEVER,) * instance.virtual_stages, (None,) * instance.virtual_stages
    return {
        kind: tuple(None if mode is Drop.NEVER else t for mode, t in zip(policies or never, times or none, strict=True))
        for kind, (policies, times) in fields.items()
    }


def check_drops(instance: Instance, at: TaskEvents, report: Report) -> None:
    """Report missing and superfluous R, OUT and IN, ops around them that start too early, and host links used twice."""
    if instance.recompute is None and instance.offload is None:
        return
    never = (Drop.NEVER,) * instance.virtual_stages
    policies = list(zip(instance.recompute or never, instance.offload or never, strict=True)) * instance.iterations
    for index, forward in enumerate(at[Kind.F]):
        if forward is not None:
            _check_activation(forward, *policies[index // instance.microbatches], index, at, report)
    for event, awaited, code in drop_needs(instance, at):
        if awaited is None:
            report(Code.MISSING_DEPENDENCY, f"{name_of(event)} waits for an op that is not in the schedule")
        elif event.start < awaited.end:
            message = (
                f"{name_of(event)} starts at {shown(event.start)}, {name_of(awaited)} ends at {shown(awaited.end)}"
            )
            report(code, message)
    _check_host_links(instance, at, report)


def _check_activation(
    forward: Event, recompute: Drop, offload: Drop, index: int, at: TaskEvents, report: Report
) -> None:
    recompute_op, offload_op, reload_op = (at[kind][index] for kind in (Kind.R, Kind.OUT, Kind.IN))
    if recompute is Drop.ALWAYS and recompute_op is None:
        report(Code.RECOMPUTE_MISSING, f"{name_of(forward)} is always recomputed, but there is no R of it")
    if offload is Drop.ALWAYS and (offload_op is None or reload_op is None):
        report(Code.OFFLOAD_MISSING, f"{name_of(forward)} is always offloaded, but there is not both OUT and IN of it")
    elif (offload_op is None) != (reload_op is None):
        report(
            Code.OFFLOAD_UNPAIRED, f"{name_of(offload_op or reload_op or forward)} is there, but not both OUT and IN"
        )
    if recompute_op is not None and (offload_op is not None or reload_op is not None):
        report(Code.DROPPED_TWICE, f"{name_of(forward)} is both recomputed and offloaded")


def drop_needs(instance: Instance, at: TaskEvents) -> Iterator[tuple[Event, Event | None, Code]]:
    """Yield (event, the event that it waits for, code where it starts too early).

    R and OUT wait for F, IN waits for OUT, and the op that uses the activation waits for R or IN.
    """
    if instance.recompute is None and instance.offload is None:
        return
    for index, forward in enumerate(at[Kind.F]):
        consumer = at[Kind.BW][index] or at[Kind.B][index] or _weight_without_b(instance, at, index)
        yield from _recompute_needs(forward, at[Kind.R][index], consumer)
        yield from _offload_needs(forward, at[Kind.OUT][index], at[Kind.IN][index], consumer)


_DropNeeds = Iterator[tuple[Event, Event | None, Code]]


def _recompute_needs(forward: Event | None, recompute_op: Event | None, consumer: Event | None) -> _DropNeeds:
    if recompute_op is None:
        return
    yield recompute_op, forward, Code.RECOMPUTE_BEFORE_FORWARD
    if consumer is not None:
        yield consumer, recompute_op, Code.BACKWARD_BEFORE_RECOMPUTE


def _offload_needs(
    forward: Event | None, offload_op: Event | None, reload_op: Event | None, consumer: Event | None
) -> _DropNeeds:
    if offload_op is not None:
        yield offload_op, forward, Code.OFFLOAD_BEFORE_FORWARD
    if reload_op is not None and offload_op is not None:
        yield reload_op, offload_op, Code.RELOAD_BEFORE_OFFLOAD
    if reload_op is not None and consumer is not None:
        yield consumer, reload_op, Code.BACKWARD_BEFORE_RELOAD


def _check_host_links(instance: Instance, at: TaskEvents, report: Report) -> None:
    """Report an OUT or IN that starts while another has its link to the host."""
    on_link: dict[int, list[Event]] = {}
    for kind in (Kind.OUT, Kind.IN):
        for index, event in enumerate(at[kind]):
            if event is not None:
                stage = instance.stage_of[index // instance.microbatches % instance.virtual_stages]
                on_link.setdefault(stage if instance.host_link is None else instance.host_link[stage], []).append(event)
    for link, events in on_link.items():
        for longest, event in overlaps(events):
            message = f"{name_of(event)} starts at {shown(event.start)}, {name_of(longest)} ends at"
            report(Code.HOST_LINK_OVERLAP, f"host link {link}: {message} {shown(longest.end)}")


def _weight_without_b(instance: Instance, at: TaskEvents, index: int) -> Event | None:
    """Return the W that takes the gradient itself, where a virtual stage has no B; else ``None``."""
    backward = instance.backward_ticks
    has_none = backward is not None and backward[index // instance.microbatches % len(backward)] is None
    return at[Kind.W][index] if has_none else None
