"""What a search may spend: time, workers, memory. Wall time by default; deterministic time on demand."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

_BUILD_S = 1e-5
"""Seconds that a variable or a constraint of a model takes to build."""


@dataclass
class Budget:
    """Time, workers and seed of one search; every CP-SAT call draws on it.

    Args:
        time_limit_s: Seconds; of CP-SAT's deterministic time where ``deterministic``.
        workers: Calls that run side by side; one where ``deterministic``.
        seed: Of CP-SAT's random choices.
        deterministic: The same value and bound on any machine.
        memory_limit_mb: CP-SAT stops when it holds more.
    """

    time_limit_s: float
    workers: int
    seed: int
    deterministic: bool = False
    memory_limit_mb: int = 8192
    spent_s: float = 0.0
    _started: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        """Seconds left, never negative."""
        used = self.spent_s if self.deterministic else time.monotonic() - self._started
        return max(0.0, self.time_limit_s - used)

    def spent(self) -> bool:
        """Whether too little is left for another call."""
        return self.left_s() < 0.01

    def limit(self, parameters: cp_model.SatParameters, slice_s: float, way: int = 0) -> None:
        """Set the parameters of one call on one thread that may take ``slice_s``.

        ``way`` varies the search; all but one leave out the linear relaxation, and the first presolve, which often
        costs more here than it tells. One learns on the way which op of a stage has to go before which: with presolve
        alone, without which CP-SAT 9.15 can abort on it (bench/README.md).
        """
        seconds = min(slice_s, self.left_s())
        parameters.max_memory_in_mb = self.memory_limit_mb
        if self.deterministic:
            parameters.max_deterministic_time = seconds
        else:
            parameters.max_time_in_seconds = seconds
        parameters.num_workers = 1
        parameters.random_seed = self.seed + way
        parameters.cp_model_presolve = way % 4 != 0
        parameters.cp_model_probing_level = 0
        parameters.use_dynamic_precedence_in_disjunctive = way % 4 == 2
        parameters.linearization_level = 1 if way % 4 == 3 else 0
        if not self.deterministic:
            # The closure of precedences takes most of a call's time, and of what the deterministic clock counts.
            parameters.transitive_precedences_work_limit = 0

    def charge_build(self, model: cp_model.CpModel) -> float:
        """Count what building a model takes, about, which deterministic time leaves out; in seconds."""
        seconds = _BUILD_S * (len(model.proto.variables) + len(model.proto.constraints))
        self.spent_s += seconds
        return seconds

    def charge(self, solver: cp_model.CpSolver) -> None:
        """Count what a call has used."""
        self.spent_s += solver.response_proto.deterministic_time
