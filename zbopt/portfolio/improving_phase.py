"""The phase of a solve that improves the best schedule in this process, before an engine runs and beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from zbopt.engine.request import ParentMessage
from zbopt.heuristics import NotApplicableError
from zbopt.heuristics.tools.patience import bounded, limited
from zbopt.improve.improving import improved
from zbopt.portfolio.state import SolveState
from zbopt.problem.schedule import Schedule

log = logging.getLogger(__name__)

_KERNEL_SHARE, _SHARE = 0.25, 0.6
"""Shares of the time after which annealing begins, and after which, where no worker is left for an engine meanwhile,
improving ends. bench/README.md, "V placement at caps p, 3p/4 and p/2: whole solves", was measured with them."""


@dataclass
class Improvement:
    """Hold the search that this process makes for better schedules.

    ``messages`` are the better schedules that it finds, for whoever has to be told of them.
    """

    state: SolveState
    messages: SimpleQueue[ParentMessage | None] = field(default_factory=SimpleQueue)

    def pieces(self) -> Iterator[None]:
        """Search where that is worth while, and stop after each piece of the work."""
        state = self.state
        if not state.is_worth_improving or state.incumbent.schedule is None:
            return
        share = 1.0 if state.improves_beside_engine else _SHARE
        kernels_over, over = partial(state.is_over, share * _KERNEL_SHARE), partial(state.is_over, share)
        begin = state.views.engine_part(state.incumbent.schedule)
        search = improved(begin, state.views.graph, state.limits.seed, kernels_over)
        try:
            while not state.incumbent.is_optimal and not over():
                with limited(over), bounded(state.incumbent.bound.value):
                    state.progress.doing, schedule = next(search)
                if schedule is not None:
                    self._offer(schedule)
                yield
        except (NotApplicableError, StopIteration) as reason:
            log.info("no further improving: %s", reason)

    def _offer(self, schedule: Schedule) -> None:
        """Offer a schedule of what the engine is asked about, and tell the engine if it is better."""
        state, incumbent = self.state, self.state.incumbent
        state.clock.count_events(schedule)
        before = incumbent.value
        incumbent.offer(state.views.whole(schedule))
        if incumbent.value != before and incumbent.schedule is not None:
            starts = state.views.starts(incumbent.schedule)
            self.messages.put(ParentMessage(value=incumbent.value, starts=starts))
