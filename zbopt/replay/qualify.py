"""The four proofs of a schedule in one report: dependencies, numbers, memory, performance.

A part that could not run says so and never counts as passed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from zbopt.analysis.metrics import memory_curve
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule
from zbopt.replay.spec import Job, Network, Training
from zbopt.replay.trace import Trace, TraceEvent, TraceStep
from zbopt.validator import Code, validate


class Outcome(StrEnum):
    """What came of a part."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"


@dataclass(frozen=True, slots=True)
class Part:
    """One proof: what came of it, one sentence, and the figures behind it."""

    name: str
    outcome: Outcome
    sentence: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """All four parts; qualified only if each has passed."""

    schedule: str
    baseline: str | None
    parts: tuple[Part, ...]

    @property
    def verdict(self) -> str:
        """``qualified``, ``failed``, or ``incomplete`` where a part could not run and none failed."""
        outcomes = {part.outcome for part in self.parts}
        if Outcome.FAILED in outcomes:
            return "failed"
        return "incomplete" if Outcome.NOT_RUN in outcomes else "qualified"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"verdict": self.verdict} | asdict(self)


def trace_of(job: Job, plan: Schedule, result: Mapping[str, Any]) -> Trace:
    """The trace of a replay job's result."""
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


def proving(training: Training) -> dict[str, Any]:
    """What a proof does unless told otherwise: an overflow in step 1, clipping in step 3 of at least 5."""
    own = training.model_fields_set
    changes: dict[str, Any] = {}
    if not training.overflow_at and training.steps > 1:
        changes["overflow_at"] = (1,)
    if training.clip_norm is None and training.steps > 3:
        changes |= {"clip_norm": 0.05, "clip_at": (3,)}
    if "loss_scale" not in own or training.loss_scale == 1.0:
        changes["loss_scale"] = 1024.0
    return changes


def baseline_of(instance: Instance) -> Schedule | None:
    """The schedule to beat: 1F1B with BW, on the same layers in one slice a stage; else another that applies.

    ``None``: no heuristic applies. The cap is left out: what the baseline needs is a finding, not a fault.
    """
    free = instance.model_copy(update={"memory_cap": None})
    for candidate in (_linear(free), free):
        for name in ("1f1b", "1f1b-split", "interleaved", "gpipe"):
            try:
                return HEURISTICS[name](candidate)
            except (NotApplicableError, CannotFitError):
                continue
    return None


def _linear(instance: Instance) -> Instance:
    """The same work with the virtual stages of each stage in one piece; itself where that does not divide."""
    per, left = divmod(instance.virtual_stages, instance.stages)
    if left or per == 1:
        return instance
    fields = instance.model_dump(exclude={"stage_of", "weight_share"})
    shares = [a * s for a, s in zip(instance.activation, instance.weight_share, strict=True)]
    for name in ("forward_ticks", "backward_ticks", "weight_ticks", "fused_backward_ticks", "activation"):
        if (values := getattr(instance, name)) is not None:
            fields[name] = [sum(v or 0 for v in group) or None for group in _groups(values, per)]
    whole = [sum(group) for group in _groups(instance.activation, per)]
    fields["weight_share"] = [
        Fraction(sum(group)) / total if total else Fraction(1)
        for group, total in zip(_groups(shares, per), whole, strict=True)
    ]
    return Instance.model_validate(fields | {"activation": whole})


def _groups(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[i : i + size] for i in range(0, len(values), size)]


def dependencies(plan: Schedule, trace: Trace | None) -> Part:
    """The plan is valid, and what ran kept every rule but the durations, which were observed."""
    verdict = validate(plan.instance, plan)
    if not verdict.valid:
        return Part("dependencies", Outcome.FAILED, f"the plan is invalid: {verdict.violations[0]}")
    if trace is None:
        return Part("dependencies", Outcome.NOT_RUN, "the plan is valid; there is no trace of a run")
    observed = trace.observed()
    broken = [v for v in validate(observed.instance, observed).violations if v.code not in (Code.WRONG_DURATION,)]
    if broken:
        return Part("dependencies", Outcome.FAILED, f"the run broke a rule: {broken[0]}", {"violations": len(broken)})
    return Part("dependencies", Outcome.PASSED, "plan and run are valid", {"events": len(observed.events)})


def numbers(result: Mapping[str, Any] | None) -> Part:
    """Gradients, weights and optimizer state against the single process."""
    if result is None:
        return not_run("numbers", "the network wait computes nothing; choose mlp or gpt")
    first = result["first_difference"]
    if first:
        return Part("numbers", Outcome.FAILED, first["message"], result)
    count, worst = result["gradients_compared"], result["worst"]
    sentence = f"{count} gradients, all weights and optimizer states bit-equal to a plain loop's"
    if not all(result["bit_equal"].values()):
        sentence = (
            f"{count} gradients bit-equal to those of a loop that adds up in the same order; from microbatch order "
            f"gradients are {worst['gradient']:.1e} away at the same weights, weights {worst['weight']:.1e} at most"
        )
    return Part("numbers", Outcome.PASSED, sentence, result)


def memory(plan: Schedule, trace: Trace, costs: Mapping[str, Any] | None) -> Part:
    """Observed peak of each stage against the ledger with measured sizes.

    The ledger is of what is kept for backward passes, and the trace counts just that. On a GPU the figures also have
    the most that the allocator handed out: weights, gradients and the engine's buffers lie there too.
    """
    if costs is None:
        return not_run("memory", "the network wait keeps nothing; choose mlp or gpt")
    kept, held = costs["activation_bytes"], costs["held_bytes"]
    shares = [Fraction(h, k) if k else Fraction(0) for k, h in zip(kept, held, strict=True)]
    sized = plan.instance.model_copy(
        update={"activation": tuple(map(Fraction, kept)), "weight_share": tuple(shares), "memory_cap": None}
    )
    rows = plan.by_stage()
    ledger = [int(max((live for _, live in memory_curve(sized, row)), default=Fraction(0))) for row in rows]
    events = [event for step in trace.steps for event in step.events]
    observed = [max((e.memory_bytes for e in events if e.stage == s), default=0) for s in range(len(rows))]
    if trace.processes == 1:
        ordered = sorted(plan.events, key=lambda e: e.start)
        ledger = [int(max((live for _, live in memory_curve(sized, ordered)), default=Fraction(0)))]
        observed = [max(observed)]
    allocated = max(e.allocated_bytes for e in events) or None
    figures = {"ledger_bytes": ledger, "observed_bytes": observed, "allocated_bytes": allocated}
    over = [s for s, (most, seen) in enumerate(zip(ledger, observed, strict=True)) if seen > most]
    if over:
        s = over[0]
        text = f"stage {s} held {observed[s]} bytes, the ledger allows {ledger[s]}"
        return Part("memory", Outcome.FAILED, text, figures)
    tightest = max((seen / most for most, seen in zip(ledger, observed, strict=True) if most), default=0.0)
    text = f"no stage above its ledger; the fullest at {100 * tightest:.1f} % of it"
    return Part("memory", Outcome.PASSED, text, figures)


def performance(candidate: Trace, baseline: Trace | None) -> Part:
    """Whole iteration and steady window against the baseline schedule on the same network, batch and accumulation."""
    if baseline is None:
        return not_run("performance", "no baseline schedule applies to this instance")
    cores = os.cpu_count() or 1
    real = not candidate.simulated and candidate.device == "cpu"
    figures: dict[str, Any] = {"candidate": _speed(candidate), "baseline": _speed(baseline)}
    if candidate.processes == 1 and candidate.plan.instance.stages > 1:
        return Part("performance", Outcome.NOT_RUN, "all stages share one process; run a process a stage", figures)
    if real and candidate.processes > cores:
        text = f"{candidate.processes} processes share {cores} cores, so that times mean little; use more, or wait"
        return Part("performance", Outcome.NOT_RUN, text, figures)
    ours, theirs = candidate.best_step().makespan_ns, baseline.best_step().makespan_ns
    text = f"iteration {ours / 1e6:.1f} ms, baseline {theirs / 1e6:.1f} ms ({theirs / ours:.3f} times as fast)"
    idle = [figures[name]["steady_idle_share"] for name in ("candidate", "baseline")]
    if None not in idle:
        text += f"; idle in the steady window {100 * idle[0]:.1f} %, baseline {100 * idle[1]:.1f} %"
    if candidate.simulated:
        text += ", of ops that only wait"
    return Part("performance", Outcome.PASSED if ours <= theirs else Outcome.FAILED, text, figures)


def _speed(trace: Trace) -> dict[str, Any]:
    """The median iteration, and the idle share from the last stage's start to the first one's end."""
    step = trace.best_step()
    stages = range(trace.plan.instance.stages)
    rows = [[e for e in step.events if e.stage == s] for s in stages if any(e.stage == s for e in step.events)]
    begin = max(min(e.start for e in row) for row in rows)
    end = min(max(e.end for e in row) for row in rows)
    busy = sum(_inside(e, begin, end) for row in rows for e in row)
    window = max(0, end - begin)
    return {
        "iteration_ns": step.makespan_ns,
        "steady_window_ns": window,
        "steady_idle_share": 1 - busy / (window * len(rows)) if window else None,
    }


def _inside(event: TraceEvent, begin: int, end: int) -> int:
    return max(0, min(event.end, end) - max(event.start, begin))


def jobs_of(
    path: Path, network: Network, training: Training, plan: Schedule, device: Literal["cpu", "cuda"], folder: str
) -> tuple[Job, Job]:
    """(replay, prove) of the schedule at ``path``, on one network; the proof resumes from ``folder``."""
    layered = network.model_copy(update={"layers": network.layers or plan.instance.virtual_stages})
    longer = training.model_copy(update={"steps": max(5, training.steps)})
    proof = longer.model_copy(update=proving(longer))
    replayed = Job(task="replay", schedule=str(path), network=layered, training=training, device=device)
    changes = {"task": "prove", "training": proof, "resume_at": 2, "checkpoint_dir": folder}
    return replayed, replayed.model_copy(update=changes)


AFTER = ("numbers", "memory", "performance")
"""The parts after dependencies."""


def not_run(name: str, why: str) -> Part:
    """A part that did not run."""
    return Part(name, Outcome.NOT_RUN, why)
