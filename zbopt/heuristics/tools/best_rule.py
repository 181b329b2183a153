"""The choice of the best of several dispatching rules: each is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from zbopt.graph.memory import chooses
from zbopt.heuristics.tools.build import CannotFitError
from zbopt.heuristics.tools.costs import Costs
from zbopt.heuristics.tools.dispatch import Dispatched, dispatch, dispatch_within
from zbopt.heuristics.tools.patience import OutOfTimeError, is_best, limited, never
from zbopt.heuristics.tools.rule import Rule
from zbopt.problem.instance import Barrier, Instance

_DROPS: tuple[Literal["no-room", "never", "always"], ...] = ("no-room", "never", "always")


def best_of(name: str, instance: Instance, rules: Sequence[Rule], most_ops: int) -> tuple[Rule, Dispatched]:
    """Return the first of the best rules, and what it gave.

    No further rule is tried after ``most_ops`` simulated ops, when time is over, or when nothing can be better. The
    first rule is always tried, however little time there is: some schedule has to come out.

    Raises:
        CannotFitError: No rule can be sure to finish under the cap.
    """
    if chooses(instance):
        rules = [replace(rule, drop=drop) for rule in rules for drop in _DROPS]
    ops = max(1, 3 * instance.virtual_stages * instance.microbatches)
    tried = rules[: max(2 * (len(_DROPS) if chooses(instance) else 1), most_ops // ops)]
    costs: dict[tuple[bool, bool], Costs | CannotFitError] = {}
    for rule in tried:
        if (key := (rule.fuse, rule.drop == "never")) not in costs:
            costs[key] = _costs(name, instance, *key)
    fitting = [
        (rule, cost) for rule in tried if not isinstance(cost := costs[rule.fuse, rule.drop == "never"], CannotFitError)
    ]
    if not fitting:
        raise next(cost for cost in costs.values() if isinstance(cost, CannotFitError))
    (first, cost), *others = fitting
    with limited(never):
        best = first, dispatch(cost, first)
    # Where more than the ops takes time, a simulation says less than its schedule will.
    exact = instance.is_simple and instance.barrier is Barrier.NONE and instance.reduction_ticks is None
    with suppress(OutOfTimeError):
        for rule, cost in others:
            if exact and is_best(best[1].value):
                break
            found = dispatch_within(cost, rule, best[1].value - 1)
            if found is not None:
                best = rule, found
    return best


def _costs(name: str, instance: Instance, fuse: bool, keep: bool) -> Costs | CannotFitError:
    try:
        return Costs(name, instance, fuse=fuse, keep=keep)
    except CannotFitError as fault:
        return fault
