"""Activations that are dropped after their F and brought back before their backward: what has to be there, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from zbopt.problem.instance import Drop, Instance, Kind, MicrobatchTimes
from zbopt.problem.schedule import Event
from zbopt.validator.held import overlaps
from zbopt.validator.verdict import Code, name_of, shown

At = Mapping[Kind, Sequence[Event | None]]
"""The event of each task, by kind and place: virtual stages of all iterations in turn, microbatches within each."""
Report = Callable[[Code, str], None]

FORBIDDEN = {
    Kind.R: Code.RECOMPUTE_FORBIDDEN,
    Kind.OUT: Code.OFFLOAD_FORBIDDEN,
    Kind.IN: Code.OFFLOAD_FORBIDDEN,
}
TOO_EARLY = (
    Code.RECOMPUTE_BEFORE_FORWARD,
    Code.BACKWARD_BEFORE_RECOMPUTE,
    Code.OFFLOAD_BEFORE_FORWARD,
    Code.RELOAD_BEFORE_OFFLOAD,
    Code.BACKWARD_BEFORE_RELOAD,
)


def drop_times(instance: Instance, times_of: Instance | MicrobatchTimes) -> dict[Kind, tuple[int | None, ...]]:
    """Ticks of R, OUT and IN by virtual stage; ``None`` where there must not be one."""
    rows = {
        Kind.R: (instance.recompute, times_of.recompute_ticks),
        Kind.OUT: (instance.offload, instance.offload_ticks),
        Kind.IN: (instance.offload, instance.reload_ticks),
    }
    never, none = (Drop.NEVER,) * instance.virtual_stages, (None,) * instance.virtual_stages
    return {
        kind: tuple(None if mode is Drop.NEVER else t for mode, t in zip(modes or never, times or none, strict=True))
        for kind, (modes, times) in rows.items()
    }


def check_drops(instance: Instance, at: At, report: Report) -> None:
    """Report what is missing or too much of R, OUT and IN, every op that does not wait for what it needs, and links."""
    if instance.recompute is None and instance.offload is None:
        return
    never = (Drop.NEVER,) * instance.virtual_stages
    modes = list(zip(instance.recompute or never, instance.offload or never, strict=True)) * instance.iterations
    for place, forward in enumerate(at[Kind.F]):
        if forward is not None:
            _check_place(forward, *modes[place // instance.microbatches], place, at, report)
    for event, awaited, code in drop_needs(instance, at):
        if awaited is None:
            report(Code.MISSING_DEPENDENCY, f"{name_of(event)} needs what comes before it, which is not there")
        elif event.start < awaited.end:
            message = (
                f"{name_of(event)} starts at {shown(event.start)}, {name_of(awaited)} ends at {shown(awaited.end)}"
            )
            report(code, message)
    _check_host_links(instance, at, report)


def _check_place(forward: Event, recompute: Drop, offload: Drop, place: int, at: At, report: Report) -> None:
    again, out, back = (at[kind][place] for kind in (Kind.R, Kind.OUT, Kind.IN))
    if recompute is Drop.ALWAYS and again is None:
        report(Code.RECOMPUTE_MISSING, f"{name_of(forward)} is always recomputed, but there is no R of it")
    if offload is Drop.ALWAYS and (out is None or back is None):
        report(Code.OFFLOAD_MISSING, f"{name_of(forward)} is always offloaded, but there is not both OUT and IN of it")
    elif (out is None) != (back is None):
        report(Code.OFFLOAD_UNPAIRED, f"{name_of(out or back or forward)} is there, but not both OUT and IN")
    if again is not None and (out is not None or back is not None):
        report(Code.DROPPED_TWICE, f"{name_of(forward)} is both recomputed and offloaded")


def drop_needs(instance: Instance, at: At) -> Iterator[tuple[Event, Event | None, Code]]:
    """(event, what it waits for, the rule): R and OUT for F, IN for OUT, and what takes the gradient for R and IN."""
    if instance.recompute is None and instance.offload is None:
        return
    for place, forward in enumerate(at[Kind.F]):
        again, out, back = (at[kind][place] for kind in (Kind.R, Kind.OUT, Kind.IN))
        if again is None and out is None and back is None:
            continue
        taker = at[Kind.BW][place] or at[Kind.B][place] or _lone_weight(instance, at, place)
        if again is not None:
            yield again, forward, Code.RECOMPUTE_BEFORE_FORWARD
            if taker is not None:
                yield taker, again, Code.BACKWARD_BEFORE_RECOMPUTE
        if out is not None:
            yield out, forward, Code.OFFLOAD_BEFORE_FORWARD
        if back is not None and out is not None:
            yield back, out, Code.RELOAD_BEFORE_OFFLOAD
        if back is not None and taker is not None:
            yield taker, back, Code.BACKWARD_BEFORE_RELOAD


def _check_host_links(instance: Instance, at: At, report: Report) -> None:
    """One OUT or IN at a time on each link to the host."""
    rows: dict[int, list[Event]] = {}
    for kind in (Kind.OUT, Kind.IN):
        for place, event in enumerate(at[kind]):
            if event is not None:
                stage = instance.stage_of[place // instance.microbatches % instance.virtual_stages]
                rows.setdefault(stage if instance.host_link is None else instance.host_link[stage], []).append(event)
    for link, row in rows.items():
        for longest, event in overlaps(row):
            message = f"{name_of(event)} starts at {shown(event.start)}, {name_of(longest)} ends at"
            report(Code.HOST_LINK_OVERLAP, f"host link {link}: {message} {shown(longest.end)}")


def _lone_weight(instance: Instance, at: At, place: int) -> Event | None:
    """The W that takes the gradient itself, where a virtual stage has no B."""
    backward = instance.backward_ticks
    has_none = backward is not None and backward[place // instance.microbatches % len(backward)] is None
    return at[Kind.W][place] if has_none else None
