"""Automatic zero-bubble schedules: the aim of arXiv 2401.10241, section 3.1, by list scheduling under a few rules."""

from __future__ import annotations

from zbopt.heuristics.tools.best_rule import best_of
from zbopt.heuristics.tools.build import (
    fitted_schedule,
    require_one_virtual_stage_a_stage,
    require_split,
)
from zbopt.heuristics.tools.rule import Rule
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule

_MOST_OPS = 400_000
"""Ops to simulate over all rules: a few seconds. Not measured in bench/."""


def zb_auto(instance: Instance) -> Schedule:
    """Return the best of a few rules on how deep to warm up and when a W may fill a gap.

    Raises:
        NotApplicableError: A stage holds several virtual stages, or the backward is never split.
        CannotFitError: A stage's cap is below one activation.
    """
    require_one_virtual_stage_a_stage("zb-auto", instance)
    require_split("zb-auto", instance)
    rules = [
        Rule(in_flight=limits, alternate=alternate, least_fill=fill, share_idle=shares)
        for alternate in (True, False)
        for fill, shares in ((1.0, True), (0.0, False), (0.25, True))
        for limits in warm_ups(instance)
    ]
    _, best = best_of("zb-auto", instance, rules, _MOST_OPS)
    return fitted_schedule("zb-auto", instance, best.orders)


def warm_ups(instance: Instance) -> list[tuple[int, ...] | None]:
    """Return limits on the microbatches in flight, by virtual stage, to try; ``None``: no limit but memory.

    They are as many forwards as end before the first gradient can arrive, one more, those of ZB-H1, and of ZB-H2.
    """
    m = instance.microbatches
    waits = _waits(instance)
    forward, behind = instance.forward_ticks, _behind(instance)
    options: list[tuple[int, ...] | None] = [
        tuple(1 + wait // ticks for wait, ticks in zip(waits, forward, strict=True)),
        None,
        tuple(behind),
        tuple(1 - (-wait // ticks) for wait, ticks in zip(waits, forward, strict=True)),
        tuple(2 * count - 1 for count in behind),
    ]
    capped = [None if option is None else tuple(min(m, limit) for limit in option) for option in options]
    return list(dict.fromkeys(capped))


def _waits(instance: Instance) -> list[int]:
    """Return by virtual stage the ticks from the end of a first F to its gradient's arrival on an empty pipeline."""
    waits = [0] * instance.virtual_stages
    for v in reversed(range(instance.virtual_stages)):
        after = instance.next_of(v)
        if after is None:
            continue
        backward = (instance.backward_ticks or instance.fused_backward_ticks or ())[after]
        assert backward is not None, "only the first virtual stage of a route has no B"
        waits[v] = waits[after] + instance.forward_ticks[after] + backward + 2 * instance.lag_ticks(v, after)
    return waits


def _behind(instance: Instance) -> list[int]:
    """Count the virtual stages from each one to the end of its route, itself included."""
    behind = [1] * instance.virtual_stages
    for v in reversed(range(instance.virtual_stages)):
        after = instance.next_of(v)
        behind[v] += 0 if after is None else behind[after]
    return behind
