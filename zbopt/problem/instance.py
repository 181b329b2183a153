"""The problem: one pipeline-parallel training step, in integer ticks and exact memory amounts.

``Instance`` is what a file in ``instances/`` holds. It promises that its lists have the right length and its
numbers the right range, so that nothing downstream checks them again.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from zbopt.problem.checked_model import CheckedModel
from zbopt.problem.communication import Collective, CommunicationFields
from zbopt.problem.documents import first_fault, kind_of, read_document
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
from zbopt.problem.memory_fields import PER_STAGE, PER_VIRTUAL_STAGE, MemoryFields, check_memory, fill_memory
from zbopt.problem.numbers import (
    MAX_AMOUNT,
    MAX_FORWARDS,
    MAX_MICROBATCHES,
    MAX_STAGES,
    MAX_TICKS,
    Amount,
    Rational,
    Ticks,
    counted,
    is_none,
    number,
)
from zbopt.problem.placement import placement_of
from zbopt.problem.routes import (
    MicrobatchTimes,
    OpTicks,
    Route,
    RouteFields,
    bidirectional,
    default_shares,
    filled_times,
    own_times,
    route_fault,
)
from zbopt.problem.time_fields import check_backward, check_overlapped, check_own_times
from zbopt.problem.update import UpdateFields

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

_PER_VIRTUAL_STAGE = (
    "forward_ticks",
    "backward_ticks",
    "weight_ticks",
    "fused_backward_ticks",
    *PER_VIRTUAL_STAGE,
    "reduction_ticks",
)
_PER_STAGE = ("optimizer_ticks", "overlapped_ticks", *PER_STAGE)


class Instance(CheckedModel, RouteFields, CommunicationFields, MemoryFields, UpdateFields):
    """One scheduling problem. Frozen; unknown fields are refused.

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

    schema_version: Literal["zbopt.instance/1"] = Field("zbopt.instance/1", alias="schema")
    name: str | None = Field(None, description="Where the problem comes from; no meaning to the solver.")
    stages: int = Field(ge=1, le=MAX_STAGES, strict=True, description="Devices of the pipeline (p).")
    microbatches: int = Field(ge=1, le=MAX_MICROBATCHES, strict=True, description="Microbatches of the step (m).")
    stage_of: tuple[Annotated[int, Field(strict=True)], ...] = Field(
        description="Stage of each virtual stage, in forward order; default linear."
    )
    tick: str = Field(
        "unit",
        pattern=r"^(unit|[1-9]\d*(s|ms|us|ns))$",
        description="What one tick is: 'unit', or a duration such as '1us'.",
    )
    rounding_ticks: Amount = Field(
        Fraction(0), lt=1, description="Most that rounding up to ticks added to any given time, in ticks."
    )
    forward_ticks: tuple[Ticks, ...] = Field(description="Time of F, by virtual stage.")
    backward_ticks: tuple[Ticks | None, ...] | None = Field(
        None, description="Time of B, by virtual stage; null where the first one of a route has none."
    )
    weight_ticks: tuple[Ticks, ...] | None = Field(None, description="Time of W, by virtual stage.")
    fused_backward_ticks: tuple[Ticks | None, ...] | None = Field(
        None,
        description="Time of BW, by virtual stage. Alone: the backward is never split. Beside backward and weight: "
        "a schedule may fuse. null: a schedule must not fuse.",
    )
    overlapped_ticks: tuple[Ticks | None, ...] | None = Field(
        None,
        exclude_if=is_none,
        description="Time of an F and a BW of two microbatches that a stage runs as one op, by stage: both events have "
        "this interval. null: it runs them one at a time.",
    )
    comm_ticks: int = Field(
        0, ge=0, le=MAX_TICKS, strict=True, description="Latency of a transfer between different stages."
    )
    memory_cap: tuple[Amount, ...] | None = Field(None, description="Most live memory, by stage; null: no limit.")
    activation: tuple[Amount, ...] = Field(description="Memory of one live activation, by virtual stage.")
    weight_share: tuple[Annotated[Amount, Field(le=1)], ...] = Field(
        description="Share of the activation that is held until the end of W, by virtual stage; the rest goes at "
        "the end of B."
    )
    objective: Objective = Objective.MAKESPAN
    barrier: Barrier = Barrier.NONE
    optimizer_ticks: tuple[Annotated[int, Field(ge=0, le=MAX_TICKS, strict=True)], ...] | None = Field(
        None, description="Time of O, by stage; null without a barrier. 0: only the barrier itself."
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
        """Spread scalars over lists and put in the defaults that depend on other fields."""
        if not isinstance(data, dict) or not _is_count(data.get("stages"), MAX_STAGES):
            return data
        data = dict(data)
        stages = data["stages"]
        data.setdefault("stage_of", tuple(range(stages)))
        stage_of = data["stage_of"]
        if not isinstance(stage_of, (list, tuple)) or any(
            not isinstance(stage, int) or isinstance(stage, bool) for stage in stage_of
        ):
            return data
        data.setdefault("activation", default_shares(stage_of, data.get("routes")))
        data.setdefault("weight_share", 1)
        fill_memory(data)
        if data.get("barrier", "none") != "none" and data.get("optimizer_ticks") is None:
            data["optimizer_ticks"] = 0
        for field, length in (*((f, len(stage_of)) for f in _PER_VIRTUAL_STAGE), *((f, stages) for f in _PER_STAGE)):
            if isinstance(data.get(field), (int, float, str, Fraction)):
                data[field] = (data[field],) * length
        if isinstance(data.get("microbatch_times"), (list, tuple)):
            data["microbatch_times"] = [filled_times(group, data, len(stage_of)) for group in data["microbatch_times"]]
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_placement()
        for field in (*_PER_VIRTUAL_STAGE, *_PER_STAGE):
            expected = self.virtual_stages if field in _PER_VIRTUAL_STAGE else self.stages
            values = getattr(self, field)
            if values is not None and len(values) != expected:
                what = counted(expected, "virtual stage" if field in _PER_VIRTUAL_STAGE else "stage")
                give = "1" if expected == 1 else f"1 or {expected}" if values != (None,) else f"{expected}"
                raise ValueError(f"{field} has {counted(len(values), 'value')} for {what}; give {give}")
        forwards = self.virtual_stages * self.microbatches
        if forwards > MAX_FORWARDS:
            held = counted(self.virtual_stages, "virtual stage")
            raise ValueError(
                f"{held} with {self.microbatches} microbatches make {forwards} forwards, "
                f"of at most {MAX_FORWARDS}; lower microbatches to {MAX_FORWARDS // self.virtual_stages}"
            )
        if forwards * self.iterations > MAX_FORWARDS:
            raise ValueError(
                f"{self.iterations} iterations of {forwards} forwards are more than {MAX_FORWARDS}; lower iterations "
                f"to {MAX_FORWARDS // forwards}"
            )
        check_backward(self)
        check_own_times(self)
        check_overlapped(self)
        check_memory(self)
        self.check_communication(self.stages, sized=self.boundary is not None)
        self._check_transfers_fit()
        self._check_collectives_fit()
        self.check_update(self.barrier, self.objective, self.microbatches, ports=self.occupies_ports)
        if self.barrier is Barrier.NONE and self.optimizer_ticks is not None:
            raise ValueError(
                "optimizer_ticks is given but barrier is none; set barrier to global or post_validation, "
                "or leave optimizer_ticks out"
            )
        return self

    def _check_placement(self) -> None:
        for virtual_stage, stage in enumerate(self.stage_of):
            if not 0 <= stage < self.stages:
                raise ValueError(f"stage_of[{virtual_stage}] = {stage} is no stage; stages are 0 to {self.stages - 1}")
        fault = None if self.routes is None else route_fault(self.routes, self.virtual_stages, self.microbatches)
        if fault is not None:
            raise ValueError(fault)
        idle = sorted(set(range(self.stages)) - set(self.stage_of))
        if idle:
            raise ValueError(f"stage {idle[0]} holds no virtual stage; give each stage at least one in stage_of")

    def _check_transfers_fit(self) -> None:
        if self.boundary is None:
            return
        ways = ((u, v) for u in range(self.virtual_stages) if (v := self.next_of(u)) is not None)
        for u, v in (way for pair in ways for way in (pair, pair[::-1])):
            ticks = self.lag_ticks(u, v)
            if ticks > MAX_TICKS:
                raise ValueError(
                    f"boundary[{min(u, v)}] takes {ticks} ticks from virtual stage {u} to {v}, of at most {MAX_TICKS}; "
                    "give a longer tick or a greater bandwidth"
                )

    def _check_collectives_fit(self) -> None:
        for i, inside in enumerate(self.collectives or ()):
            times = [t for v, j in self.passes() if (t := self.op_ticks(inside.kind, v, j)) is not None]
            end = inside.start + inside.ticks
            if end > min(times, default=end):
                raise ValueError(
                    f"collectives[{i}] ends at {end} in {inside.kind.value}, which takes {min(times)}; "
                    "end it before that"
                )

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
        """An instance whose virtual stages are all alike. Times are of one virtual stage, in ticks.

        ``placement`` is one of ``placement_of``; ``virtual`` ``None``: its usual number of them a stage.

        Raises:
            ValueError: A number is out of range, or the placement does not go with ``virtual``.
        """
        stage_of = placement_of(placement, stages, virtual) if stages >= 1 else ()
        routes = bidirectional(stages, microbatches) if placement == "bidirectional" else None
        fields = {key: value for key, value in locals().items() if key not in {"cls", "placement", "virtual"}}
        return cls.model_validate(fields)

    @property
    def is_linear(self) -> bool:
        """One route over one virtual stage a stage, in order."""
        return self.routes is None and self.stage_of == tuple(range(self.stages))

    @property
    def may_split(self) -> bool:
        """A backward may run as B and W."""
        return self.backward_ticks is not None

    @property
    def may_fuse(self) -> bool:
        """A backward may run as BW."""
        return self.fused_backward_ticks is not None

    def has_b(self, virtual_stage: int) -> bool:
        """A backward of ``virtual_stage`` may run as B and W, and not as W alone."""
        return self.backward_ticks is not None and self.backward_ticks[virtual_stage] is not None

    def has_bw(self, virtual_stage: int) -> bool:
        """A backward of ``virtual_stage`` may run as BW."""
        return self.fused_backward_ticks is not None and self.fused_backward_ticks[virtual_stage] is not None

    def has_lone_w(self, virtual_stage: int) -> bool:
        """W of ``virtual_stage`` takes the gradient itself: a first virtual stage without B."""
        return self.backward_ticks is not None and self.backward_ticks[virtual_stage] is None

    @property
    def is_simple(self) -> bool:
        """One iteration whose transfers are lags and whose inputs are all there: what long steps repeat by."""
        return not self.sends and self.iterations == 1 and self.input_ready_ticks is None

    @property
    def occupies_ports(self) -> bool:
        """Transfers are events that occupy ports."""
        return self.sends and self.transfer_occupies is TransferOccupies.PORT

    def op_ticks(self, kind: Kind, virtual_stage: int, microbatch: int) -> int | None:
        """Time of F, B, W, BW or R of a microbatch; ``None``: there is no such op."""
        return self.ticks_of(virtual_stage, microbatch).of(kind)

    def virtual_stages_of(self, stage: int) -> tuple[int, ...]:
        """Virtual stages that ``stage`` holds, in forward order."""
        return tuple(v for v, held_by in enumerate(self.stage_of) if held_by == stage)

    def ticks_of(self, virtual_stage: int, microbatch: int) -> OpTicks:
        """Times of the ops of a microbatch on a virtual stage; F with the loss on the last one of its route."""
        times = self if self.microbatch_times is None else own_times(self.microbatch_times).get(microbatch, self)
        v = virtual_stage
        return OpTicks(
            times.forward_ticks[v] + (self.loss_ticks if self.loss_ticks and self.next_of(v) is None else 0),
            None if times.backward_ticks is None else times.backward_ticks[v],
            None if times.weight_ticks is None else times.weight_ticks[v],
            None if times.fused_backward_ticks is None else times.fused_backward_ticks[v],
            None if times.recompute_ticks is None else times.recompute_ticks[v],
        )

    def lag_ticks(self, from_virtual_stage: int, to_virtual_stage: int) -> int:
        """Time of the transfer between two neighbours on the route, whether a lag or an event: none on one stage."""
        stage, other = self.stage_of[from_virtual_stage], self.stage_of[to_virtual_stage]
        if stage == other:
            return 0
        size = Fraction(0) if self.boundary is None else self.boundary[min(from_virtual_stage, to_virtual_stage)]
        return self.transfer_ticks(self.comm_ticks, size, stage, other)


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def first_error(error: ValidationError) -> str:
    """The first fault of a refused file or call, on one line."""
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
    own = [field.alias or name for name, field in Instance.model_fields.items() if name in Instance.__annotations__]
    fields = {name: dumped[name] for name in (*own, *dumped) if name in dumped}
    spread = {*_PER_VIRTUAL_STAGE, *_PER_STAGE}
    lines = (f"  {json.dumps(k)}: {json.dumps(_collapse(v) if k in spread else v)}" for k, v in fields.items())
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _collapse(value: object) -> object:
    """A list of equal values as one, which reads back as the list."""
    equal = isinstance(value, list) and len(value) > 1 and all(v == value[0] for v in value)
    return value[0] if equal and isinstance(value, list) and value[0] is not None else value
