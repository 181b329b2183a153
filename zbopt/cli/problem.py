"""From the flags of a call to the instance it asks about, with a note on whatever was not taken as written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from pydantic import ValidationError

from zbopt.cli.cutting import cut_fields, finest, require_cuttable
from zbopt.cli.flags import BarrierFlag, ProblemFlags
from zbopt.cli.memory_flags import MEMORY_TIMES, memory_fields
from zbopt.cli.placements import BIDIRECTIONAL, Candidate, candidates, stage_of_flags
from zbopt.cli.step_flags import SINGLE_TIMES, STEP_TIMES, step_fields
from zbopt.costs.runtimes import run_by
from zbopt.costs.times import Times, parse_times, tick_name, tick_ns
from zbopt.problem.instance import Instance, first_error, read_instance
from zbopt.problem.routes import bidirectional
from zbopt.reports.words import value_text

_TIME_FLAGS = {
    "forward": "forward_ticks",
    "backward": "backward_ticks",
    "weight": "weight_ticks",
    "fused_backward": "fused_backward_ticks",
    "overlapped": "overlapped_ticks",
    "comm": "comm_ticks",
    "optimizer": "optimizer_ticks",
    **STEP_TIMES,
    **MEMORY_TIMES,
}
_BESIDE_FILE = (
    *("mem_limit", "objective", "barrier", "optimizer", "communication", "transfer_occupies", "iterations"),
    *("recompute", "offload", "runtime"),
)
"""Flags that may stand beside an instance file: what is asked of a pipeline, as against what it is."""

_SINGLE = ("comm", *SINGLE_TIMES)
"""Flags that take one time."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The instance, and one sentence for each field in which it departs from its file."""

    instance: Instance
    notes: tuple[str, ...] = ()


def problem_of(flags: ProblemFlags) -> Problem:
    """The problem that ``flags`` ask about.

    Raises:
        ValueError: One line that names the flag or field, the value, the limit and the way out.
    """
    if flags.instance is not None:
        return _from_file(flags)
    _require_size(flags)
    times = parse_times(_times(flags), flags.tick)
    fields: dict[str, Any] = {"stages": flags.stages, "microbatches": flags.micro, "tick": times.tick}
    fields["rounding_ticks"] = times.rounding_ticks
    stage_of = stage_of_flags(flags)
    if stage_of is not None:
        fields["stage_of"] = stage_of
    if flags.placement == BIDIRECTIONAL:
        if flags.micro == 1:
            raise ValueError("--placement bidirectional with --micro 1: give a microbatch for each way, 2 or more")
        fields["routes"] = bidirectional(flags.stages or 0, flags.micro or 0) if _two_ways(flags) else None
    for flag, ticks in times.ticks.items():
        fields[_TIME_FLAGS[flag]] = _one(flag, ticks) if flag in _SINGLE else _listed(flag, ticks)
    if flags.weight_share is not None:
        fields["weight_share"] = _list(flags.weight_share)
    fields |= _asked(flags)
    return _as_run(flags, Problem(_instance(fields)))


def placed_problems(flags: ProblemFlags) -> dict[str, Problem]:
    """The problem under each candidate of ``--placement auto``, by the placement's name.

    Raises:
        ValueError: As ``problem_of`` does, or the pipeline cannot be cut into slices.
    """
    alone = replace(flags, placement=None, virtual=None, runtime=None)
    whole = problem_of(alone)
    given = whole.instance
    try:
        require_cuttable(given)
    except ValueError as error:
        raise ValueError(f"{flags.instance}: {error}" if flags.instance else str(error)) from None
    tried = [c for c in candidates(given.stages, flags.virtual) if c.name != BIDIRECTIONAL or given.microbatches > 1]
    finer = finest(given, lcm(*(candidate.slices for candidate in tried)))
    if flags.instance is None and given.tick != "unit":
        if finer > 1 and flags.tick is None:  # from the times as written, which may be finer than the tick
            given = problem_of(replace(alone, tick=tick_name(tick_ns(given.tick) / finer))).instance
        finer = 1
    problems = {}
    for candidate in tried:
        fields = dict(cut_fields(given, candidate, finer))
        if candidate.name == BIDIRECTIONAL:
            fields["routes"] = bidirectional(given.stages, given.microbatches)
        note = _cut_note(candidate, finer if given.tick == "unit" else 1)
        problems[candidate.name] = _as_run(flags, Problem(_instance(fields), (*whole.notes, note)))
    return problems


def _two_ways(flags: ProblemFlags) -> bool:
    """There is a microbatch for each way; other sizes the instance refuses in its own words."""
    return (flags.stages or 0) >= 1 and (flags.micro or 0) >= 2


def _cut_note(candidate: Candidate, finer: int) -> str:
    note = "times and amounts given are of a whole stage"
    if candidate.slices > 1:
        note += f"; its part of the model is cut into {candidate.slices} slices, which take 1/{candidate.slices} each"
    if candidate.name == BIDIRECTIONAL:
        note += "; each stage holds parts of two replicas"
    return note + (f"; 1 tick is 1/{finer} of the unit given" if finer > 1 else "")


def _require_size(flags: ProblemFlags) -> None:
    missing = [flag for flag in ("stages", "micro") if getattr(flags, flag) is None]
    if missing:
        raise ValueError(f"--{missing[0]} is missing; give --stages and --micro, or an instance file")


def _times(flags: ProblemFlags) -> dict[str, str]:
    """The times as written, with the defaults; a fused backward alone leaves no B and no W."""
    given = {flag: text for flag in _TIME_FLAGS if (text := getattr(flags, flag)) is not None}
    given.setdefault("forward", "1")
    if "fused_backward" not in given:
        given.setdefault("backward", "1")
        given.setdefault("weight", "1")
    return given


def _asked(flags: ProblemFlags) -> dict[str, Any]:
    """The fields of the flags that may stand beside a file, except times."""
    fields: dict[str, Any] = {}
    if flags.mem_limit is not None:
        fields["memory_cap"] = _list(flags.mem_limit)
    fields |= step_fields(flags) | memory_fields(flags)
    for flag in ("objective", "barrier"):
        value = getattr(flags, flag)
        if value is not None:
            fields[flag] = value.value.replace("-", "_")
    return fields


def _list(text: str) -> object:
    return _spread(tuple(part.strip() for part in text.split(",")))


def _spread(values: tuple[Any, ...]) -> object:
    """One value stands for all stages."""
    return values[0] if len(values) == 1 and values[0] is not None else values


def _one(flag: str, ticks: tuple[int | None, ...]) -> int:
    if len(ticks) != 1 or ticks[0] is None:
        holds = "every transfer" if flag in ("comm", "node_comm") else "the step"
        raise ValueError(f"--{flag.replace('_', '-')}: {len(ticks)} times; give one, it holds for {holds}")
    return ticks[0]


def _listed(flag: str, ticks: tuple[int | None, ...]) -> object:
    """One value stands for all stages, but not for all microbatches."""
    return list(ticks) if flag == "input_ready" else _spread(ticks)


def _instance(fields: dict[str, Any]) -> Instance:
    try:
        return Instance.model_validate(fields)
    except ValidationError as error:
        raise ValueError(first_error(error)) from None


def _from_file(flags: ProblemFlags) -> Problem:
    assert flags.instance is not None
    given = [flag for flag in ProblemFlags.__dataclass_fields__ if getattr(flags, flag) is not None]
    clash = [flag for flag in given if flag not in (*_BESIDE_FILE, "instance")]
    if clash:
        name = "--" + clash[0].replace("_", "-")
        raise ValueError(f"{name} beside {flags.instance}: the file says it; change the file, or leave the file out")
    old = read_instance(flags.instance)
    changes = _asked(flags)
    if flags.optimizer is not None:
        times = _in_ticks_of(old, flags.optimizer)
        changes["optimizer_ticks"] = _spread(times.ticks["optimizer"])
        changes["rounding_ticks"] = max(times.rounding_ticks, old.rounding_ticks)
    if flags.barrier is BarrierFlag.NONE:
        changes.setdefault("optimizer_ticks", None)
    if not changes:
        return _as_run(flags, Problem(old))
    new = _instance(old.model_dump(exclude_none=True) | changes)
    return _as_run(flags, Problem(new, tuple(_notes(old, new))))


def _as_run(flags: ProblemFlags, problem: Problem) -> Problem:
    """The problem as ``--runtime`` runs it, with a note on what that sets."""
    if flags.runtime is None:
        return problem
    new = run_by(problem.instance, flags.runtime)
    changed = [name for name in Instance.model_fields if getattr(new, name) != getattr(problem.instance, name)]
    note = (
        f"the runtime {flags.runtime.value} sets {', '.join(changed)}" if changed else "the runtime sets nothing else"
    )
    return Problem(new, (*problem.notes, note))


def _in_ticks_of(instance: Instance, text: str) -> Times:
    if instance.tick == "unit":
        times = parse_times({"optimizer": text})
        if times.tick == "unit":
            return times
        raise ValueError(f"optimizer = {text!r}: the instance's tick is a bare unit; give whole ticks")
    return parse_times({"optimizer": text}, instance.tick)


def _notes(old: Instance, new: Instance) -> list[str]:
    notes = []
    asked = (
        "memory_cap",
        "objective",
        "barrier",
        "optimizer_ticks",
        "communication",
        "transfer_occupies",
        "iterations",
        "recompute",
        "offload",
    )
    for field in asked:
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            notes.append(f"{field} is {value_text(after)}; the file says {value_text(before)}")
    return notes
