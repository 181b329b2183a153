"""How long a heuristic may go on. Whoever calls one sets the limits; the loops at the bottom of all of them ask.

The limit is in the context and not in every signature: a heuristic stays a plain function of an instance, and one that
knows nothing of limits is stopped too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class OutOfTimeError(RuntimeError):
    """A heuristic was stopped before it had a schedule."""


def never() -> bool:
    """No limit."""
    return False


_over: ContextVar[Callable[[], bool]] = ContextVar("over", default=never)
_bound: ContextVar[int | None] = ContextVar("bound", default=None)


@contextmanager
def limited(over: Callable[[], bool]) -> Iterator[None]:
    """Heuristics called inside stop once ``over()`` is true: with the best they have, or with ``OutOfTimeError``."""
    token = _over.set(over)
    try:
        yield
    finally:
        _over.reset(token)


@contextmanager
def bounded(bound: int) -> Iterator[None]:
    """Heuristics called inside need not look further than a schedule of value ``bound``: none has less."""
    token = _bound.set(bound)
    try:
        yield
    finally:
        _bound.reset(token)


def is_best(value: int) -> bool:
    """Whether no schedule is known to be possible that has less than ``value``."""
    bound = _bound.get()
    return bound is not None and value <= bound


def is_over() -> bool:
    """Whether to come to an end."""
    return _over.get()()


def check() -> None:
    """Raise ``OutOfTimeError`` where it is time to come to an end."""
    if is_over():
        raise OutOfTimeError("stopped before it had a schedule")
