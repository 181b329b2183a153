"""A bound that grows on a thread of its own, beside the questions of a search."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event
from typing import TypeVar

from zbopt.bounds.growing import GrowingBound
from zbopt.cpsat.budget import Budget
from zbopt.problem.bound import Bound

T = TypeVar("T")

_RISING = 3.0
"""A bound that rose after some seconds may grow until so many times as many are over, even past its share of the time.

A larger number trades time for schedules against bounds that rise late. Not measured; chosen.
"""


class Growth:
    """Let one bound grow until it is done, has had its time, or is ended.

    The growing thread alone touches ``growing`` while ``run`` lasts. It and the search tell each other what they learn
    by queues: values of schedules one way, bounds the other.

    Args:
        growing: The bound.
        budget: What the whole search may spend; only read here.
        known: A bound that is known already, in ticks.
    """

    def __init__(self, growing: GrowingBound, budget: Budget, known: int) -> None:
        self.growing = growing
        self._budget = budget
        self._all_s = budget.left_s()
        self._highest = known
        self._rose_s = 0.0
        self._values: SimpleQueue[int] = SimpleQueue()
        self._bounds: SimpleQueue[Bound] = SimpleQueue()
        self._ended = Event()

    def run(self) -> Bound:
        """Let the bound grow, on the thread that calls this, and return what it proves."""
        self.growing.grow(self._must_stop)
        return self.growing.bound()

    def send_value(self, value: int) -> None:
        """Tell the growing thread of a schedule of ``value`` ticks."""
        self._values.put(value)

    def bounds(self) -> list[Bound]:
        """Return the bounds that were proved since the last call."""
        return _taken(self._bounds)

    def stop(self) -> None:
        """Let the growing thread stop at its next chance."""
        self._ended.set()

    def _must_stop(self) -> bool:
        """Exchange what both threads have learnt, and return whether the bound has to stop; it asks once a layer."""
        for value in _taken(self._values):
            self.growing.note_value(value)
        counted_s = self.growing.cost_s if self._budget.deterministic else 0.0
        spent_s = self._all_s - self._budget.left_s() + counted_s
        so_far = self.growing.proved_so_far()
        if so_far is not None and so_far.value > self._highest:
            self._rose_s, self._highest = spent_s, so_far.value
            self._bounds.put(so_far)
        its_time_s = max(self.growing.time_share * self._all_s, min(self._all_s, _RISING * self._rose_s))
        return self._ended.is_set() or self._budget.spent() or spent_s > its_time_s


def _taken(waiting: SimpleQueue[T]) -> list[T]:
    """Return what waits in a queue, and leave it empty."""
    found = []
    while not waiting.empty():  # nobody else takes from it
        found.append(waiting.get_nowait())
    return found
