"""Turns: the round trip of a stage that holds several virtual stages, such as both arms of a V.

models/bounds.md, "turns". Before the first gradient comes back to a stage's first virtual stage, and after the last
gradient has left the others, memory and the way between them limit what the stage can do.
"""

from __future__ import annotations

from collections.abc import Iterator

from zbopt.bounds.stage import LeastTimes, Waiting, held_for_weight, most_work, optimizer_tail, over_stages, slots
from zbopt.bounds.understood import ONE_KIND, understands
from zbopt.graph.memory import least_left, static_memory, whole_memory
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective


# Not unlike microbatches: it counts microbatches in order, and all of them on each virtual stage. Not overlapped ops: a
# pair fits more work into both windows than the load counts.
@understands(ONE_KIND)
def turns(instance: Instance) -> Bound | None:
    """Return the largest bound over the stages that hold several virtual stages; ``None`` if none does."""
    value = over_stages(instance, _of_stage)
    return None if value is None else Bound(value, "bound:turns")


def _of_stage(times: LeastTimes, stage: int) -> int | None:
    instance = times.instance
    first, *others = instance.virtual_stages_of(stage)
    if not others:
        return None
    head = times.heads[first] if instance.objective is Objective.MAKESPAN else 0
    return head + times.work(stage) + idle_ticks(times, stage) + optimizer_tail(instance, stage)


def idle_ticks(times: LeastTimes, stage: int) -> int:
    """Return the least idle time of a stage of several virtual stages, from its first start to its last gradient op."""
    instance = times.instance
    first, second = instance.virtual_stages_of(stage)[:2]
    count = slots(instance, first)
    before = max(_before_turn(times, stage), before_first_gradient(times, stage))
    after = 0 if count is None else max(0, _way_back(times, first, second) - _most_work(times, stage))
    return before + after


def _before_turn(times: LeastTimes, stage: int) -> int:
    """Return the least idle time of a stage before its first F of a later virtual stage, or its first gradient op."""
    instance = times.instance
    first, second = instance.virtual_stages_of(stage)[:2]
    m, own = instance.microbatches, times.forward(first) + times.again(first)
    count = slots(instance, first)
    rest = times.work(stage) // m - own - times.backward_work(first)
    begun = m if count is None else count
    way = times.heads[second] - times.heads[first]
    return max(0, way - begun * own, times.round_trips[first] - begun * (own + rest))


def before_first_gradient(times: LeastTimes, stage: int) -> int:
    """Return the least idle time of a stage from its first start until its first gradient can be there."""
    instance = times.instance
    virtual_stages = instance.virtual_stages_of(stage)
    until = times.heads[virtual_stages[-1]] - times.heads[virtual_stages[0]] + times.round_trips[virtual_stages[-1]]
    ticks = {v: times.forward(v) + times.again(v) for v in virtual_stages}
    if instance.memory_cap is None:
        return max(0, until - instance.microbatches * sum(ticks.values()))
    room = instance.memory_cap[stage] - static_memory(instance, stage)
    # The forward that starts last holds its whole activation, the others the least that may be left of theirs.
    most = max(
        ticks[last]
        + most_work(
            room - whole_memory(instance, last),
            [Waiting(least_left(instance, v), ticks[v], instance.microbatches - (v == last)) for v in virtual_stages],
        )
        for last in virtual_stages
    )
    return max(0, until - most)


def _way_back(times: LeastTimes, first: int, other: int) -> int:
    """Return the least time from the end of the gradient op of ``other`` to the gradient's arrival on ``first``."""
    lags = sum(times.instance.lag_ticks(v, v - 1) for v in range(first + 1, other + 1))
    return lags + sum(times.gradient(v) for v in range(first + 1, other))


def _most_work(times: LeastTimes, stage: int) -> int:
    """Return the most work that can be live while a gradient is on its way to the first virtual stage of ``stage``."""
    instance = times.instance
    assert instance.memory_cap is not None, "asked only where memory limits"
    first = instance.virtual_stages_of(stage)[0]
    room = instance.memory_cap[stage] - static_memory(instance, stage) - least_left(instance, first)
    return most_work(room, list(_live(times, stage)))


def _live(times: LeastTimes, stage: int) -> Iterator[Waiting]:
    """Yield microbatches that wait for a gradient on the first virtual stage, or for a W on any."""
    instance = times.instance
    first, m = instance.virtual_stages_of(stage)[0], instance.microbatches
    yield Waiting(least_left(instance, first), times.again(first) + times.backward_work(first), m)
    for v in instance.virtual_stages_of(stage):
        yield Waiting(held_for_weight(instance, v), times.weight(v), m)
