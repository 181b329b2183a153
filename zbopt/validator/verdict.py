"""Verdict of the validator: codes, violations, and the figures that it counts itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from zbopt.problem.schedule import Event


class Code(StrEnum):
    """Name what a schedule can get wrong; the names are stable."""

    DUPLICATE_TASK = "duplicate_task"
    MISSING_TASK = "missing_task"
    UNKNOWN_TASK = "unknown_task"
    INVALID_STAGE = "invalid_stage"
    INVALID_INTERVAL = "invalid_interval"
    WRONG_DURATION = "wrong_duration"
    MISSING_DEPENDENCY = "missing_dependency"
    DEPENDENCY_VIOLATION = "dependency_violation"
    STAGE_OVERLAP = "stage_overlap"
    MEMORY_EXCEEDED = "memory_exceeded"
    OPTIMIZER_BEFORE_GRADIENT = "optimizer_before_gradient"
    UNFINISHED_ACTIVATION = "unfinished_activation"
    CYCLE = "cycle"
    LINK_OVERLAP = "link_overlap"
    PORT_OVERLAP = "port_overlap"
    COMPUTE_BLOCKED = "compute_blocked"
    CHANNEL_ORDER = "channel_order"
    REDUCTION_BEFORE_WEIGHT = "reduction_before_weight"
    REDUCTION_OVERLAP = "reduction_overlap"
    ITERATION_OVERLAP = "iteration_overlap"
    INPUT_NOT_READY = "input_not_ready"
    RECOMPUTE_FORBIDDEN = "recompute_forbidden"
    RECOMPUTE_MISSING = "recompute_missing"
    RECOMPUTE_BEFORE_FORWARD = "recompute_before_forward"
    BACKWARD_BEFORE_RECOMPUTE = "backward_before_recompute"
    OFFLOAD_FORBIDDEN = "offload_forbidden"
    OFFLOAD_MISSING = "offload_missing"
    OFFLOAD_UNPAIRED = "offload_unpaired"
    OFFLOAD_BEFORE_FORWARD = "offload_before_forward"
    RELOAD_BEFORE_OFFLOAD = "reload_before_offload"
    BACKWARD_BEFORE_RELOAD = "backward_before_reload"
    DROPPED_TWICE = "dropped_twice"
    HOST_LINK_OVERLAP = "host_link_overlap"


@dataclass(frozen=True, slots=True)
class Violation:
    """Represent one broken rule; ``message`` names the event, the value and the limit."""

    code: Code
    message: str

    def __str__(self) -> str:
        return f"{self.code.value}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Hold every violation of a schedule, and its figures as the validator counts them.

    Times in ticks, memory in the instance's unit, tuples by stage. Events on stages that do not exist count for
    nothing. An activation is unfinished where its F runs and its backward does not, or not wholly.
    """

    violations: tuple[Violation, ...]
    makespan: int
    busy_ticks: tuple[int, ...]
    unfinished_activations: int
    peak_memory: tuple[Fraction, ...]

    @property
    def valid(self) -> bool:
        """Return whether no rule is violated."""
        return not self.violations


def name_of(event: Event) -> str:
    """Return the id of an event as ``Event.id`` gives it, but for numbers of any size."""
    virtual = "" if event.virtual_stage is None else f"/v{shown(event.virtual_stage)}"
    micro = "" if event.microbatch is None else f"/mb{shown(event.microbatch)}"
    return f"it{shown(event.iteration)}/s{shown(event.stage)}{virtual}{micro}/{event.kind.value}"


def shown(number: int) -> str:
    """Return a number as text, shortened where it is so long that Python refuses to write it out."""
    return str(number) if number.bit_length() <= 128 else f"{'-' if number < 0 else ''}2^{number.bit_length() - 1}.."
