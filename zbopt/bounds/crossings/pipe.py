"""Part of an instance that crossings keep: F and B of stages in a row, and on its first stage W and the memory."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from zbopt.bounds.stage import LeastTimes, held_for_weight, optimizer_tail, room_beside_forward, slots
from zbopt.bounds.understood import COMMON, is_understood
from zbopt.graph.memory import least_left
from zbopt.problem.instance import Instance, Objective

UNDERSTOOD = COMMON
"""States know of F, B and W on stages in a row, one iteration, and microbatches that are alike and hold their
activation until B or W. So backwards that may be fused, dropped activations, several routes or iterations are not
understood; transfers that are events, and late inputs, could be (they only forbid schedules), but were never tried."""

_MOST_WAITING = 3
"""W waiting at once for each microbatch in flight; where memory allows more, they are left out. More W make more states
and a bound that is no higher where memory is not short of them. Not measured; chosen."""


@dataclass(frozen=True, slots=True)
class Pipe:
    """Describe stages ``first`` and on of a linear pipeline of microbatches that are alike; times in ticks, by stage.

    Attributes:
        first: The stage whose memory limits.
        forward: Time of F.
        backward: Time of B.
        weight: Time of W.
        down: Lag from each stage to the next one; 0 for the last.
        up: Lag back from the next stage; 0 for the last.
        each: Memory of the first stage that a microbatch holds between its F and the end of its B.
        waiting: The same until the end of its W; 0: W of the first stage is left out, but for the very last one.
        room: What the start of an F leaves to other microbatches.
        head: Least time from the first start of all to the first F.
        after_gradient: Least time from the end of the last B of the first stage to the end of all that follows it.
        after_weight: The same from the end of the last W there.
        whole: All stages count: the last end of a stage is a B, and its W.
    """

    first: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    down: tuple[int, ...]
    up: tuple[int, ...]
    each: int
    waiting: int
    room: int
    head: int
    after_gradient: int
    after_weight: int
    whole: bool

    def fits(self, in_flight: int, waiting: int) -> bool:
        """Return whether an F of the first stage may start beside so many microbatches before and after their B."""
        return in_flight * self.each + waiting * self.waiting <= self.room


def pipe_of(instance: Instance, stage: int) -> Pipe | None:
    """Return the pipeline from ``stage`` on; ``None`` where this argument says nothing of it."""
    if not _applies(instance) or slots(instance, stage) in (None, 0):
        return None
    times, last = LeastTimes(instance), instance.stages - 1
    stages = range(stage, instance.stages)
    each, waiting = least_left(instance, stage), held_for_weight(instance, stage)
    room = room_beside_forward(instance, stage)
    if waiting * _MOST_WAITING * (room / each + 1) < room:
        waiting = Fraction(0)
    unit = lcm(each.denominator, waiting.denominator, room.denominator)
    span = instance.objective is Objective.MAX_STAGE_SPAN
    onward = 0
    if stage > 0 and not span:
        onward = instance.lag_ticks(stage, stage - 1) + times.gradient_tails[stage - 1]
    return Pipe(
        first=stage,
        forward=tuple(times.forward(s) for s in stages),
        backward=tuple(times.gradient(s) for s in stages),
        weight=tuple(times.weight(s) for s in stages),
        down=tuple(0 if s == last else instance.lag_ticks(s, s + 1) for s in stages),
        up=tuple(0 if s == last else instance.lag_ticks(s + 1, s) for s in stages),
        each=int(each * unit),
        waiting=int(waiting * unit),
        room=int(room * unit),
        head=0 if span else times.heads[stage],
        after_gradient=onward,
        after_weight=optimizer_tail(instance, stage),
        whole=not span,
    )


def _applies(instance: Instance) -> bool:
    """Return whether the pipeline is linear, and every virtual stage has a B."""
    if not is_understood(instance, UNDERSTOOD):
        return False
    return instance.is_linear and all(instance.has_b(v) for v in range(instance.virtual_stages))
