"""Limits on how long a heuristic may go on: whoever calls one sets them, and the innermost loops of all ask.

The limit is in the context and not in every signature: a heuristic stays a plain function of an instance, and one that
knows nothing of limits is stopped too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class OutOfTimeError(RuntimeError):
    """Say that a heuristic was stopped before it had a schedule."""


def never() -> bool:
    """Return ``False``: there is no limit."""
    return False


_over: ContextVar[Callable[[], bool]] = ContextVar("over", default=never)
"""The question whether time is over, for heuristics that run in this context."""
_bound: ContextVar[int | None] = ContextVar("bound", default=None)
"""A bound on the value of any schedule, for heuristics that run in this context; ``None``: not known."""


@contextmanager
def limited(over: Callable[[], bool]) -> Iterator[None]:
    """Stop heuristics called inside once ``over()`` is true: with the best they have, or with ``OutOfTimeError``."""
    token = _over.set(over)
    try:
        yield
    finally:
        _over.reset(token)


@contextmanager
def bounded(bound: int) -> Iterator[None]:
    """Tell heuristics called inside that no schedule has a value below ``bound``: one of that value is enough."""
    token = _bound.set(bound)
    try:
        yield
    finally:
        _bound.reset(token)


def is_best(value: int) -> bool:
    """Return whether the bound of the context says that no schedule has less than ``value``."""
    bound = _bound.get()
    return bound is not None and value <= bound


def is_over() -> bool:
    """Return whether it is time to come to an end."""
    return _over.get()()


def check_time() -> None:
    """Raise ``OutOfTimeError`` where it is time to come to an end."""
    if is_over():
        raise OutOfTimeError("stopped before it had a schedule")
