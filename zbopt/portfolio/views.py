"""The step as each part of a solve looks at it: whole, as the engine is asked about it, and short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from zbopt.graph import TaskGraph, expand
from zbopt.problem.instance import Instance, Objective
from zbopt.problem.schedule import Provenance, Schedule
from zbopt.timing import schedule_of, starts_of
from zbopt.timing.iterations import all_iterations, first_iteration, one_iteration
from zbopt.timing.repeat import find_run, lengthened, shortened


@dataclass
class StepViews:
    """Turn schedules of the whole step into those of a part of it, and back.

    An engine is asked about the whole instance, or where the objective is the period, about one iteration.
    """

    instance: Instance

    @property
    def op_count(self) -> int:
        """Count the ops of the whole step, as if every backward were split."""
        return 3 * self.instance.virtual_stages * self.instance.microbatches

    @cached_property
    def short(self) -> Instance | None:
        """Return the same problem with fewer microbatches; ``None`` where the step is not long enough to repeat."""
        return shortened(self.instance)

    def lengthen(self, schedule: Schedule) -> Schedule | None:
        """Return the whole step from a schedule of ``short``; ``None`` where that has no repeating middle."""
        graph = expand(schedule.instance)
        missing = self.instance.microbatches - schedule.instance.microbatches
        run = find_run(graph, starts_of(graph, schedule), missing)
        return None if run is None else lengthened(schedule, run, self.instance)

    @property
    def _asks_one_iteration(self) -> bool:
        return self.instance.objective is Objective.PERIOD

    @cached_property
    def graph(self) -> TaskGraph:
        """Return the task graph of what an engine is asked about."""
        return expand(one_iteration(self.instance) if self._asks_one_iteration else self.instance)

    def engine_part(self, schedule: Schedule) -> Schedule:
        """Return the part of a whole schedule that ``graph`` has the tasks of."""
        return first_iteration(schedule) if self._asks_one_iteration else schedule

    def whole(self, schedule: Schedule) -> Schedule:
        """Return the whole schedule of which ``schedule`` is the part that ``graph`` has."""
        return all_iterations(schedule, self.instance) if self._asks_one_iteration else schedule

    def starts(self, schedule: Schedule) -> dict[int, int]:
        """Return the start of each task of ``graph`` in a whole schedule, in ticks."""
        return starts_of(self.graph, self.engine_part(schedule))

    def schedule_of_starts(self, starts: Mapping[int, int], provenance: Provenance) -> Schedule:
        """Return the whole schedule in which the tasks of ``graph`` begin at ``starts``."""
        return self.whole(schedule_of(self.graph, starts, provenance))
