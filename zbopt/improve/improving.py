"""Search for a better schedule from one that is known: by kernels or perturbation, then by annealing or more rules."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice, repeat

from zbopt.graph import TaskGraph
from zbopt.heuristics.tools.build import NotApplicableError
from zbopt.heuristics.v_auto import more_rules
from zbopt.improve.anneal import annealed
from zbopt.improve.kernel_search import kernels
from zbopt.improve.perturbation import perturbed
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule

log = logging.getLogger(__name__)

_KERNELS, _PERTURBING = "looking for kernels", "perturbing the best schedule"
_CHANGING_RULES = "changing dispatching rules"
"""Pieces of work, as the caller of ``solve`` is told."""

_MOST_OPS_TO_PERTURB = 6_000
"""Longer steps take too long to pack each time. Not measured; chosen so that a packing takes a fraction of a second."""
_PERTURBATIONS = 60
"""Perturbations in a row without a better schedule after which annealing is the better search. Not measured."""
_RULES_A_PERTURBATION = 3
"""Dispatching rules that are tried for each perturbation where annealing does not apply: there perturbation finds
little more. Not measured."""
_ROUNDS_A_KERNEL = 3
"""Rounds of annealing for each further kernel: annealing ends lower from some kernels than from others, and nothing
tells which. bench/README.md, "Windows of the whole step"."""
_VAIN_ROUNDS = 300
"""Rounds without a better schedule after which annealing ends, or half of all rounds, whichever is more: a later round
may still find one, but an engine may need the processor. Not measured."""


def improved(
    schedule: Schedule, graph: TaskGraph, seed: int, enough: Callable[[], bool]
) -> Iterator[tuple[str, Schedule | None]]:
    """Yield after each piece of work what it was, and a schedule that may be better, or ``None``.

    Args:
        schedule: Where to begin; of ``graph``'s instance.
        graph: The task graph.
        seed: Seed of all random choices.
        enough: Return whether kernels have had their share of the time.

    Raises:
        NotApplicableError: More than the ops of one step has to be placed, or activations are dropped.
    """
    found, further = [schedule], kernels(graph, seed)
    with suppress(NotApplicableError):
        for better in further:
            found += [better] if better is not None else []
            yield _KERNELS, better
            if enough():
                break
    perturbations = perturbed(schedule, graph, seed)
    if len(found) == 1 and len(graph.tasks) <= _MOST_OPS_TO_PERTURB:
        vain = 0
        while vain < _PERTURBATIONS:
            better = next(perturbations, None)
            found, vain = ([better], 0) if better is not None else (found, vain + 1)
            yield _PERTURBING, better
    try:
        yield from _annealed(found, graph, seed, further)
    except NotApplicableError as reason:
        log.info("%s", reason)
        rules = repeat((_CHANGING_RULES, _rules(graph.instance, seed)), _RULES_A_PERTURBATION)
        yield from _in_turns([(_PERTURBING, perturbations), *rules])


def _annealed(
    found: list[Schedule], graph: TaskGraph, seed: int, further: Iterator[Schedule | None]
) -> Iterator[tuple[str, Schedule | None]]:
    """Anneal all that was ``found``, and ``further`` kernels as they come; end after many rounds in vain."""
    vain = 0
    for n, better in enumerate(annealed(found, graph, seed)):
        vain = vain + 1 if better is None else 0
        yield "annealing the best schedules", better
        if vain > max(_VAIN_ROUNDS, n // 2):
            return
        if n % _ROUNDS_A_KERNEL == 0:
            for another in iter(partial(next, further, None), None):
                found.append(another)
                yield _KERNELS, another


def _in_turns(
    searches: Iterable[tuple[str, Iterator[Schedule | None]]],
) -> Iterator[tuple[str, Schedule | None]]:
    """Yield one result of each search in turn, until all have ended."""
    waiting = deque(searches)
    while waiting:
        doing, search = waiting.popleft()
        for better in islice(search, 1):
            yield doing, better
            waiting.append((doing, search))


def _rules(instance: Instance, seed: int) -> Iterator[Schedule | None]:
    """Try further dispatching rules, where the placement has any."""
    with suppress(NotApplicableError):
        yield from more_rules(instance, seed)
