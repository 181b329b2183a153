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
"""Choices of when to drop activations that a rule is tried with, where the instance leaves the choice."""


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
    (first, cost), *others = _fitting(name, instance, tried)
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


def _fitting(name: str, instance: Instance, rules: Sequence[Rule]) -> list[tuple[Rule, Costs]]:
    """Return the rules that are sure to finish under the cap, each with the costs that it counts.

    Raises:
        CannotFitError: None is.
    """
    known: dict[tuple[bool, bool], Costs | CannotFitError] = {}
    fitting: list[tuple[Rule, Costs]] = []
    for rule in rules:
        key = rule.fuse, rule.drop == "never"
        if key not in known:
            known[key] = _costs(name, instance, *key)
        costs = known[key]
        if isinstance(costs, Costs):
            fitting.append((rule, costs))
    if not fitting:
        raise next(fault for fault in known.values() if isinstance(fault, CannotFitError))
    return fitting


def _costs(name: str, instance: Instance, fuse: bool, keep: bool) -> Costs | CannotFitError:
    """Return the costs of an instance, or why no rule that counts them so is sure to finish."""
    try:
        return Costs(name, instance, fuse=fuse, keep=keep)
    except CannotFitError as fault:
        return fault
