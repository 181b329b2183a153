"""The messages that the parent sends to an engine's process. Loading this module does not load OR-Tools."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Engine


class SolveRequest(BaseModel):
    """Ask an engine to improve a schedule and a bound of one instance.

    ``starts`` holds the start of each task of a valid schedule, in ticks, and ``value`` is its objective value.
    ``bound`` is a lower bound in ticks, and ``proved_by`` names its argument. At first the parent itself uses ``busy``
    of the ``workers``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    engine: Engine = Engine.CP_SAT
    instance: Instance
    starts: dict[int, int]
    value: int
    bound: int
    proved_by: str
    time_limit_s: float
    workers: int
    busy: int = 0
    seed: int
    deterministic: bool
    memory_limit_mb: int


class ParentMessage(BaseModel):
    """Tell a running engine of a better schedule, or of how many workers the parent uses from now on.

    ``value`` and ``starts`` are ``None`` together where the message brings no schedule; ``busy`` is ``None`` where the
    parent uses as many workers as before.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    value: int | None = None
    starts: dict[int, int] | None = None
    busy: int | None = None
