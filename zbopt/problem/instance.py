"""The problem: one pipeline-parallel training step, in integer ticks and exact memory amounts.

``Instance`` is what a file in ``instances/`` holds. It promises that its lists have the right length and its
numbers the right range, so that nothing downstream checks them again.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, ValidationError, model_validator

from zbopt.problem.atomic import write_text
from zbopt.problem.checked_model import CheckedModel
from zbopt.problem.checks import check_fields
from zbopt.problem.communication import Collective
from zbopt.problem.documents import first_fault, kind_of, read_document
from zbopt.problem.facts import Axis, declared, spread_fields
from zbopt.problem.fields import InstanceFields
from zbopt.problem.kinds import (
    COMPUTE,
    Barrier,
    Communication,
    Drop,
    Kind,
    Objective,
    ReductionOccupies,
    TransferOccupies,
)
from zbopt.problem.numbers import (
    MAX_AMOUNT,
    MAX_FORWARDS,
    MAX_MICROBATCHES,
    MAX_STAGES,
    MAX_TICKS,
    Amount,
    Rational,
    Ticks,
    number,
)
from zbopt.problem.placement import placement_of
from zbopt.problem.routes import MicrobatchTimes, OpTicks, Route, bidirectional, filled_times

__all__ = [
    "COMPUTE",
    "MAX_AMOUNT",
    "MAX_FORWARDS",
    "MAX_MICROBATCHES",
    "MAX_STAGES",
    "MAX_TICKS",
    "Amount",
    "Barrier",
    "Collective",
    "Communication",
    "Drop",
    "Instance",
    "Kind",
    "MicrobatchTimes",
    "Objective",
    "OpTicks",
    "Rational",
    "ReductionOccupies",
    "Route",
    "Ticks",
    "TransferOccupies",
    "first_error",
    "number",
    "placement_of",
    "read_document",
    "read_instance",
    "write_instance",
]


class Instance(CheckedModel, InstanceFields):
    """Represent one scheduling problem. Frozen; unknown fields are refused.

    A scalar given for a list field stands for every virtual stage (or stage), in files too. Times are in ticks.
    Memory amounts are exact rationals in one unit, by default the activation of one microbatch on a whole stage.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_by_name=True,
        serialize_by_alias=True,
        defer_build=False,  # what holds an instance takes its validator, where there is one, and else builds its own
    )

    def __init__(self, **fields: Any) -> None:
        """Build an instance from its fields, in ticks; ``zbopt.instance`` takes times with units and says its types.

        Raises:
            ValueError: One line that names the first wrong field, its value, the limit and the way out.
        """
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ValueError(first_error(error)) from None

    # Without it pydantic would build every instance inside another object through __init__, and lose a fault's place.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Put in the defaults that depend on other fields, and spread scalars over lists."""
        if not isinstance(data, dict) or not _is_count(data.get("stages"), MAX_STAGES):
            return data
        data = dict(data)
        for field, entry in declared(cls).items():
            is_missing = field not in data or (data[field] is None and not entry.is_required)
            if is_missing and entry.facts.filled is not None:
                data[field] = entry.facts.filled(data)
            if field == "stage_of" and not _is_placement(data[field]):
                return data
        counts = {Axis.STAGE: data["stages"], Axis.VIRTUAL_STAGE: len(data["stage_of"])}
        for field, axis in spread_fields(cls).items():
            if isinstance(data.get(field), (int, float, str, Fraction)):
                data[field] = (data[field],) * counts[axis]
        if isinstance(data.get("microbatch_times"), (list, tuple)):
            groups = data["microbatch_times"]
            data["microbatch_times"] = [filled_times(group, data, counts[Axis.VIRTUAL_STAGE]) for group in groups]
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_fields(self)
        return self

    @classmethod
    def uniform(
        cls,
        *,
        stages: int,
        microbatches: int,
        forward_ticks: int = 1,
        backward_ticks: int | None = 1,
        weight_ticks: int | None = 1,
        fused_backward_ticks: int | None = None,
        comm_ticks: int = 0,
        memory_cap: int | float | str | Fraction | None = None,
        weight_share: int | float | str | Fraction = 1,
        placement: str = "linear",
        virtual: int | None = None,
        objective: Objective | str = Objective.MAKESPAN,
        barrier: Barrier | str = Barrier.NONE,
        name: str | None = None,
    ) -> Self:
        """Build an instance whose virtual stages are all alike. Times are of one virtual stage, in ticks.

        ``placement`` is one of ``placement_of``; ``virtual`` ``None``: its usual number of them a stage.

        Raises:
            ValueError: A number is out of range, or the placement does not go with ``virtual``.
        """
        fields = {
            "name": name,
            "stages": stages,
            "microbatches": microbatches,
            "stage_of": placement_of(placement, stages, virtual) if stages >= 1 else (),
            "routes": bidirectional(stages, microbatches) if placement == "bidirectional" else None,
            "forward_ticks": forward_ticks,
            "backward_ticks": backward_ticks,
            "weight_ticks": weight_ticks,
            "fused_backward_ticks": fused_backward_ticks,
            "comm_ticks": comm_ticks,
            "memory_cap": memory_cap,
            "weight_share": weight_share,
            "objective": objective,
            "barrier": barrier,
        }
        return cls.model_validate(fields)


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_placement(stage_of: object) -> bool:
    return isinstance(stage_of, (list, tuple)) and all(
        isinstance(stage, int) and not isinstance(stage, bool) for stage in stage_of
    )


def first_error(error: ValidationError) -> str:
    """Return the first fault of a refused file or call, on one line."""
    return first_fault(error, Instance.model_fields)


def read_instance(path: Path | str) -> Instance:
    """Read an instance from a JSON or TOML file.

    Raises:
        ValueError: One line that names the file, the field, the value and the limit.
    """
    path = Path(path)
    document = read_document(path)
    if not isinstance(document, dict):
        raise ValueError(f"{path}: holds {kind_of(document)}, not an instance; give an object with its fields")
    if str(document.get("schema", "")).startswith("zbopt.schedule"):
        raise ValueError(f"{path}: is a schedule, not an instance; give what its field instance holds as a file")
    try:
        return Instance.model_validate(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write_instance(instance: Instance, path: Path | str) -> None:
    """Write ``instance`` as JSON, one field a line."""
    dumped = instance.model_dump(mode="json", exclude_none=True)
    spread = spread_fields(type(instance))
    lines = (f"  {json.dumps(k)}: {json.dumps(_collapse(v) if k in spread else v)}" for k, v in dumped.items())
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _collapse(value: object) -> object:
    """Return a list of equal values as one value, which reads back as the list."""
    equal = isinstance(value, list) and len(value) > 1 and all(v == value[0] for v in value)
    return value[0] if equal and isinstance(value, list) and value[0] is not None else value
