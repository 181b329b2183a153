"""The time, workers and memory that a search may spend: in wall time by default, in deterministic time on demand."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

_BUILD_S = 1e-5
"""Seconds that a variable or a constraint of a model takes to build.

It makes deterministic time, which knows nothing of Python, pass about as wall time does. Not measured; chosen.
"""

_LEAST_CALL_S = 0.01
"""Seconds below which no call is begun: CP-SAT would not get past loading the model. Not measured; chosen."""

_VARIANTS = 4
"""Settings of CP-SAT by which calls that run side by side differ (bench/README.md, "Questions without objective")."""


@dataclass
class Budget:
    """Hold the time, workers and seed of one search; every CP-SAT call draws on them.

    Args:
        time_limit_s: Seconds; of CP-SAT's deterministic time where ``deterministic``.
        workers: Calls that run side by side; one where ``deterministic``.
        seed: Of CP-SAT's random choices.
        deterministic: Reach the same value and bound on any machine.
        memory_limit_mb: Megabytes at which CP-SAT stops.
        spent_s: Deterministic seconds that were used so far.
    """

    time_limit_s: float
    workers: int
    seed: int
    deterministic: bool = False
    memory_limit_mb: int = 8192
    spent_s: float = 0.0
    _started: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        """Return the seconds left, never negative."""
        used = self.spent_s if self.deterministic else time.monotonic() - self._started
        return max(0.0, self.time_limit_s - used)

    def spent(self) -> bool:
        """Return whether too little is left for another call."""
        return self.left_s() < _LEAST_CALL_S

    def limit(
        self, parameters: cp_model.SatParameters, slice_s: float, variant: int = 0, uncharged_s: float = 0.0
    ) -> None:
        """Set the parameters of one call on one thread that may take ``slice_s``.

        Args:
            parameters: Those of the call; they are changed.
            slice_s: Most seconds of the call.
            variant: Number of the call among those that run side by side: each of four in a row searches differently.
                The first goes without presolve, which often costs more here than it tells. The third learns which op
                of a stage has to go before which; it needs presolve, without which CP-SAT 9.15 can abort on that. The
                fourth uses the linear relaxation (bench/README.md, "Questions without objective").
            uncharged_s: Seconds that were spent on the call before, and not charged yet.
        """
        seconds = min(slice_s, max(0.0, self.left_s() - uncharged_s))
        parameters.max_memory_in_mb = self.memory_limit_mb
        if self.deterministic:
            parameters.max_deterministic_time = seconds
        else:
            parameters.max_time_in_seconds = seconds
        parameters.num_workers = 1
        parameters.random_seed = self.seed + variant
        parameters.cp_model_presolve = variant % _VARIANTS != 0
        parameters.cp_model_probing_level = 0
        parameters.use_dynamic_precedence_in_disjunctive = variant % _VARIANTS == 2
        parameters.linearization_level = 1 if variant % _VARIANTS == 3 else 0
        if not self.deterministic:
            # The closure of precedences takes most of a call's time, and of what the deterministic clock counts.
            parameters.transitive_precedences_work_limit = 0

    def build_s(self, model: cp_model.CpModel) -> float:
        """Return about the seconds that building ``model`` took: CP-SAT's deterministic time leaves them out."""
        return _BUILD_S * (len(model.proto.variables) + len(model.proto.constraints))

    def charge(self, seconds: float) -> None:
        """Count seconds of deterministic time as spent; the clock counts for itself."""
        if self.deterministic:
            self.spent_s += seconds
