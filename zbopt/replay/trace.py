"""Traces: the events observed in a run, under the ids of the plan's events, and the plan itself."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zbopt.problem.atomic import write_text
from zbopt.problem.instance import MAX_TICKS, Instance, Kind, first_error, read_document
from zbopt.problem.schedule import Event, Provenance, Schedule
from zbopt.replay.spec import Network, Training

SOURCE = "trace"
"""Provenance source of an observed schedule, whose durations were measured and are not those of its instance."""


class TraceEvent(BaseModel):
    """Record one op as it ran, in nanoseconds since the step's start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    stage: int
    virtual_stage: int | None
    microbatch: int | None
    asked: int = Field(
        description="When PyTorch's runtime turned to the op; from then until start it waited for its input."
    )
    start: int
    end: int
    memory_bytes: int = Field(0, description="Bytes kept for backward passes on the stage when the op ended.")
    allocated_bytes: int = Field(0, description="Bytes that the GPU's allocator had handed out when the op ended.")
    core_wait_ns: int = Field(
        0, description="How long the process was ready but had no core since its last op ended (network wait, Linux)."
    )
    checksum: str | None = Field(None, description="Checksum of F's output, or of the gradient that B or BW passes on.")
    gradients_checksum: str | None = Field(
        None, description="Checksum of the parameters' gradients added up so far, after B, W or BW."
    )

    def event(self, iteration: int, unit_ns: int = 1) -> Event:
        """Convert to an event of a schedule, with times in units of ``unit_ns`` nanoseconds."""
        return Event(
            kind=self.kind,
            stage=self.stage,
            virtual_stage=self.virtual_stage,
            microbatch=self.microbatch,
            start=self.start // unit_ns,
            end=self.end // unit_ns,
            iteration=iteration,
        )


class TraceStep(BaseModel):
    """Hold the events and losses of one step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    losses: tuple[float, ...] = ()
    events: tuple[TraceEvent, ...]

    @property
    def makespan_ns(self) -> int:
        """Return the time from the first start to the last end, optimizer included."""
        return max(e.end for e in self.events) - min(e.start for e in self.events)


class Trace(BaseModel):
    """Hold a run: the plan, what it ran on, and the events of every step."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True)

    schema_version: Literal["zbopt.trace/1"] = Field("zbopt.trace/1", alias="schema")
    plan: Schedule
    network: Network
    training: Training
    device: str
    processes: int
    simulated: bool = Field(description="Whether ops only waited for their planned time.")
    versions: dict[str, str] = Field(default_factory=dict)
    decisions: tuple[tuple[int, str, float], ...] = Field((), description="(step, act, global gradient norm).")
    weights: dict[str, str] = Field(default_factory=dict, description="Checksum of each parameter after the last step.")
    steps: tuple[TraceStep, ...]

    def median_step(self) -> TraceStep:
        """Return the step with the median makespan, without the first, in which the runtime sets itself up.

        A run of one step has no other to return.
        """
        steps = sorted(self.steps[1:] or self.steps, key=lambda step: step.makespan_ns)
        return steps[(len(steps) - 1) // 2]

    def observed(self, step: TraceStep | None = None) -> Schedule:
        """Convert a step, by default the median one, to a schedule that the validator reads.

        Times are in nanoseconds, or in microseconds where an op lasts a second. The instance has the median duration of
        each op, from which single events differ, and no communication time: a transfer is part of the time that an op
        waited. Where the plan has no barrier, the optimizer steps are left out.
        """
        step = step or self.median_step()
        longest = max(e.end - e.start for e in step.events)
        unit, tick = (1, "1ns") if longest <= MAX_TICKS else (1000, "1us")
        has_optimizer = self.plan.instance.optimizer_ticks is not None
        events = tuple(e.event(0, unit) for e in step.events if has_optimizer or e.kind is not Kind.O)
        return Schedule(
            instance=_observed_instance(self.plan.instance, events, tick),
            provenance=Provenance(source=SOURCE, versions=self.versions),
            events=tuple(sorted(events, key=lambda e: (e.stage, e.start))),
        )


def _observed_instance(plan: Instance, events: tuple[Event, ...], tick: str) -> Instance:
    """Build an instance of the plan's pipeline with the median duration of each observed op."""
    medians = _median_durations(events)

    def by_virtual_stage(kind: Kind) -> list[int | None]:
        return [medians.get((kind, v)) for v in range(plan.virtual_stages)]

    fields: dict[str, Any] = plan.model_dump(
        include={"stages", "microbatches", "stage_of", "activation", "weight_share", "barrier", "objective"}
    )
    fields |= {"tick": tick, "forward_ticks": by_virtual_stage(Kind.F), "name": "observed"}
    fields |= _backward_fields(*(by_virtual_stage(kind) for kind in (Kind.B, Kind.W, Kind.BW)))
    if plan.optimizer_ticks is not None:
        fields["optimizer_ticks"] = [medians.get((Kind.O, stage), 0) for stage in range(plan.stages)]
    return Instance.model_validate(fields)


def _median_durations(events: Iterable[Event]) -> dict[tuple[Kind, int], int]:
    """Return the median duration of each kind of op by virtual stage, of O by stage; at least 1."""
    durations: dict[tuple[Kind, int], list[int]] = defaultdict(list)
    for event in events:
        where = event.stage if event.virtual_stage is None else event.virtual_stage
        durations[event.kind, where].append(max(1, event.end - event.start))
    return {key: int(median(lengths)) for key, lengths in durations.items()}


def _backward_fields(
    backward: Sequence[int | None], weight: Sequence[int | None], fused: Sequence[int | None]
) -> dict[str, Any]:
    """Return the instance's times of B, W and BW; an op that never ran on a virtual stage gets a time that fits.

    An instance with B has to have all three for every virtual stage. One whose backwards all ran whole has BW alone.
    """
    if not any(backward):
        return {"fused_backward_ticks": list(fused)}
    b = [ticks or 1 for ticks in backward]
    w = [ticks or 1 for ticks in weight]
    return {
        "backward_ticks": b,
        "weight_ticks": w,
        "fused_backward_ticks": [ticks or b[v] + w[v] for v, ticks in enumerate(fused)],
    }


def write_trace(trace: Trace, path: Path | str) -> None:
    """Write ``trace`` as JSON with one event on each line."""
    head = trace.model_dump(mode="json", exclude={"steps"})
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    steps = []
    for step in trace.steps:
        events = ",\n".join(f"      {json.dumps(event.model_dump(mode='json'))}" for event in step.events)
        head_of_step = step.model_dump_json(exclude={"events"}).removesuffix("}")
        steps.append(f'    {head_of_step}, "events": [\n{events}\n    ]}}')
    body = ",\n".join(steps)
    write_text(path, "{\n" + "\n".join(lines) + f'\n  "steps": [\n{body}\n  ]\n}}\n')


def read_trace(path: Path | str) -> Trace:
    """Read a trace file.

    Raises:
        ValueError: One line that names the file, the field, the value and the limit.
    """
    path = Path(path)
    return trace_from_document(read_document(path), str(path))


def trace_from_document(document: object, where: str) -> Trace:
    """Build a trace from parsed JSON. Raises ``ValueError`` as ``read_trace`` does; ``where`` is the file's name."""
    if not isinstance(document, dict) or document.get("schema") != "zbopt.trace/1":
        raise ValueError(f"{where}: not a trace; give a file that zbopt replay --trace wrote")
    try:
        return Trace.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{where}: {first_error(error)}") from None
