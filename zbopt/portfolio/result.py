"""The result of a solve, whatever engine ran: value, bound, what proved each, and how they came together."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from zbopt.graph.memory import least_memory
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule, Status


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Say why no schedule exists: ``stage`` has ``cap`` but any schedule needs ``needed``, the least cap that works."""

    stage: int
    cap: Fraction
    needed: Fraction

    def __str__(self) -> str:
        return (
            f"stage {self.stage}: memory cap {self.cap} is below the {self.needed} that one microbatch needs; "
            f"raise it to {self.needed}"
        )


def infeasible(instance: Instance) -> Infeasible | None:
    """Return why no schedule exists; ``None``: one does, since every cap has room for one microbatch at a time."""
    if instance.memory_cap is None:
        return None
    needs = [
        Infeasible(stage, cap, needed)
        for stage, cap in enumerate(instance.memory_cap)
        if (needed := least_memory(instance, stage)) > cap
    ]
    return max(needs, key=lambda need: need.needed - need.cap, default=None)


@dataclass(frozen=True, slots=True)
class Progress:
    """Hold best value (``None``: none yet) and bound, in ticks, after ``time_s`` seconds; ``doing`` says what runs."""

    time_s: float
    value: int | None
    bound: int
    doing: str = ""


@dataclass(frozen=True, slots=True)
class NamedValue:
    """Hold the objective value of a named heuristic, in ticks."""

    name: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Hold the outcome of one solve. ``schedule`` and ``value`` are ``None`` together.

    ``status`` is ``optimal`` only where ``value == bound.value``; ``infeasible`` says why exactly where the status is
    ``infeasible``. ``interrupted`` is true where Ctrl-C ended the search, ``fault`` where the solver's process died.
    ``notes`` say which of the caller's candidates failed, and how, a sentence each.
    """

    instance: Instance
    status: Status
    schedule: Schedule | None
    value: int | None
    bound: Bound
    wall_time_s: float
    best_heuristic: NamedValue | None = None
    infeasible: Infeasible | None = None
    interrupted: bool = False
    fault: str | None = None
    history: tuple[Progress, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float | None:
        """Return (value - bound) / value; ``None`` without a value."""
        return None if self.value is None else (self.value - self.bound.value) / self.value

    def require_schedule(self) -> Schedule:
        """Return the schedule, for code that cannot go on without one.

        Raises:
            ValueError: There is none; the message says why.
        """
        if self.schedule is None:
            raise ValueError(f"{self.status.value}: {self.infeasible or 'no schedule was found in time'}")
        return self.schedule

    def _repr_html_(self) -> str:
        """Return the picture that a notebook shows for a result."""
        from zbopt.reports.svg import result_html  # here, not above: a result loads no report until one is asked for

        return result_html(self)
