"""Questions that a search asks (is there a schedule of some shape within so many ticks?), and one CP-SAT call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from ortools.sat.python import cp_model

from zbopt.cpsat.budget import Budget
from zbopt.cpsat.formulation import Formulation

_MOST_OPEN = 5
"""Horizons that may stay open before all are asked for again, with a longer slice.

More spread the time over more horizons; fewer go deeper into each. Not measured; chosen.
"""

_LITTLE = 500
"""A range of less than one in so many parts of the value is little, and its largest horizon is asked for first.

Not measured; chosen so that the last half percent, where the best value often is the optimum, is asked from above.
"""

_FINEST = 16
"""No horizon is asked for between two open ones that are nearer than one in so many parts of the range.

A smaller number leaves more of the time to longer slices. Not measured; chosen.
"""


class Answer(Enum):
    """Name what CP-SAT has answered. It has no member for an invalid model, which is a fault of zbopt's and raises."""

    FOUND = "found"
    OPTIMAL = "optimal"
    REFUTED = "refuted"
    OPEN = "open"


_ANSWERS = {
    cp_model.OPTIMAL: Answer.OPTIMAL,
    cp_model.FEASIBLE: Answer.FOUND,
    cp_model.INFEASIBLE: Answer.REFUTED,
    cp_model.UNKNOWN: Answer.OPEN,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """Hold the outcome of one CP-SAT call.

    ``starts`` are of the tasks that run (``None``: no solution); ``bound`` is what a call that minimised has proved,
    else 0; ``cost_s`` is in the budget's seconds.
    """

    answer: Answer
    starts: dict[int, int] | None
    bound: int
    cost_s: float


def ask(
    formulation: Formulation,
    budget: Budget,
    slice_s: float,
    variant: int = 0,
    solver: cp_model.CpSolver | None = None,
    uncharged_s: float = 0.0,
) -> Reply:
    """Make one CP-SAT call on one thread, within ``slice_s`` and the budget.

    Args:
        formulation: What to solve.
        budget: Gives limits and seed. It is for the caller to charge it with the reply's cost.
        slice_s: Most seconds of this call.
        variant: Which of the budget's settings of CP-SAT to use.
        solver: Runs the call, so that another thread can stop it; ``None``: a new one.
        uncharged_s: Seconds that were spent on the call before, and not charged yet.

    Raises:
        AssertionError: CP-SAT calls the model invalid.
    """
    started = time.monotonic()
    solver = solver or cp_model.CpSolver()
    budget.limit(solver.parameters, slice_s, variant, uncharged_s)
    status = solver.solve(formulation.model)
    assert status in _ANSWERS, f"CP-SAT refused the model: {formulation.model.validate()}"
    answer = _ANSWERS[status]
    found = answer in (Answer.OPTIMAL, Answer.FOUND)
    bound = round(solver.best_objective_bound) if formulation.model.has_objective() and found else 0
    cost_s = solver.response_proto.deterministic_time if budget.deterministic else time.monotonic() - started
    return Reply(answer, formulation.runs(solver) if found else None, bound, cost_s)


@dataclass(eq=False)
class Question:
    """Hold a family of decision problems: is there a schedule of some shape within so many ticks?

    Args:
        name: What the search does while it asks, in words: the start of a line of progress.
        formulate: The model for a horizon in ticks.
        whole: Makes starts of the whole step from a solution; ``None`` where a solution says nothing of the whole step.
        proved_by: Name of the bound that a refutation proves; ``None`` where the shape is a restriction.
        floor: Least ticks within which there may be a schedule of the shape.
        roof: Ticks within which there is one.
        pending: Horizons whose answers are awaited.
        left_open: Horizons whose answers took more than the slice.
    """

    name: str
    formulate: Callable[[int], Formulation]
    whole: Callable[[dict[int, int]], dict[int, int]] | None
    proved_by: str | None
    floor: int = 0
    roof: int = 2**62
    pending: list[int] = field(default_factory=list)
    left_open: list[int] = field(default_factory=list)

    def range(self, bound: int, value: int) -> tuple[int, int]:
        """Return the least and the largest horizon that are worth asking for, between ``bound`` and ``value``."""
        return max(bound, self.floor), min(value, self.roof) - 1

    def aim(self, bound: int, value: int) -> int | None:
        """Return the next horizon to ask for; ``None`` where those that are awaited or left open leave no room for one.

        The bound itself comes first, then the middle of the widest gap. The easy questions lie at both ends: far below
        the optimum a refutation is quick, far above it a schedule. Where little is left, the largest horizon comes
        first: the best value is often the optimum.
        """
        low, high = self.range(bound, value)
        taken = sorted({horizon for horizon in (*self.pending, *self.left_open) if low <= horizon <= high})
        if low > high or len(self.left_open) >= _MOST_OPEN:
            return None
        if self.floor == 0 and not taken:
            return low
        if high == value - 1 and high not in taken and (high - low) * _LITTLE < high:
            return high
        edges = [low - 1, *taken, high + 1]
        below, above = max(pairwise(edges), key=lambda edge: edge[1] - edge[0])
        if above - below < 2 or (taken and (above - below - 1) * _FINEST < high - low):
            return None
        return (below + above) // 2

    def is_moot(self, horizon: int, bound: int, value: int) -> bool:
        """Return whether what has become known meanwhile answers for ``horizon``."""
        low, high = self.range(bound, value)
        return not low <= horizon <= high
