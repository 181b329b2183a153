"""What ran: the observed events of a run, by the plan's own event ids, beside the plan."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zbopt.problem.instance import MAX_TICKS, Instance, Kind, first_error, read_document
from zbopt.problem.schedule import Event, Provenance, Schedule
from zbopt.replay.spec import Network, Training

SOURCE = "trace"
"""Provenance of an observed schedule: its durations are what was seen, not what an instance says."""


class TraceEvent(BaseModel):
    """One op as it ran, in nanoseconds since the step's start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    stage: int
    virtual_stage: int | None
    microbatch: int | None
    asked: int = Field(description="When the engine turned to the op; until start it waited for its input.")
    start: int
    end: int
    memory_bytes: int = Field(0, description="Bytes kept for backward passes on the stage when the op ended.")
    allocated_bytes: int = Field(0, description="All that the GPU's allocator had handed out when the op ended.")
    core_wait_ns: int = Field(
        0, description="How long the process was ready without a core since its last op ended (network wait, Linux)."
    )
    checksum: str | None = Field(None, description="Of F's output, or of the gradient that B or BW hands on.")
    gradients_checksum: str | None = Field(
        None, description="Of the parameters' gradients as B, W or BW leaves them, added up so far."
    )

    def event(self, iteration: int, unit_ns: int = 1) -> Event:
        """As an event of a schedule, times in units of ``unit_ns``."""
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
    """One step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    losses: tuple[float, ...] = ()
    events: tuple[TraceEvent, ...]

    @property
    def makespan_ns(self) -> int:
        """From the first start to the last end, optimizer included."""
        return max(e.end for e in self.events) - min(e.start for e in self.events)


class Trace(BaseModel):
    """A run: the plan, what it ran on, and every step's events."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True)

    schema_version: Literal["zbopt.trace/1"] = Field("zbopt.trace/1", alias="schema")
    plan: Schedule
    network: Network
    training: Training
    device: str
    processes: int
    simulated: bool = Field(description="Ops only waited their planned time.")
    versions: dict[str, str] = Field(default_factory=dict)
    decisions: tuple[tuple[int, str, float], ...] = Field((), description="(step, act, global gradient norm).")
    weights: dict[str, str] = Field(default_factory=dict, description="Checksum of each parameter after the last step.")
    steps: tuple[TraceStep, ...]

    def best_step(self) -> TraceStep:
        """The step with the median makespan of all but the first, which sets the engine up; the only one if alone."""
        steps = sorted(self.steps[1:] or self.steps, key=lambda step: step.makespan_ns)
        return steps[(len(steps) - 1) // 2]

    def observed(self, step: TraceStep | None = None) -> Schedule:
        """A step as a schedule that the validator reads, in nanoseconds (microseconds where an op lasts a second).

        Its instance carries the median duration of each op and no communication time: a transfer is part of what was
        waited for. The durations of single events differ from the medians; that is what was observed. Without a barrier
        in the plan the optimizer steps are left out.
        """
        step = step or self.best_step()
        longest = max(e.end - e.start for e in step.events)
        unit, tick = (1, "1ns") if longest <= MAX_TICKS else (1000, "1us")
        steps = self.plan.instance.optimizer_ticks is not None
        events = tuple(e.event(0, unit) for e in step.events if steps or e.kind is not Kind.O)
        return Schedule(
            instance=_observed_instance(self.plan.instance, events, tick),
            provenance=Provenance(source=SOURCE, versions=self.versions),
            events=tuple(sorted(events, key=lambda e: (e.stage, e.start))),
        )


def _observed_instance(plan: Instance, events: tuple[Event, ...], tick: str) -> Instance:
    durations: dict[tuple[Kind, int], list[int]] = defaultdict(list)
    for event in events:
        where = event.stage if event.virtual_stage is None else event.virtual_stage
        durations[event.kind, where].append(max(1, event.end - event.start))

    def typical(kind: Kind, count: int) -> list[int | None]:
        return [int(median(durations[kind, v])) if durations[kind, v] else None for v in range(count)]

    n = plan.virtual_stages
    fields: dict[str, Any] = plan.model_dump(
        include={"stages", "microbatches", "stage_of", "activation", "weight_share", "barrier", "objective"}
    )
    fields |= {"tick": tick, "forward_ticks": typical(Kind.F, n), "name": "observed"}
    backward, weight, fused = (typical(kind, n) for kind in (Kind.B, Kind.W, Kind.BW))
    if any(backward):
        fused = [f or ((b or 1) + (w or 1)) for f, b, w in zip(fused, backward, weight, strict=True)]
        fields["backward_ticks"] = [b or 1 for b in backward]
        fields["weight_ticks"] = [w or 1 for w in weight]
    fields["fused_backward_ticks"] = fused
    if plan.optimizer_ticks is not None:
        fields["optimizer_ticks"] = [ticks or 0 for ticks in typical(Kind.O, plan.stages)]
    return Instance.model_validate(fields)


def write_trace(trace: Trace, path: Path | str) -> None:
    """Write ``trace`` as JSON, one event a line."""
    head = trace.model_dump(mode="json", exclude={"steps"})
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    steps = []
    for step in trace.steps:
        events = ",\n".join(f"      {json.dumps(event.model_dump(mode='json'))}" for event in step.events)
        head_of_step = step.model_dump_json(exclude={"events"}).removesuffix("}")
        steps.append(f'    {head_of_step}, "events": [\n{events}\n    ]}}')
    body = ",\n".join(steps)
    Path(path).write_text("{\n" + "\n".join(lines) + f'\n  "steps": [\n{body}\n  ]\n}}\n', encoding="utf-8")


def read_trace(path: Path | str) -> Trace:
    """Read a trace file.

    Raises:
        ValueError: One line that names the file, the field, the value and the limit.
    """
    path = Path(path)
    return trace_from_document(read_document(path), str(path))


def trace_from_document(document: object, where: str) -> Trace:
    """A trace from parsed JSON. Raises ``ValueError`` as ``read_trace`` does, with ``where`` as the file's name."""
    if not isinstance(document, dict) or document.get("schema") != "zbopt.trace/1":
        raise ValueError(f"{where}: not a trace; give a file that zbopt replay --trace wrote")
    try:
        return Trace.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{where}: {first_error(error)}") from None
