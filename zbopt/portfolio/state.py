"""The state of one solve, which its phases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from zbopt.portfolio.clock import Clock
from zbopt.portfolio.incumbent import SolveIncumbent
from zbopt.portfolio.limits import Limits
from zbopt.portfolio.progress import ProgressLog
from zbopt.portfolio.result import Progress
from zbopt.portfolio.views import StepViews
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Engine

TELL_WORKING_S = 1.0
"""While this process works, the caller is told how things stand so often, in seconds."""
_OPS_WORTH_IMPROVING, _MOST_OPS_TO_IMPROVE = 150, 50_000
"""Where a step has fewer ops, CP-SAT is the better search; where it has more, one packing takes too long. Not measured
one by one; bench/README.md, "V placement at caps p, 3p/4 and p/2: whole solves", was measured with them."""


@dataclass
class SolveState:
    """Hold one solve: its problem, its limits and time, and the best that it has.

    ``notes`` say in a sentence each which of the caller's candidates failed.
    """

    instance: Instance
    limits: Limits
    clock: Clock
    progress: ProgressLog
    incumbent: SolveIncumbent
    views: StepViews
    notes: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, instance: Instance, limits: Limits, on_progress: Callable[[Progress], None]) -> SolveState:
        """Return the state of a solve that begins now."""
        clock = Clock(limits)
        progress = ProgressLog(clock, on_progress)
        return cls(instance, limits, clock, progress, SolveIncumbent(instance, progress), StepViews(instance))

    def is_over(self, share: float) -> bool:
        """Return whether a share of the time is over, and let the caller know that the solve goes on."""
        self.progress.tell_after(TELL_WORKING_S)
        return self.clock.is_over(share)

    @property
    def has_engine(self) -> bool:
        """Return whether an engine can search: none chooses which F and BW run as one op."""
        return self.instance.overlapped_ticks is None

    @property
    def is_worth_improving(self) -> bool:
        """Return whether stages hold several virtual stages, where engines are weak, and the step is of medium size."""
        several = self.instance.virtual_stages > self.instance.stages
        return several and _OPS_WORTH_IMPROVING <= self.views.op_count <= _MOST_OPS_TO_IMPROVE

    @property
    def improves_beside_engine(self) -> bool:
        """Return whether one worker improves the best schedule while the engine has the others."""
        may_share = self.limits.engine is Engine.CP_SAT and self.has_engine and self.limits.threads > 1
        return may_share and self.is_worth_improving
