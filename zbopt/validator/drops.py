"""Activations that are dropped after their F and brought back before their backward: what has to be there, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from zbopt.instance import Drop, Instance, Kind
from zbopt.schedule import Event
from zbopt.validator.verdict import Code, name_of, shown

At = Mapping[Kind, Sequence[Event | None]]
"""The event of each task, by kind and place: virtual stages of all iterations in turn, microbatches within each."""
Report = Callable[[Code, str], None]

FORBIDDEN = {Kind.R: Code.RECOMPUTE_FORBIDDEN}
TOO_EARLY = (Code.RECOMPUTE_BEFORE_FORWARD, Code.BACKWARD_BEFORE_RECOMPUTE)


def recompute_times(instance: Instance) -> tuple[int | None, ...]:
    """Ticks of R by virtual stage; ``None`` where there must not be one."""
    modes = instance.recompute or (Drop.NEVER,) * instance.virtual_stages
    times = instance.recompute_ticks or (None,) * instance.virtual_stages
    return tuple(None if mode is Drop.NEVER else ticks for mode, ticks in zip(modes, times, strict=True))


def check_drops(instance: Instance, at: At, report: Report) -> None:
    """Report every R that is missing, and every op that does not wait for what it needs."""
    for row, mode in enumerate((instance.recompute or ()) * instance.iterations):
        for place in range(row * instance.microbatches, (row + 1) * instance.microbatches):
            forward = at[Kind.F][place]
            if mode is Drop.ALWAYS and forward is not None and at[Kind.R][place] is None:
                report(Code.RECOMPUTE_MISSING, f"{name_of(forward)} is always recomputed, but there is no R of it")
    for event, awaited, code in drop_needs(instance, at):
        if awaited is None:
            report(Code.MISSING_DEPENDENCY, f"{name_of(event)} needs its F, which is not in the schedule")
        elif event.start < awaited.end:
            message = (
                f"{name_of(event)} starts at {shown(event.start)}, {name_of(awaited)} ends at {shown(awaited.end)}"
            )
            report(code, message)


def drop_needs(instance: Instance, at: At) -> Iterator[tuple[Event, Event | None, Code]]:
    """(event, what it waits for, the rule): R for its F, and what takes the gradient for its R."""
    for place, again in enumerate(at[Kind.R]):
        if again is None:
            continue
        yield again, at[Kind.F][place], Code.RECOMPUTE_BEFORE_FORWARD
        taker = at[Kind.BW][place] or at[Kind.B][place] or _lone_weight(instance, at, place)
        if taker is not None:
            yield taker, again, Code.BACKWARD_BEFORE_RECOMPUTE


def _lone_weight(instance: Instance, at: At, place: int) -> Event | None:
    """The W that takes the gradient itself, where a virtual stage has no B."""
    backward = instance.backward_ticks
    has_none = backward is not None and backward[place // instance.microbatches % len(backward)] is None
    return at[Kind.W][place] if has_none else None
