"""What the parent asks of an engine's process. Apart from the rest, so that asking does not load OR-Tools."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Engine


class SolveRequest(BaseModel):
    """What the parent asks for.

    ``starts`` is a valid schedule by task, in ticks, with objective ``value``. Of the ``workers`` the parent itself
    needs ``busy`` at first.
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
    """What the parent says while the engine runs: a better schedule, or how many workers it needs from now on."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    value: int | None = None
    starts: dict[int, int] | None = None
    busy: int | None = None
