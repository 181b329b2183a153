"""The instance that the flags of a call ask about, with a note on whatever was not taken as written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from zbopt.cli.field_flags import fields_of_texts, fields_of_times, time_texts
from zbopt.cli.flags import ProblemFlags
from zbopt.cli.placements import AUTO, BIDIRECTIONAL, candidates, stage_of_flags
from zbopt.costs.cutting import Candidate, cut_fields, finest, require_cuttable
from zbopt.costs.runtimes import run_by
from zbopt.costs.times import Times, parse_times, tick_name, tick_ns
from zbopt.problem.facts import flags_by_field
from zbopt.problem.instance import Barrier, Instance, read_instance
from zbopt.problem.routes import bidirectional
from zbopt.reports.words import value_text


@dataclass(frozen=True, slots=True)
class Problem:
    """Hold an instance, and one sentence for each field in which it departs from its file."""

    instance: Instance
    notes: tuple[str, ...] = ()


def problem_of(flags: ProblemFlags) -> Problem:
    """Return the problem that ``flags`` ask about.

    Raises:
        ValueError: One line that names the flag or field, the value, the limit and the way out.
    """
    if flags.instance is not None:
        return _from_file(flags)
    _require_size(flags)
    times = parse_times(_times(flags), flags.tick)
    fields: dict[str, Any] = {"tick": times.tick, "rounding_ticks": times.rounding_ticks}
    stage_of = stage_of_flags(flags)
    if stage_of is not None:
        fields["stage_of"] = stage_of
    if flags.placement == BIDIRECTIONAL:
        stages, microbatches = flags.fields["stages"], flags.fields["microbatches"]
        if microbatches == 1:
            raise ValueError("--placement bidirectional with --micro 1: give a microbatch for each way, 2 or more")
        # Other sizes the instance refuses in its own words.
        fields["routes"] = bidirectional(stages, microbatches) if stages >= 1 and microbatches >= 2 else None
    fields |= fields_of_times(times.ticks) | fields_of_texts(flags.fields)
    return _as_run(flags, Problem(Instance.model_validate(fields)))


def placed_problems(flags: ProblemFlags) -> dict[str, Problem]:
    """Return the problem under each candidate of ``--placement auto``, by the placement's name.

    Raises:
        ValueError: As ``problem_of`` does, or the pipeline cannot be cut into slices.
    """
    alone = replace(flags, placement=None, virtual=None, runtime=None)
    whole = problem_of(alone)
    given = whole.instance
    try:
        require_cuttable(given, f"--placement {AUTO}")
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
        problems[candidate.name] = _as_run(flags, Problem(Instance.model_validate(fields), (*whole.notes, note)))
    return problems


def _cut_note(candidate: Candidate, finer: int) -> str:
    note = "times and amounts given are of a whole stage"
    if candidate.slices > 1:
        note += f"; its part of the model is cut into {candidate.slices} slices, which take 1/{candidate.slices} each"
    if candidate.name == BIDIRECTIONAL:
        note += "; each stage holds parts of two replicas"
    return note + (f"; 1 tick is 1/{finer} of the unit given" if finer > 1 else "")


def _require_size(flags: ProblemFlags) -> None:
    missing = [name for name in ("stages", "microbatches") if name not in flags.fields]
    if missing:
        flag = flags_by_field(Instance)[missing[0]].name
        raise ValueError(f"{flag} is missing; give --stages and --micro, or an instance file")


def _times(flags: ProblemFlags) -> dict[str, str]:
    """Return the times as written, with the defaults; a fused backward alone leaves no B and no W."""
    given = time_texts(flags.fields)
    given.setdefault("forward", "1")
    if "fused_backward" not in given:
        given.setdefault("backward", "1")
        given.setdefault("weight", "1")
    return given


def _from_file(flags: ProblemFlags) -> Problem:
    assert flags.instance is not None
    beside_file = {flag.parameter for flag in flags_by_field(Instance).values() if flag.beside_file}
    clash = [flag for flag in flags.given() if flag not in (*beside_file, "runtime", "instance")]
    if clash:
        name = "--" + clash[0].replace("_", "-")
        raise ValueError(f"{name} beside {flags.instance}: the file says it; change the file, or leave the file out")
    old = read_instance(flags.instance)
    changes: dict[str, Any] = fields_of_texts(flags.fields)
    texts = time_texts(flags.fields)
    if texts:
        times = _in_ticks_of(old, texts)
        changes |= fields_of_times(times.ticks)
        changes["rounding_ticks"] = max(times.rounding_ticks, old.rounding_ticks)
    if changes.get("barrier") == Barrier.NONE:
        changes.setdefault("optimizer_ticks", None)
    if not changes:
        return _as_run(flags, Problem(old))
    new = Instance.model_validate(old.model_dump(exclude_none=True) | changes)
    return _as_run(flags, Problem(new, tuple(_notes(old, new))))


def _as_run(flags: ProblemFlags, problem: Problem) -> Problem:
    """Return the problem as ``--runtime`` runs it, with a note on what that sets."""
    if flags.runtime is None:
        return problem
    new = run_by(problem.instance, flags.runtime)
    changed = [name for name in Instance.model_fields if getattr(new, name) != getattr(problem.instance, name)]
    note = (
        f"the runtime {flags.runtime.value} sets {', '.join(changed)}" if changed else "the runtime sets nothing else"
    )
    return Problem(new, (*problem.notes, note))


def _in_ticks_of(instance: Instance, texts: Mapping[str, str]) -> Times:
    if instance.tick == "unit":
        times = parse_times(texts)
        if times.tick == "unit":
            return times
        flag, text = next(iter(texts.items()))
        raise ValueError(f"{flag} = {text!r}: the instance's tick is a bare unit; give whole ticks")
    return parse_times(texts, instance.tick)


def _notes(old: Instance, new: Instance) -> list[str]:
    """Return a sentence for each field that a flag changes beside a file."""
    notes = []
    for field, flag in flags_by_field(Instance).items():
        before, after = getattr(old, field), getattr(new, field)
        if flag.beside_file and before != after:
            notes.append(f"{field} is {value_text(after)}; the file says {value_text(before)}")
    return notes
