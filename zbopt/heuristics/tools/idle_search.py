"""A search over dispatching rules for V placement, by simulating one after the other, above all over idle time.

Some stage is idle the most, whatever the others do. The others may then wait as long without making the largest span
longer, and a stage that waits for an op instead of beginning a W passes that op on sooner. How long each may wait is
not known before there is a schedule. So one run says it for the next, as the second pass of the published V schedule
does (Qi et al. 2024, arXiv 2401.10241, and the code beside it). The number of microbatches on their way down, and
whether the first ones are held up on their way back up, decide as well. Random changes of all of these look further.
The value after one change is nearly random, so that not the best rule alone is changed, but the best few that gave
different values.
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
"""Runs on a long and on a short step: bench/README.md, "The search over idle time", has what more runs find."""
_OPS_A_RUN = 1
"""Ops of a step for each run that is allowed: short steps leave little to choose."""
_FIRSTS = 100
"""Rules to begin with where runs are not counted: all that there are."""
_MOST_PASSES = 6
"""Most passes that take idle times over from the run before. Not measured in bench/."""
_LINES = ((0.94, 0.65), (0.75, 0.8), (0.75, 0.4), (0.85, 0.8), (0.94, 0.4), (0.85, 0.5))
"""Shares of memory for microbatches on the way down, on the first and on the last stage: each was best somewhere."""
_OLDER: tuple[Literal["warm-up", "never", "always"], ...] = ("warm-up", "never", "always")
"""Choices of ``Rule.older_first``, the most useful first."""
_OLDER_SHARE, _LIMITS_SHARE, _IDLE_SHARE = 0.1, 0.5, 0.5
"""Shares of the changes that draw ``older_first`` anew, shift ``in_flight``, and keep ``may_idle``. Not measured."""
_SURPRISES = (0.0, 0.01, 0.03, 0.1)
"""Shares of surprises that a change may have. Not measured."""

_POOL = 8
"""Rules that are changed: bench/README.md, "The search over idle time"."""

_Trial = tuple[Rule, Dispatched]
"""A rule and what it gave."""


def idle_search(name: str, instance: Instance, most_ops: int) -> list[list[OrderedOp]]:
    """Return the orders of the best run until time is over or ``most_ops`` ops are simulated.

    Args:
        name: The heuristic's name, for errors.
        instance: The problem.
        most_ops: Limit on the runs of a long step, beside the 24 that are always allowed.

    Raises:
        CannotFitError: The rule cannot be sure to finish under the cap.
        OutOfTimeError: It was stopped before it had a schedule.
    """
    search = _RuleSearch(Costs(name, instance))
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
    """Yield after each run its orders if they are the best so far, else ``None``; end where nothing can be better.

    Args:
        name: The heuristic's name, for errors.
        instance: The problem.
        seed: Seed of the changes; whatever it is, they are not those of ``idle_search``.

    Raises:
        CannotFitError: The rule cannot be sure to finish under the cap.
        OutOfTimeError: It was stopped.
    """
    search = _RuleSearch(Costs(name, instance))
    known = [search.passed(*first) for first in search.firsts(_FIRSTS)]
    best = None
    for _ in chain((None,), search.wander(known, Random(seed + 1))):
        yield search.best.orders if search.best is not None and search.best is not best else None
        best = search.best


class _RuleSearch:
    """Search over rules, with the best run so far and the number of runs."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.best: Dispatched | None = None
        self.runs = 0
        ticks = [costs.instance.ticks_of(v, costs.sequences[0][v][0]) for v in range(costs.instance.virtual_stages)]
        self.step = max(one.forward + one.backward_work() for one in ticks)

    def run(self, rule: Rule, most: int | None) -> Dispatched | None:
        """Simulate a rule; ``None``: its value is above ``most``."""
        found = dispatch(self.costs, rule) if most is None else dispatch_within(self.costs, rule, most)
        self.runs += 1
        if found is not None and (self.best is None or found.value < self.best.value):
            self.best = found
        return found

    def limits(self, first: float, last: float) -> tuple[int, ...]:
        """Return limits on microbatches on their way down: shares of what the first and the last stage can hold."""
        instance, costs = self.costs.instance, self.costs
        p, m = instance.stages, instance.microbatches
        shares = [first + (last - first) * v / max(1, p - 1) for v in range(p)]
        counts = [share * costs.cap[v] / max(1, costs.activation[v]) for v, share in enumerate(shares)]
        return (*(max(1, min(m, round(count))) for count in counts), *[m] * p)

    def firsts(self, most: int) -> list[_Trial]:
        """Return the best of each kind of rule: without limits or with those of ``_LINES``, alternating or not.

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
        best: dict[object, _Trial] = {}
        for rule in rules[:most]:
            kind = rule.in_flight is None, rule.older_first, rule.spare
            found = self.run(rule, best[kind][1].value - 1 if kind in best else None)
            if found is not None:
                best[kind] = rule, found
        return list(best.values())

    def passed(self, rule: Rule, last: Dispatched) -> _Trial:
        """Let stages that were idle less than another wait, again and again until that is no better."""
        for _ in range(_MOST_PASSES):
            other = replace(rule, may_idle=_differences(last.idle))
            found = self.run(other, last.value - 1)
            if found is None:
                break
            rule, last = other, found
        return rule, last

    def wander(self, known: Iterable[_Trial], random: Random) -> Iterator[None]:
        """Change one of the best few rules at random, and keep the change if it is among the best few then.

        Only one rule is kept for each value. Yields after each run, as long as a better value is possible.
        """
        best = {found.value: (rule, found) for rule, found in sorted(known, key=_value, reverse=True)[-_POOL:]}
        for seed in count():
            if self.best is not None and is_best(self.best.value):
                return
            other = self.changed(*random.choice(list(best.values())), random, seed)
            found = self.run(other, None if len(best) < _POOL else max(best))
            if found is not None:
                best[found.value] = other, found
            if len(best) > _POOL:
                del best[max(best)]
            yield

    def changed(self, rule: Rule, found: Dispatched, random: Random, seed: int) -> Rule:
        """Return ``rule``, which gave ``found``, with a few attributes changed."""
        known = rule.may_idle if random.random() < _IDLE_SHARE else None
        idle = list(_differences(found.idle) if known is None else known)
        for stage in random.sample(range(len(idle)), min(len(idle), random.randint(0, 2))):
            idle[stage] = max(0, idle[stage] + random.randint(-self.step, self.step))
        older = random.choice(_OLDER) if random.random() < _OLDER_SHARE else rule.older_first
        limits = rule.in_flight
        if limits is not None and random.random() < _LIMITS_SHARE:
            limits = self.shifted(limits, random)
        surprise = random.choice(_SURPRISES)
        return replace(rule, in_flight=limits, may_idle=tuple(idle), older_first=older, surprise=surprise, seed=seed)

    def shifted(self, limits: tuple[int, ...], random: Random) -> tuple[int, ...]:
        """Return limits with one more or one less on some neighbouring stages on the way down."""
        p = self.costs.instance.stages
        first = random.randrange(p)
        last = min(p, first + random.choice((1, 1, 2, 4, 8, 16)))
        step = random.choice((-1, 1))
        return tuple(max(1, limit + step) if first <= v < last else limit for v, limit in enumerate(limits))


def _value(known: _Trial) -> int:
    return known[1].value


def _differences(idle: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(idle) - ticks for ticks in idle)
