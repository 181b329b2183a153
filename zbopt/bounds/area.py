"""Area: each microbatch holds memory for the length of its round trip, and a stage has only so much for so long.

models/bounds.md, "area". It holds for any placement: what a stage's virtual stages hold is added up.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from zbopt.bounds.stage import LeastTimes, held_for_weight, optimizer_tail, over_stages
from zbopt.bounds.understood import ONE_KIND, understands
from zbopt.graph.memory import least_left, static_memory
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective


# Not overlapped ops: a pair ends sooner, so that memory is held for a shorter time than the proof says.
@understands(ONE_KIND)
def area(instance: Instance) -> Bound | None:
    """Return the largest bound over the stages; ``None`` without a memory cap."""
    value = over_stages(instance, _of_stage) if instance.memory_cap is not None else None
    return None if value is None else Bound(value, "bound:area")


def _of_stage(times: LeastTimes, stage: int) -> int | None:
    instance = times.instance
    assert instance.memory_cap is not None, "asked only where memory limits"
    room = instance.memory_cap[stage] - static_memory(instance, stage)
    if room <= 0:
        return None
    virtual_stages = instance.virtual_stages_of(stage)
    needed = instance.microbatches * sum((_of_virtual_stage(times, v) for v in virtual_stages), Fraction(0))
    head = times.heads[virtual_stages[0]] if instance.objective is Objective.MAKESPAN else 0
    return head + ceil(needed / room) + optimizer_tail(instance, stage)


def _of_virtual_stage(times: LeastTimes, v: int) -> Fraction:
    """Return the least memory times time of one microbatch on ``v``: to the end of its gradient op, and of a lone W."""
    instance = times.instance
    until_gradient = least_left(instance, v) * (times.round_trips[v] + times.gradient(v))
    # Where the backward may be fused, no W waits.
    waiting = 0 if instance.has_bw(v) else held_for_weight(instance, v) * times.weight(v)
    return until_gradient + waiting
