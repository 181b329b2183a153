"""The answer: when each event runs, and where that answer came from.

A schedule may be wrong. Only the validator says so; these types have no opinion beyond their fields' types.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zbopt.problem.atomic import write_text
from zbopt.problem.instance import COMPUTE, Instance, Kind, first_error, read_document


class Status(StrEnum):
    """Name what is known of a value."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class Engine(StrEnum):
    """Name what searches between the heuristics' value and the bound: CP-SAT, or the published integer program."""

    CP_SAT = "cp-sat"
    MILP = "milp"


_MOST = 10**17
"""Largest number in an event: no schedule is as long, and ratios of it are numbers."""
_Whole = Annotated[int, Field(strict=True, ge=-_MOST, le=_MOST)]


@dataclass(frozen=True, slots=True)
class Event:
    """One op on one stage, from ``start`` to ``end`` in ticks.

    ``virtual_stage`` and ``microbatch`` are ``None`` for an op of the whole stage (O).
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    kind: Kind
    stage: _Whole
    virtual_stage: _Whole | None
    microbatch: _Whole | None
    start: _Whole
    end: _Whole
    iteration: _Whole = 0

    @property
    def id(self) -> str:
        """Stable identity as text, such as ``it0/s1/v5/mb3/F``."""
        virtual = "" if self.virtual_stage is None else f"/v{self.virtual_stage}"
        micro = "" if self.microbatch is None else f"/mb{self.microbatch}"
        return f"it{self.iteration}/s{self.stage}{virtual}{micro}/{self.kind.value}"


class Provenance(BaseModel):
    """Where a schedule came from, and what is proved of it. ``None`` means not known or not applicable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(description="Such as 'cp-sat', 'heuristic:zb-h1', 'event-list'.")
    engine: Engine | None = Field(
        default=None, description="What searched, whoever found the schedule: 'cp-sat' or 'milp'."
    )
    status: Status = Status.FEASIBLE
    value: _Whole | None = Field(default=None, description="Of the instance's objective, in ticks.")
    lower_bound: _Whole | None = Field(default=None, description="Proved, in ticks.")
    proved_by: str | None = Field(
        default=None, description="The argument behind lower_bound: 'bound:round-trip', 'cp-sat'."
    )
    seed: int | None = None
    workers: int | None = None
    time_limit_s: float | None = None
    wall_time_s: float | None = None
    deterministic: bool = Field(default=False, description="Value and bound do not depend on the machine.")
    versions: dict[str, str] = Field(default_factory=dict)


class Schedule(BaseModel):
    """Hold an instance, its events, and their provenance."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True)

    schema_version: Literal["zbopt.schedule/1"] = Field(default="zbopt.schedule/1", alias="schema")
    instance: Instance
    provenance: Provenance
    events: tuple[Event, ...]

    def __init__(self, *, instance: Instance, provenance: Provenance, events: Iterable[Event], **schema: Any) -> None:
        """Build a schedule from its parts; it need not be valid.

        Raises:
            ValueError: One line that names the first part of a wrong type.
        """
        try:
            super().__init__(instance=instance, provenance=provenance, events=events, **schema)
        except ValidationError as error:
            raise ValueError(first_error(error)) from None

    # As for Instance: what a file holds is built by its fields, so that a fault keeps its place.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Build a schedule from a mapping of its fields, as ``CheckedModel`` does.

        Raises:
            ValueError: One line that names the first wrong field, also inside the instance.
        """
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise ValueError(first_error(error)) from None

    def by_stage(self) -> tuple[tuple[Event, ...], ...]:
        """Ops of each stage's compute in order of start; those on a stage that does not exist are left out."""
        return self._rows(COMPUTE)

    def holders_by_stage(self) -> tuple[tuple[Event, ...], ...]:
        """Return all events of each stage that take or free memory, in order of start: its ops, OUT and IN."""
        return self._rows(COMPUTE | {Kind.OUT, Kind.IN})

    def _rows(self, kinds: Collection[Kind]) -> tuple[tuple[Event, ...], ...]:
        rows: list[list[Event]] = [[] for _ in range(self.instance.stages)]
        for event in self.events:
            if event.kind in kinds and 0 <= event.stage < len(rows):
                rows[event.stage].append(event)
        return tuple(tuple(sorted(row, key=attrgetter("start", "end"))) for row in rows)


def second_halves(instance: Instance, row: Iterable[Event]) -> list[Event]:
    """Return the BW of a stage that run as one op with an F of the same interval, where the instance allows that."""
    if instance.overlapped_ticks is None:
        return []
    events = list(row)
    forwards = {(e.start, e.end) for e in events if e.kind is Kind.F}
    return [e for e in events if e.kind is Kind.BW and (e.start, e.end) in forwards]


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    found = {}
    for package in ("zbopt", "ortools"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def schedule_from_document(document: object, where: str) -> Schedule:
    """Build a schedule from parsed JSON.

    Args:
        document: The parsed file.
        where: The file's name, for the error.

    Raises:
        ValueError: One line that names the field, the value and the limit.
    """
    try:
        return Schedule.model_validate(document)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def read_schedule(path: Path | str) -> Schedule:
    """Read a schedule file. Raises ``ValueError`` as ``read_document`` and ``schedule_from_document`` do."""
    path = Path(path)
    return schedule_from_document(read_document(path), str(path))


def write_schedule(schedule: Schedule, path: Path | str) -> None:
    """Write ``schedule`` as JSON, an event a line."""
    head = schedule.model_dump(mode="json", exclude={"events"}, exclude_none=True)
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    events = ",\n".join(f"    {_record(event)}" for event in schedule.events)
    write_text(path, "{\n" + "\n".join(lines) + f'\n  "events": [\n{events}\n  ]\n}}\n')


def _record(event: Event) -> str:
    """One event as JSON, written by hand: there may be a million of them, and all are a name and small integers."""
    virtual = "null" if event.virtual_stage is None else event.virtual_stage
    micro = "null" if event.microbatch is None else event.microbatch
    times = f'"start": {event.start}, "end": {event.end}'
    iteration = f', "iteration": {event.iteration}' if event.iteration else ""
    where = f'"stage": {event.stage}, "virtual_stage": {virtual}, "microbatch": {micro}'
    return f'{{"kind": "{event.kind.value}", {where}, {times}{iteration}}}'
