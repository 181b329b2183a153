"""The best schedule and the best bound of a solve. Every schedule and every bound has to pass here."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from zbopt.analysis.metrics import value_of
from zbopt.portfolio.progress import ProgressLog
from zbopt.portfolio.result import NamedValue
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule
from zbopt.validator import validate
from zbopt.validator.verdict import Violation

log = logging.getLogger(__name__)

NO_BOUND = Bound(0, "bound:none")
"""The bound before any is proved: no value is below 0."""


@dataclass
class SolveIncumbent:
    """Hold the best schedule that the validator accepts, and the best bound that no valid schedule refutes.

    ``schedule`` and ``value`` are ``None`` together. ``fault`` says in a sentence which part of zbopt failed; ``None``:
    none did.
    """

    instance: Instance
    progress: ProgressLog
    schedule: Schedule | None = None
    value: int | None = None
    bound: Bound = NO_BOUND
    best_heuristic: NamedValue | None = None
    fault: str | None = None

    @property
    def is_optimal(self) -> bool:
        """Return whether the bound meets the value."""
        return self.value is not None and self.bound.value >= self.value

    def offer(
        self, schedule: Schedule, *, heuristic: str | None = None, level: int = logging.ERROR
    ) -> Violation | None:
        """Keep ``schedule`` if it is valid and better than the best so far.

        Args:
            schedule: One of the instance.
            heuristic: Name of the heuristic that made it; ``None``: none did.
            level: Of the log entry about an invalid schedule: ERROR where whoever made it promises a valid one.

        Returns:
            The first rule that the schedule breaks; ``None`` where it is valid.
        """
        violation = next(iter(validate(self.instance, schedule).violations), None)
        if violation is not None:
            log.log(level, "%s gave an invalid schedule: %s", schedule.provenance.source, violation.message)
            return violation
        value = value_of(schedule)
        if heuristic is not None and (self.best_heuristic is None or value < self.best_heuristic.value):
            self.best_heuristic = NamedValue(heuristic, value)
        if self.value is None or value < self.value:
            self.schedule, self.value = schedule, value
            self._drop_refuted_bound()
            self.progress.change(self.value, self.bound.value)
        return None

    def prove(self, bound: Bound) -> None:
        """Keep ``bound`` if it is better than the best so far and no valid schedule refutes it."""
        if bound.value > self.bound.value:
            self.bound = bound
            self._drop_refuted_bound()
            self.progress.change(self.value, self.bound.value)

    def _drop_refuted_bound(self) -> None:
        """Drop a bound above the value of a valid schedule, which is wrong, and say so."""
        if self.value is not None and self.bound.value > self.value:
            self.fault = (
                f"a fault of zbopt: {self.bound.proved_by} claims that nothing is below {self.bound.value} ticks, "
                f"but a valid schedule takes {self.value}; the bound is dropped. Please report the instance"
            )
            log.error(self.fault)
            self.bound = NO_BOUND
