"""A search over dispatching rules for V placement, by simulating one after the other; above all over idle time.

Some stage is idle the most, whatever the others do; these may then wait as long without making the largest span longer,
and a stage that waits for an op instead of beginning a W passes that op on sooner. How long each may wait is not known
before there is a schedule. So one run says it for the next, as the second pass of the published V schedule does (Qi et
al. 2024, arXiv 2401.10241, and the code beside it). What else decides is how many microbatches are on their way down,
and whether the first ones are held up on their way back up. Random changes of all of these look further. What comes of
one is all but chance, so that not the best rule alone is changed, but the best few that gave different values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, count, islice
from random import Random
from typing import Literal

from zbopt.heuristics.tools.build import OrderedOp
from zbopt.heuristics.tools.costs import Costs
from zbopt.heuristics.tools.dispatch import Dispatched, dispatch, dispatch_within
from zbopt.heuristics.tools.patience import OutOfTimeError, is_best
from zbopt.heuristics.tools.rule import Rule
from zbopt.problem.instance import Instance

_LEAST_RUNS, _MOST_RUNS = 24, 1000
_OPS_A_RUN = 1
"""Short steps leave little to choose."""
_FIRSTS = 100
"""All of them, where runs are not counted."""
_MOST_PASSES = 6
_LINES = ((0.94, 0.65), (0.75, 0.8), (0.75, 0.4), (0.85, 0.8), (0.94, 0.4), (0.85, 0.5))
"""Shares of memory for microbatches on the way down, on the first and on the last stage: what was best somewhere."""
_OLDER: tuple[Literal["warm-up", "never", "always"], ...] = ("warm-up", "never", "always")
_SURPRISES = (0.0, 0.01, 0.03, 0.1)

_KEPT = 8
"""Rules that are changed."""

_Known = tuple[Rule, Dispatched]
"""A rule and what it gave."""


def idle_search(name: str, instance: Instance, most_ops: int) -> list[list[OrderedOp]]:
    """The orders of the best run until out of time or after ``most_ops`` simulated ops.

    Args:
        name: The heuristic's name, for errors.
        instance: The problem.
        most_ops: What bounds the runs of a long step, but for 24 that are always allowed.

    Raises:
        CannotFitError: The rule cannot be sure to finish under the cap.
        OutOfTimeError: It was stopped before it had a schedule.
    """
    search = _Search(Costs(name, instance))
    ops = 3 * instance.virtual_stages * instance.microbatches
    runs = max(_LEAST_RUNS, min(_MOST_RUNS, ops // _OPS_A_RUN, most_ops // ops))
    try:
        known = [search.passed(*first) for first in search.firsts(runs // 5)]
        for _ in islice(search.wander(known, Random(0)), max(0, runs - search.runs)):
            pass
    except OutOfTimeError:
        if search.best is None:
            raise
    assert search.best is not None, "a rule has run"
    return search.best.orders


def longer_idle_search(name: str, instance: Instance, seed: int) -> Iterator[list[list[OrderedOp]] | None]:
    """After each run its orders, if they are the best so far, else ``None``; ends where nothing can be better.

    Args:
        name: The heuristic's name, for errors.
        instance: The problem.
        seed: Of the changes; none gives those of ``idle_search``.

    Raises:
        CannotFitError: The rule cannot be sure to finish under the cap.
        OutOfTimeError: It was stopped.
    """
    search = _Search(Costs(name, instance))
    known = [search.passed(*first) for first in search.firsts(_FIRSTS)]
    best = None
    for _ in chain((None,), search.wander(known, Random(seed + 1))):
        yield search.best.orders if search.best is not None and search.best is not best else None
        best = search.best


class _Search:
    """The best run so far, and how many there were."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.best: Dispatched | None = None
        self.runs = 0
        ticks = [costs.instance.ticks_of(v, costs.sequences[0][v][0]) for v in range(costs.instance.virtual_stages)]
        self.step = max(one.forward + one.backward_work() for one in ticks)

    def run(self, rule: Rule, most: int | None) -> Dispatched | None:
        """What a rule gives; ``None`` where its value is above ``most``."""
        found = dispatch(self.costs, rule) if most is None else dispatch_within(self.costs, rule, most)
        self.runs += 1
        if found is not None and (self.best is None or found.value < self.best.value):
            self.best = found
        return found

    def limits(self, first: float, last: float) -> tuple[int, ...]:
        """Most microbatches in flight on the way down, in shares of what the first and the last stage can hold."""
        instance, costs = self.costs.instance, self.costs
        p, m = instance.stages, instance.microbatches
        shares = [first + (last - first) * v / max(1, p - 1) for v in range(p)]
        held = [share * costs.cap[v] / max(1, costs.activation[v]) for v, share in enumerate(shares)]
        return (*(max(1, min(m, round(count))) for count in held), *[m] * p)

    def firsts(self, most: int) -> list[_Known]:
        """Rules without limits and with those of ``_LINES``, with and without turns: the best of each kind.

        A cap that is a whole number of forwards is as good as one with room for a forward less and what W still hold.
        """
        instance = self.costs.instance
        limits = dict.fromkeys([None, *(self.limits(*line) for line in _LINES)])
        rules = [
            Rule(some, alternate, least_fill=1.0, share_idle=True, older_first=older, spare=spare)
            for spare in ((None,) if instance.memory_cap is None else (None, (1,) * instance.stages))
            for some in limits
            for older in _OLDER
            for alternate in (True, False)
        ]
        best: dict[object, _Known] = {}
        for rule in rules[:most]:
            kind = rule.in_flight is None, rule.older_first, rule.spare
            found = self.run(rule, best[kind][1].value - 1 if kind in best else None)
            if found is not None:
                best[kind] = rule, found
        return list(best.values())

    def passed(self, rule: Rule, last: Dispatched) -> _Known:
        """Let the stages wait that were idle less than another, again and again until it is no better."""
        for _ in range(_MOST_PASSES):
            other = replace(rule, may_idle=_differences(last.idle))
            found = self.run(other, last.value - 1)
            if found is None:
                break
            rule, last = other, found
        return rule, last

    def wander(self, known: Iterable[_Known], random: Random) -> Iterator[None]:
        """Change one of the best few at random, and keep what is among the best few then; one rule for each value.

        Each turn is a run; there is one as long as a better value is possible.
        """
        best = {found.value: (rule, found) for rule, found in sorted(known, key=_value, reverse=True)[-_KEPT:]}
        for seed in count():
            if self.best is not None and is_best(self.best.value):
                return
            other = self.changed(*random.choice(list(best.values())), random, seed)
            found = self.run(other, None if len(best) < _KEPT else max(best))
            if found is not None:
                best[found.value] = other, found
            if len(best) > _KEPT:
                del best[max(best)]
            yield

    def changed(self, rule: Rule, found: Dispatched, random: Random, seed: int) -> Rule:
        """``rule``, which gave ``found``, with a few things changed."""
        known = rule.may_idle if random.random() < 0.5 else None
        idle = list(_differences(found.idle) if known is None else known)
        for stage in random.sample(range(len(idle)), min(len(idle), random.randint(0, 2))):
            idle[stage] = max(0, idle[stage] + random.randint(-self.step, self.step))
        older = random.choice(_OLDER) if random.random() < 0.1 else rule.older_first
        limits = rule.in_flight
        if limits is not None and random.random() < 0.5:
            limits = self.shifted(limits, random)
        surprise = random.choice(_SURPRISES)
        return replace(rule, in_flight=limits, may_idle=tuple(idle), older_first=older, surprise=surprise, seed=seed)

    def shifted(self, limits: tuple[int, ...], random: Random) -> tuple[int, ...]:
        """One more or one less on a run of stages on the way down."""
        p = self.costs.instance.stages
        first = random.randrange(p)
        last = min(p, first + random.choice((1, 1, 2, 4, 8, 16)))
        step = random.choice((-1, 1))
        return tuple(max(1, limit + step) if first <= v < last else limit for v, limit in enumerate(limits))


def _value(known: _Known) -> int:
    return known[1].value


def _differences(idle: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(idle) - ticks for ticks in idle)
