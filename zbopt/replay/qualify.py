"""The four proofs of a schedule in one report: dependencies, numbers, memory, performance.

A proof that could not run says so and never counts as passed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from zbopt.analysis.metrics import memory_curve
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.problem.facts import Axis, CutRule, Facts, Unit, facts_by_field, fields_in_use
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Event, Schedule
from zbopt.replay.spec import Job, Network, Training
from zbopt.replay.trace import Trace, TraceEvent, TraceStep
from zbopt.validator import Code, validate


class Outcome(StrEnum):
    """Say how a proof ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"


@dataclass(frozen=True, slots=True)
class Proof:
    """Hold one proof: its outcome, one sentence, and the figures behind it."""

    name: str
    outcome: Outcome
    sentence: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """Hold all four proofs; a schedule is qualified only if each has passed."""

    schedule: str
    baseline: str | None
    proofs: tuple[Proof, ...]

    @property
    def verdict(self) -> str:
        """Return ``qualified``, ``failed``, or ``incomplete`` where a proof could not run and none failed."""
        outcomes = {proof.outcome for proof in self.proofs}
        if Outcome.FAILED in outcomes:
            return "failed"
        return "incomplete" if Outcome.NOT_RUN in outcomes else "qualified"

    def document(self) -> dict[str, Any]:
        """Convert to a document for JSON."""
        return {
            "verdict": self.verdict,
            "schedule": self.schedule,
            "baseline": self.baseline,
            "parts": [asdict(proof) for proof in self.proofs],
        }


def trace_of(job: Job, plan: Schedule, result: Mapping[str, Any]) -> Trace:
    """Build the trace of a replay job from its result."""
    return Trace(
        plan=plan,
        network=job.network,
        training=job.training,
        device=job.device,
        processes=1 if job.single_process else plan.instance.stages * job.training.data_parallel,
        simulated=job.network.kind == "wait",
        versions={name: version(name) for name in ("zbopt", "torch")},
        decisions=tuple(tuple(d) for d in result["decisions"]),
        weights=result["weights"],
        steps=tuple(TraceStep.model_validate(step) for step in result["steps"]),
    )


def proof_defaults(training: Training) -> dict[str, Any]:
    """Return the fields that a proof changes in ``training`` where the user left them at their defaults.

    Step 1 overflows, step 3 is clipped, and the loss scale is on, so that the proof covers all three.
    """
    given = training.model_fields_set
    changes: dict[str, Any] = {}
    if not training.overflow_at and training.steps > 1:
        changes["overflow_at"] = (1,)
    if training.clip_norm is None and training.steps > 3:
        changes |= {"clip_norm": 0.05, "clip_at": (3,)}
    if "loss_scale" not in given or training.loss_scale == 1.0:
        changes["loss_scale"] = 1024.0
    return changes


def baseline_of(instance: Instance) -> Schedule | None:
    """Build the schedule to beat: 1F1B with whole backwards and one virtual stage a stage, or another that applies.

    ``None``: no heuristic applies. The memory cap is ignored: what the baseline needs is reported, not refused.
    """
    free = instance.model_copy(update={"memory_cap": None})
    for candidate in (_one_virtual_stage_each(free), free):
        for name in ("1f1b", "1f1b-split", "interleaved", "gpipe"):
            try:
                return HEURISTICS[name](candidate)
            except (NotApplicableError, CannotFitError):
                continue
    return None


def _one_virtual_stage_each(instance: Instance) -> Instance:
    """Join virtual stages to one for each stage, in forward order; the instance itself where they cannot be joined.

    They cannot where they do not divide, where microbatches differ, or where a field in use has no value for all of
    a group.
    """
    size, left = divmod(instance.virtual_stages, instance.stages)
    if left or size == 1 or instance.routes is not None or instance.microbatch_times is not None:
        return instance
    in_use = fields_in_use(instance)
    fields = instance.model_dump(exclude={"stage_of"})
    for name, facts in facts_by_field(Instance):
        values = getattr(instance, name)
        if name in fields and facts.axis is Axis.VIRTUAL_STAGE and values is not None:
            fields[name] = _joined(instance, facts, values, size)
            if fields[name] is None and name in in_use:
                return instance
    return Instance.model_validate(fields)


def _joined(instance: Instance, facts: Facts, values: Sequence[Any], size: int) -> list[Any] | None:
    """Return a field of groups of ``size`` virtual stages: the undoing of their cut; ``None``: it has no such value."""
    groups = _groups(values, size)
    if facts.cut is CutRule.DIVIDED:
        return [_sum(group) for group in groups]
    if facts.unit is Unit.SHARE:
        activations = _groups(instance.activation, size)
        return [_mean(shares, of) for shares, of in zip(groups, activations, strict=True)]
    if facts.cut is CutRule.KEPT and all(len(set(group)) == 1 for group in groups):
        return [group[0] for group in groups]
    return None


def _sum(values: Sequence[Any]) -> Any:
    """Return what is there of several times or amounts; ``None`` where nothing is."""
    present = [value for value in values if value is not None]
    return sum(present) if present else None


def _mean(shares: Sequence[Fraction], amounts: Sequence[Fraction]) -> Fraction:
    """Return the share of the whole that has these shares of its amounts; 1 of nothing."""
    whole = sum(amounts)
    held = sum(amount * share for amount, share in zip(amounts, shares, strict=True))
    return Fraction(held) / whole if whole else Fraction(1)


def _groups(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Cut ``values`` into groups of ``size``."""
    return [values[i : i + size] for i in range(0, len(values), size)]


def dependencies(plan: Schedule, trace: Trace | None) -> Proof:
    """Prove that the plan is valid, and that the run kept every rule except the durations, which were observed."""
    verdict = validate(plan.instance, plan)
    if not verdict.valid:
        return Proof("dependencies", Outcome.FAILED, f"the plan is invalid: {verdict.violations[0]}")
    if trace is None:
        return Proof("dependencies", Outcome.NOT_RUN, "the plan is valid; there is no trace of a run")
    observed = trace.observed()
    broken = [v for v in validate(observed.instance, observed).violations if v.code not in (Code.WRONG_DURATION,)]
    if broken:
        return Proof("dependencies", Outcome.FAILED, f"the run broke a rule: {broken[0]}", {"violations": len(broken)})
    return Proof("dependencies", Outcome.PASSED, "plan and run are valid", {"events": len(observed.events)})


def numbers(result: Mapping[str, Any] | None) -> Proof:
    """Prove that gradients, weights and optimizer state equal those of a plain loop in one process."""
    if result is None:
        return not_run("numbers", "network wait computes nothing; choose --network mlp or gpt")
    first = result["first_difference"]
    if first:
        return Proof("numbers", Outcome.FAILED, first["message"], result)
    count, worst = result["gradients_compared"], result["worst"]
    sentence = f"{count} gradients, all weights and optimizer states bit-equal to a plain loop's"
    if not all(result["bit_equal"].values()):
        sentence = (
            f"{count} gradients bit-equal to those of a loop that adds up in the same order; from microbatch order "
            f"gradients are {worst['gradient']:.1e} away at the same weights, weights {worst['weight']:.1e} at most"
        )
    return Proof("numbers", Outcome.PASSED, sentence, result)


def memory(plan: Schedule, trace: Trace, costs: Mapping[str, Any] | None) -> Proof:
    """Prove that no stage's observed peak is above the plan's memory ledger with measured sizes.

    Ledger and trace both count what is kept for backward passes. On a GPU the figures also have the most that the
    allocator handed out, which includes weights, gradients and the buffers of PyTorch's runtime.
    """
    if costs is None:
        return not_run("memory", "network wait keeps nothing in memory; choose --network mlp or gpt")
    single = trace.processes == 1
    ledger = _ledger_peaks(plan, costs["activation_bytes"], costs["held_bytes"], single=single)
    events = [event for step in trace.steps for event in step.events]
    observed = _observed_peaks(events, plan.instance.stages, single=single)
    allocated = max(e.allocated_bytes for e in events) or None
    figures = {"ledger_bytes": ledger, "observed_bytes": observed, "allocated_bytes": allocated}
    for stage, (most, seen) in enumerate(zip(ledger, observed, strict=True)):
        if seen > most:
            text = f"stage {stage} held {seen} bytes, but its ledger allows {most}"
            return Proof("memory", Outcome.FAILED, text, figures)
    fullest = max((seen / most for most, seen in zip(ledger, observed, strict=True) if most), default=0.0)
    text = f"no stage above its ledger; the fullest at {100 * fullest:.1f} % of it"
    return Proof("memory", Outcome.PASSED, text, figures)


def _ledger_peaks(plan: Schedule, activation: Sequence[int], held: Sequence[int], *, single: bool) -> list[int]:
    """Return the peak in bytes that the plan allows each stage, or all stages together in a single process.

    Args:
        plan: The schedule.
        activation: Bytes of an activation by virtual stage.
        held: Bytes of it that are held from B to W.
        single: Whether one process has all stages.
    """
    shares = [Fraction(h, a) if a else Fraction(0) for a, h in zip(activation, held, strict=True)]
    sizes = {"activation": tuple(map(Fraction, activation)), "weight_share": tuple(shares), "memory_cap": None}
    sized = plan.instance.model_copy(update=sizes)
    orders: Sequence[Sequence[Event]] = plan.by_stage()
    if single:
        orders = [sorted(plan.events, key=lambda e: e.start)]
    return [int(max((live for _, live in memory_curve(sized, order)), default=Fraction(0))) for order in orders]


def _observed_peaks(events: Sequence[TraceEvent], stages: int, *, single: bool) -> list[int]:
    """Return the largest memory seen on each stage, or on all stages together in a single process."""
    peaks = [max((e.memory_bytes for e in events if e.stage == stage), default=0) for stage in range(stages)]
    return [max(peaks)] if single else peaks


def performance(candidate: Trace, baseline: Trace | None) -> Proof:
    """Compare iteration time and idle share with those of the baseline on the same network, batch and accumulation."""
    if baseline is None:
        return not_run("performance", "no baseline schedule applies to this instance")
    cores = os.cpu_count() or 1
    real = not candidate.simulated and candidate.device == "cpu"
    figures: dict[str, Any] = {"candidate": _speed(candidate), "baseline": _speed(baseline)}
    if candidate.processes == 1 and candidate.plan.instance.stages > 1:
        text = "all stages share one process; run one process for each stage"
        return Proof("performance", Outcome.NOT_RUN, text, figures)
    if real and candidate.processes > cores:
        text = f"{candidate.processes} processes share {cores} cores, so times mean little; try --network wait"
        return Proof("performance", Outcome.NOT_RUN, text, figures)
    ours, theirs = candidate.median_step().makespan_ns, baseline.median_step().makespan_ns
    text = f"iteration {ours / 1e6:.1f} ms, baseline {theirs / 1e6:.1f} ms ({theirs / ours:.3f} times as fast)"
    idle = [figures[name]["steady_idle_share"] for name in ("candidate", "baseline")]
    if None not in idle:
        text += f"; idle in the steady window {100 * idle[0]:.1f} %, baseline {100 * idle[1]:.1f} %"
    if candidate.simulated:
        text += ", of ops that only wait"
    return Proof("performance", Outcome.PASSED if ours <= theirs else Outcome.FAILED, text, figures)


def _speed(trace: Trace) -> dict[str, Any]:
    """Return figures of the median iteration: its time, and the idle share of its steady window.

    The steady window is the time in which every stage has started and none has ended.
    """
    step = trace.median_step()
    by_stage: dict[int, list[TraceEvent]] = defaultdict(list)
    for event in step.events:
        by_stage[event.stage].append(event)
    begin = max(min(e.start for e in events) for events in by_stage.values())
    end = min(max(e.end for e in events) for events in by_stage.values())
    busy = sum(_overlap(e, begin, end) for e in step.events)
    window = max(0, end - begin)
    return {
        "iteration_ns": step.makespan_ns,
        "steady_window_ns": window,
        "steady_idle_share": 1 - busy / (window * len(by_stage)) if window else None,
    }


def _overlap(event: TraceEvent, begin: int, end: int) -> int:
    """Return how much of ``event`` lies between ``begin`` and ``end``."""
    return max(0, min(event.end, end) - max(event.start, begin))


def jobs_of(
    path: Path, network: Network, training: Training, plan: Schedule, device: Literal["cpu", "cuda"], folder: str
) -> tuple[Job, Job]:
    """Build the jobs that replay and prove the schedule at ``path`` on one network.

    The proof stops and resumes once, from a checkpoint in ``folder``.
    """
    layered = network.model_copy(update={"layers": network.layers or plan.instance.virtual_stages})
    longer = training.model_copy(update={"steps": max(5, training.steps)})
    proof = longer.model_copy(update=proof_defaults(longer))
    replayed = Job(task="replay", schedule=str(path), network=layered, training=training, device=device)
    changes = {"task": "prove", "training": proof, "resume_at": 2, "checkpoint_dir": folder}
    return replayed, replayed.model_copy(update=changes)


AFTER = ("numbers", "memory", "performance")
"""Names of the proofs that need a valid plan."""


def not_run(name: str, why: str) -> Proof:
    """Return a proof that did not run, and why."""
    return Proof(name, Outcome.NOT_RUN, why)
