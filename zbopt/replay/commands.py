"""``zbopt replay | prove | qualify | diff | profile``. Loads torch only when one of them runs something.

Each returns its exit code: 0, or 1 where numbers differ or a proof failed. Wrong calls and failed runs raise
``ValueError``.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from zbopt.documents import require_writable
from zbopt.flag_records import takes
from zbopt.instance import Instance, first_error, placement_of, write_instance
from zbopt.replay.diff import compare, page
from zbopt.replay.flags import JsonFlag, NetworkFlags, RunFlags, ScheduleArgument, SplitFlag, TrainingFlags
from zbopt.replay.launch import execute, under_torchrun
from zbopt.replay.qualify import (
    AFTER,
    Report,
    baseline_of,
    dependencies,
    jobs_of,
    memory,
    not_run,
    numbers,
    performance,
    proving,
    trace_of,
)
from zbopt.replay.spec import Job
from zbopt.replay.trace import Trace, read_trace, write_trace
from zbopt.schedule import Schedule, read_schedule, write_schedule

TraceFlag = Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="Write what ran to this file.")]
ObservedFlag = Annotated[
    Path | None, typer.Option("--observed", metavar="FILE", help="Write the median step as a schedule file.")
]


@takes(NetworkFlags, TrainingFlags, RunFlags)
def replay_command(
    network: NetworkFlags,
    training: TrainingFlags,
    run: RunFlags,
    *,
    schedule: ScheduleArgument,
    trace: TraceFlag = None,
    observed: ObservedFlag = None,
    checksums: Annotated[bool, typer.Option("--checksums", help="Of outputs and gradients, in the trace.")] = False,
    checkpoint_every: Annotated[
        int | None, typer.Option("--checkpoint-every", help="Steps between checkpoints in --checkpoint-dir.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Start from the last checkpoint there.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Train a small network by SCHEDULE on PyTorch, and report what ran when.

    Example: zbopt replay schedule.json --network gpt --trace trace.json
    """
    plan = read_schedule(schedule)
    for flag, path in (("--trace", trace), ("--observed", observed)):
        if path is not None:
            require_writable(path, schedule, flag=flag)
    if trace is not None and observed is not None and trace.resolve() == observed.resolve():
        raise ValueError(f"--observed {observed}: --trace writes to it too; give another path")
    more = {"checksums": checksums, "checkpoint_every": checkpoint_every, "resume": resume}
    job = run.job("replay", schedule, network.build(), training.build(3), **more)
    if (resume or checkpoint_every) and job.checkpoint_dir is None:
        raise ValueError("checkpoints have no folder; give --checkpoint-dir")
    if job.checkpoint_dir is not None and Path(job.checkpoint_dir).is_file():
        raise ValueError(f"{job.checkpoint_dir}: is a file; give --checkpoint-dir a folder")
    if resume and not any(Path(job.checkpoint_dir or "").glob("step-*/.metadata")):
        raise ValueError(f"{job.checkpoint_dir}: holds no complete checkpoint; leave --resume out to start anew")
    results = execute([job], plan, timeout_s=run.timeout)
    if results is None:
        return 0
    if not results[0]["steps"]:
        raise ValueError(f"{job.checkpoint_dir}: its last checkpoint has all {job.training.steps} steps; raise --steps")
    ran = trace_of(job, plan, results[0])
    if trace:
        write_trace(ran, trace)
    if observed:
        write_schedule(ran.observed(), observed)
    _replayed(ran, plan, as_json=as_json)
    return 0


def _json(record: object) -> str:
    """One object; a number that is none, such as a loss that overflowed, is null: JSON has no word for it."""
    return json.dumps(_finite(json.loads(json.dumps(record, default=str))), allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not isfinite(content) else content


def _replayed(ran: Trace, plan: Schedule, *, as_json: bool) -> None:
    step, found = ran.best_step(), compare(plan, ran)
    record = {
        "steps": len(ran.steps),
        "decisions": [list(decision) for decision in ran.decisions],
        "losses": [list(s.losses) for s in ran.steps],
        "makespan_ns": [s.makespan_ns for s in ran.steps],
        "median_step": step.step,
        "tick_ns": found.tick_ns,
        "planned_makespan_ns": found.planned_makespan,
        "makespan_error": found.makespan_error,
        "simulated": ran.simulated,
        "weights": ran.weights,
    }
    if as_json:
        typer.echo(_json(record))
        return
    kind = "simulated: ops only wait" if ran.simulated else f"{ran.network.kind}, {ran.network.dtype}"
    typer.echo(f"{len(ran.steps)} steps on {ran.processes} processes ({ran.device}; {kind})")
    for s, (_, act, norm) in zip(ran.steps, ran.decisions, strict=False):
        loss = sum(s.losses) / len(s.losses) if s.losses else float("nan")
        typer.echo(f"  step {s.step}: loss {loss:.6g}, norm {norm:.6g}, {act}, {s.makespan_ns / 1e6:.2f} ms")
    typer.echo(
        f"median step {step.step}: {step.makespan_ns / 1e6:.2f} ms, plan {found.planned_makespan / 1e6:.2f} ms "
        f"at {found.tick_ns / 1e6:.4g} ms a tick, error {found.makespan_error:+.1%}"
    )


@takes(NetworkFlags, TrainingFlags, RunFlags)
def prove_command(
    network: NetworkFlags,
    training: TrainingFlags,
    run: RunFlags,
    *,
    schedule: ScheduleArgument,
    as_json: JsonFlag = False,
) -> int:
    """Compare every gradient, weight and optimizer state of SCHEDULE with a plain loop in one process.

    Five steps, unless told otherwise: step 1 overflows, step 3 is clipped, and everything is stopped and resumed before
    step 2.

    Example: zbopt prove schedule.json --network gpt
    """
    plan = read_schedule(schedule)
    told = training.build(5)
    told = told.model_copy(update=proving(told))
    with ExitStack() as stack:
        folder = run.checkpoint_dir
        if folder is None and not under_torchrun():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zbopt-prove-")))
        job = run.job("prove", schedule, network.build(), told)
        if folder is not None and told.steps > 2:
            job = job.model_copy(update={"checkpoint_dir": str(folder), "resume_at": 2})
        results = execute([job], plan, timeout_s=run.timeout)
    if results is None:
        return 0
    found = results[0]
    passed = found["first_difference"] is None
    if as_json:
        typer.echo(_json({"passed": passed} | found))
    else:
        for line in _proof(found, job):
            typer.echo(line)
    return 0 if passed else 1


def _proof(found: dict[str, Any], job: Job) -> list[str]:
    part = numbers(found)
    asked = "bit for bit as a plain loop"
    if not found["bit_equality_expected"]:
        asked = "bit for bit as a loop that adds up in the schedule's order, and that close to a plain loop"
    resumed = f", resumed before step {job.resume_at}" if job.resume_at else ""
    return [
        f"numbers {part.outcome}: {part.sentence}",
        f"  asked: {asked}; steps: {', '.join(found['decisions'])}{resumed}",
        f"  optimistic steps taken back, by process: {found['rollbacks']}",
    ]


@takes(NetworkFlags, TrainingFlags, RunFlags)
def qualify_command(
    network: NetworkFlags,
    training: TrainingFlags,
    run: RunFlags,
    *,
    schedule: ScheduleArgument,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="Schedule to beat; default 1F1B, written beside SCHEDULE.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Four proofs in one report: dependencies, numbers, memory, performance. What could not run never passes.

    Example: zbopt qualify schedule.json --network gpt
    """
    if under_torchrun():
        raise ValueError("qualify starts its own processes; call it without torchrun")
    plan = read_schedule(schedule)
    report = _qualify(plan, schedule, baseline, network, training, run)
    if as_json:
        typer.echo(_json(report.document()))
    else:
        typer.echo(f"{report.schedule}: {report.verdict}")
        for part in report.parts:
            typer.echo(f"  {part.name:<13}{part.outcome:<8} {part.sentence}")
        if report.baseline:
            typer.echo(f"  to go back, run {report.baseline} instead: same network, batch and accumulation")
    return 0 if report.verdict == "qualified" else 1


def _qualify(
    plan: Schedule,
    schedule: Path,
    baseline: Path | None,
    network: NetworkFlags,
    training: TrainingFlags,
    run: RunFlags,
) -> Report:
    invalid = dependencies(plan, None)
    if invalid.outcome == "failed":
        return Report(str(schedule), None, (invalid, *(not_run(name, "the plan is invalid") for name in AFTER)))
    rival = read_schedule(baseline) if baseline else baseline_of(plan.instance)
    beside = baseline or schedule.with_suffix(".baseline.json")
    if rival is not None and baseline is None:
        write_schedule(rival, beside)
    with tempfile.TemporaryDirectory(prefix="zbopt-qualify-") as folder:
        replayed, proved = jobs_of(schedule, network.build(), training.build(4), plan, run.device.value, folder)
        replayed, proved = (job.model_copy(update={"single_process": run.single_process}) for job in (replayed, proved))
        simulated = replayed.network.kind == "wait"
        results = _run([replayed] if simulated else [replayed, proved], plan, run)
        again = replayed.model_copy(update={"schedule": str(beside)})
        other = trace_of(again, rival, _run([again], rival, run)[0]) if rival is not None else None
    ran = trace_of(replayed, plan, results[0])
    costs = None if simulated else _costs(replayed, plan.instance.virtual_stages, run.timeout)
    parts = (
        dependencies(plan, ran),
        numbers(None if simulated else results[1]),
        memory(plan, ran, costs),
        performance(ran, other),
    )
    return Report(str(schedule), str(beside) if rival is not None else None, parts)


def _run(jobs: list[Job], plan: Schedule, run: RunFlags) -> list[dict[str, Any]]:
    return execute(jobs, plan, timeout_s=run.timeout) or []


def _costs(job: Job, virtual_stages: int, timeout_s: float) -> dict[str, Any]:
    """What each virtual stage takes and keeps on this device."""
    alone = {"task": "profile", "virtual_stages": virtual_stages, "single_process": True, "schedule": None}
    results = execute([job.model_copy(update=alone)], None, timeout_s=timeout_s)
    if not results:
        raise ValueError("costs are measured in one process; call it without torchrun")
    return results[0]


def diff_command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Schedule file.")],
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="What zbopt replay --trace wrote.")],
    step: Annotated[int | None, typer.Option("--step", help="Step of the trace; default the median one.")] = None,
    tolerance_us: Annotated[float, typer.Option("--tolerance-us", min=0, help="Lateness that counts.")] = 1000.0,
    rows: Annotated[int, typer.Option("--rows", min=0, help="Latest events to print.")] = 10,
    as_json: JsonFlag = False,
) -> int:
    """Compare PLAN with TRACE event by event, and name the first that started later than it could, and why.

    Example: zbopt diff schedule.json trace.json
    """
    ran, planned = read_trace(trace), read_schedule(plan)
    chosen = ran.best_step() if step is None else next((s for s in ran.steps if s.step == step), None)
    if chosen is None:
        raise ValueError(f"{trace}: there is no step {step}; it has steps {[s.step for s in ran.steps]}")
    found = compare(planned, ran, chosen)
    first = found.first_late(round(tolerance_us * 1000))
    if as_json:
        record = {k: v for k, v in asdict(found).items() if k != "rows"} | {
            "makespan_error": found.makespan_error,
            "first_late": asdict(first) if first else None,
            "rows": [
                asdict(r) | {"start_error": r.start_error, "duration_error": r.duration_error} for r in found.rows
            ],
        }
        typer.echo(_json(record))
        return 0
    for line in page(found, first, rows):
        typer.echo(line)
    if first is None:
        typer.echo(f"no event started more than {tolerance_us / 1000:g} ms later than it could")
    return 0


@takes(NetworkFlags, RunFlags)
def profile_command(
    network: NetworkFlags,
    run: RunFlags,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Instance file to write.")],
    stages: Annotated[int, typer.Option("--stages", min=1, help="Devices of the pipeline.")],
    micro: Annotated[int, typer.Option("--micro", min=1, help="Microbatches of the step.")] = 8,
    placement: Annotated[str, typer.Option("--placement", help="linear, interleaved or v.")] = "linear",
    virtual: Annotated[int, typer.Option("--virtual", min=1, help="Virtual stages a stage.")] = 1,
    mem_limit: Annotated[int | None, typer.Option("--mem-limit", help="Bytes of activations a stage.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Measurements of each op.")] = 9,
    split: Annotated[SplitFlag, typer.Option("--split", help="W as deferred products, or the engine's own.")] = (
        SplitFlag.DEFERRED
    ),
    as_json: JsonFlag = False,
) -> int:
    """Measure F, B, W, BW and memory of each virtual stage on this device, and write an instance.

    Example: zbopt profile --network gpt --stages 4 -o measured.json
    """
    require_writable(output)
    if placement not in ("linear", "interleaved", "v"):
        raise ValueError(f"--placement {placement}: choose linear, interleaved or v")
    stage_of = placement_of(placement, stages, virtual)
    _size(stages, stage_of, micro, mem_limit)
    job = run.job("profile", None, network.build(), TrainingFlags(split=split).build(1), repeats=repeats)
    if job.network.kind == "wait":
        raise ValueError("network wait costs nothing to measure; choose mlp or gpt")
    costs = _costs(job, len(stage_of), run.timeout)
    name = f"profile of {job.network.kind} on {job.device}"
    instance = _instance(costs, stage_of, micro, mem_limit, name, no_first_b=split is SplitFlag.ENGINE)
    write_instance(instance, output)
    if as_json:
        typer.echo(_json(costs))
        return 0
    typer.echo(f"{output}: times in us by virtual stage, bytes of a microbatch, and of them kept until W")
    columns = ("forward_ns", "backward_ns", "weight_ns", "fused_backward_ns")
    for v, stage in enumerate(stage_of):
        times = "".join(f"{costs[name][v] / 1000:>10.0f}" for name in columns)
        typer.echo(f"  v{v} on stage {stage}: {times}{costs['activation_bytes'][v]:>12}{costs['held_bytes'][v]:>12}")
    return 0


def _size(stages: int, stage_of: tuple[int, ...], micro: int, mem_limit: int | None) -> None:
    """Refuse a size that no instance has, before it is measured."""
    fields = {"stages": stages, "stage_of": stage_of, "microbatches": micro, "memory_cap": mem_limit}
    try:
        Instance.model_validate(fields | {"forward_ticks": 1, "fused_backward_ticks": 1})
    except ValidationError as error:
        raise ValueError(first_error(error)) from None


def _instance(
    costs: dict[str, Any], stage_of: tuple[int, ...], micro: int, mem_limit: int | None, name: str, *, no_first_b: bool
) -> Instance:
    """The measured costs as an instance in microseconds and bytes, times rounded up.

    With the engine's own split the first virtual stage has no B: its W is the whole backward.
    """

    def ticks(key: str) -> list[int]:
        return [-(-value // 1000) for value in costs[key]]

    def beside_first(key: str) -> list[int | None]:
        return [None if no_first_b and v == 0 else value for v, value in enumerate(ticks(key))]

    fields: dict[str, Any] = {
        "name": name,
        "stages": max(stage_of) + 1,
        "microbatches": micro,
        "stage_of": stage_of,
        "tick": "1us",
        "forward_ticks": ticks("forward_ns"),
        "backward_ticks": beside_first("backward_ns"),
        "weight_ticks": ticks("weight_ns"),
        "fused_backward_ticks": beside_first("fused_backward_ns"),
        "activation": costs["activation_bytes"],
        "weight_share": [
            str(Fraction(h, k)) if k else 0 for k, h in zip(costs["activation_bytes"], costs["held_bytes"], strict=True)
        ],
    }
    return Instance.model_validate(fields | {"memory_cap": mem_limit})
