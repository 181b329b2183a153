"""Arguments that may be given in several forms: a schedule or the result that has it, one of them or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zbopt.portfolio.result import Result
from zbopt.problem.schedule import Schedule

OneOrMore = Schedule | Result | Sequence[Schedule | Result] | Mapping[str, Schedule | Result]
"""One schedule, or one result that has a schedule; a list of them, or several by their names."""


def schedule_of(given: Schedule | Result) -> Schedule:
    """Return a schedule, or that of a result.

    Raises:
        ValueError: The result has none; the message says why.
    """
    return given if isinstance(given, Schedule) else given.require_schedule()


def by_name(given: OneOrMore) -> dict[str, Schedule | Result]:
    """Return what was given by name: the caller's, else what found each schedule, numbered where that is not unique.

    Raises:
        ValueError: Nothing was given.
    """
    if isinstance(given, Mapping):
        named = dict(given)
    else:
        listed = [given] if isinstance(given, Schedule | Result) else list(given)
        sources = [schedule_of(one).provenance.source for one in listed]
        unique = len(set(sources)) == len(sources)
        names = sources if unique else [f"{number}: {source}" for number, source in enumerate(sources, 1)]
        named = dict(zip(names, listed, strict=True))
    if not named:
        raise ValueError("no schedule is given; give one or more")
    return named
