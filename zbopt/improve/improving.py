"""Search for a better schedule from one that is there: by kernels or shaking, then by annealing or further rules."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice, repeat

from zbopt.graph import TaskGraph
from zbopt.heuristics.tools.build import NotApplicableError
from zbopt.heuristics.v_auto import more_rules
from zbopt.improve.anneal import annealed
from zbopt.improve.kernel_search import kernels
from zbopt.improve.shake import shaken
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule

log = logging.getLogger(__name__)

_MOST_OPS_TO_SHAKE = 6_000
"""Longer steps take too long to pack each time."""
_SHAKES = 60
"""Shakes in a row without a better schedule after which annealing is the better search."""
_RULES_A_SHAKE = 3
"""Where annealing is none, shaking finds little more."""
_ROUNDS_A_KERNEL = 3
"""Rounds of annealing for each further kernel: annealing ends lower from some than from others, and none can tell."""
_VAIN_ROUNDS = 300
"""Rounds without a better schedule after which annealing ends, or half of all rounds, whichever is more."""


def improved(
    schedule: Schedule, graph: TaskGraph, seed: int, enough: Callable[[], bool]
) -> Iterator[tuple[str, Schedule | None]]:
    """What is done, and after each piece of it a schedule that may be better, or ``None``.

    Args:
        schedule: Where to begin; of ``graph``'s instance.
        graph: The task graph.
        seed: Of all random choices.
        enough: Whether kernels have had their time.

    Raises:
        NotApplicableError: More than the ops of one step has to be placed, or activations are dropped.
    """
    found, further = [schedule], kernels(graph, seed)
    with suppress(NotApplicableError):
        for better in further:
            found += [better] if better is not None else []
            yield "looking for kernels", better
            if enough():
                break
    vain = 0 if len(found) == 1 and len(graph.tasks) <= _MOST_OPS_TO_SHAKE else _SHAKES
    shakes = shaken(schedule, graph, seed)
    while vain < _SHAKES:
        better = next(shakes, None)
        found, vain = ([better], 0) if better is not None else (found, vain + 1)
        yield "shaking the best schedule", better
    try:
        vain = 0
        for n, better in enumerate(annealed(found, graph, seed)):
            vain = vain + 1 if better is None else 0
            yield "annealing the best schedules", better
            if vain > max(_VAIN_ROUNDS, n // 2):
                return
            if n % _ROUNDS_A_KERNEL == 0:
                for another in iter(partial(next, further, None), None):
                    found.append(another)
                    yield "looking for kernels", another
    except NotApplicableError as reason:
        log.info("%s", reason)
        rules = repeat(("changing dispatching rules", _rules(graph.instance, seed)), _RULES_A_SHAKE)
        turns = deque([("shaking the best schedule", shakes), *rules])
        while turns:
            doing, search = turns.popleft()
            for better in islice(search, 1):
                yield doing, better
                turns.append((doing, search))


def _rules(instance: Instance, seed: int) -> Iterator[Schedule | None]:
    """Further rules, where the placement has any."""
    with suppress(NotApplicableError):
        yield from more_rules(instance, seed)
