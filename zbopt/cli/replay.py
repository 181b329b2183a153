"""Commands ``zbopt replay``, ``prove`` and ``diff``. The first two load torch when they run; ``diff`` never does."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from zbopt.cli import out
from zbopt.cli.flag_records import takes
from zbopt.cli.flags import JsonFlag
from zbopt.cli.options import switch
from zbopt.cli.replay_flags import NetworkFlags, RunFlags, ScheduleArgument, TrainingFlags
from zbopt.problem.documents import require_writable
from zbopt.problem.numbers import counted
from zbopt.problem.schedule import Schedule, read_schedule, write_schedule
from zbopt.replay.diff import ComparedEvent, Diff, diff_page, diff_trace
from zbopt.replay.launch import execute, under_torchrun
from zbopt.replay.qualify import numbers, proof_defaults, trace_of
from zbopt.replay.spec import Job
from zbopt.replay.trace import Trace, read_trace, write_trace

TraceFlag = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write the events that ran to this file.")
]
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
    checksums: Annotated[bool, switch("--checksums", "Put checksums of outputs and gradients into the trace.")] = False,
    checkpoint_every: Annotated[
        int | None, typer.Option("--checkpoint-every", help="Steps between checkpoints in --checkpoint-dir.")
    ] = None,
    resume: Annotated[bool, switch("--resume", "Start from the last checkpoint in --checkpoint-dir.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Train a small network by SCHEDULE on PyTorch, and report when each op ran.

    Example: zbopt replay schedule.json --network gpt --trace trace.json
    """
    plan = read_schedule(schedule)
    _require_outputs(schedule, trace, observed)
    more = {"checksums": checksums, "checkpoint_every": checkpoint_every, "resume": resume}
    job = run.job("replay", schedule, network.build(), training.build(3), **more)
    _require_checkpoints(job)
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


def _require_outputs(schedule: Path, trace: Path | None, observed: Path | None) -> None:
    """Refuse output files that could not be written, before the run and not after it."""
    for flag, path in (("--trace", trace), ("--observed", observed)):
        if path is not None:
            require_writable(path, schedule, flag=flag)
    if trace is not None and observed is not None and trace.resolve() == observed.resolve():
        raise ValueError(f"--observed {observed}: --trace writes to the same file; give another path")


def _require_checkpoints(job: Job) -> None:
    """Refuse a folder of checkpoints that is missing, cannot be written, or has nothing to resume from."""
    if job.checkpoint_dir is None:
        if job.resume or job.checkpoint_every:
            raise ValueError("--checkpoint-every and --resume need a folder of checkpoints; give --checkpoint-dir")
        return
    folder = Path(job.checkpoint_dir)
    if folder.is_file():
        raise ValueError(f"--checkpoint-dir {folder}: is a file; give the path of a folder")
    if job.resume and not any(folder.glob("step-*/.metadata")):
        raise ValueError(f"{folder}: holds no complete checkpoint; leave --resume out to start from step 0")
    if job.checkpoint_every:
        _require_folder_writable(folder)


def _require_folder_writable(folder: Path) -> None:
    """Refuse a folder of checkpoints that could not be made or written: the run would find out after a step only."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise ValueError(f"--checkpoint-dir {folder}: {existing} is a file; give the path of a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"--checkpoint-dir {folder}: {existing} may not be written; give another folder")


def _replayed(ran: Trace, plan: Schedule, *, as_json: bool) -> None:
    """Print what a replay measured."""
    step, found = ran.median_step(), diff_trace(plan, ran)
    record = {
        "steps": len(ran.steps),
        "decisions": [list(decision) for decision in ran.decisions],
        "losses": [list(s.losses) for s in ran.steps],
        "makespan_ns": [s.makespan_ns for s in ran.steps],
        "median_step": step.step,
        "tick_ns": found.tick_ns,
        "ops_makespan_ns": found.makespan,
        "planned_makespan_ns": found.planned_makespan,
        "makespan_error": found.makespan_error,
        "simulated": ran.simulated,
        "weights": ran.weights,
    }
    if as_json:
        out.measured(record)
        return
    out.page(_ran_page(ran, found))


def _ran_page(ran: Trace, found: Diff) -> Iterator[str]:
    kind = "simulated: ops only wait" if ran.simulated else f"{ran.network.kind}, {ran.network.dtype}"
    steps, processes = counted(len(ran.steps), "step"), counted(ran.processes, "process")
    yield f"{steps} on {processes} ({ran.device}; {kind})"
    for s, (_, act, norm) in zip(ran.steps, ran.decisions, strict=False):
        loss = sum(s.losses) / len(s.losses) if s.losses else float("nan")
        yield f"  step {s.step}: loss {loss:.6g}, norm {norm:.6g}, {act}, {s.makespan_ns / 1e6:.2f} ms"
    step, planned = ran.median_step(), found.planned_makespan / 1e6
    yield (
        f"median step {step.step}: {step.makespan_ns / 1e6:.2f} ms; what the plan has of it "
        f"{found.makespan / 1e6:.2f} ms, planned {planned:.2f} ms at {found.tick_ns / 1e6:.4g} ms a tick: "
        f"{100 * found.makespan_error:+.1f} %"
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

    By default five steps run: step 1 overflows, step 3 is clipped, and everything is stopped and resumed before
    step 2.

    Example: zbopt prove schedule.json --network gpt
    """
    plan = read_schedule(schedule)
    settings = training.build(5)
    settings = settings.model_copy(update=proof_defaults(settings))
    with ExitStack() as stack:
        folder = run.checkpoint_dir
        if folder is not None:
            _require_folder_writable(folder)
        elif not under_torchrun():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zbopt-prove-")))
        job = run.job("prove", schedule, network.build(), settings)
        if folder is not None and settings.steps > 2:
            job = job.model_copy(update={"checkpoint_dir": str(folder), "resume_at": 2})
        results = execute([job], plan, timeout_s=run.timeout)
    if results is None:
        return 0
    found = results[0]
    passed = found["first_difference"] is None
    if as_json:
        out.measured({"passed": passed} | found)
    else:
        out.page(_proof_page(found, job))
    return 0 if passed else 1


def _proof_page(found: dict[str, Any], job: Job) -> list[str]:
    """Return the lines that ``zbopt prove`` prints."""
    proof = numbers(found)
    required = "bit-equal to a plain loop"
    if not found["bit_equality_expected"]:
        required = "bit-equal to a loop that adds up in the schedule's order, which is close to a plain loop"
    resumed = f", resumed before step {job.resume_at}" if job.resume_at else ""
    return [
        f"numbers {proof.outcome}: {proof.sentence}",
        f"  required: {required}; steps: {', '.join(found['decisions'])}{resumed}",
        f"  optimistic steps taken back, by process: {found['rollbacks']}",
    ]


def diff_command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Schedule file.")],
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Trace file that zbopt replay --trace wrote.")],
    step: Annotated[int | None, typer.Option("--step", help="Step of the trace; default: the median one.")] = None,
    tolerance_us: Annotated[
        float, typer.Option("--tolerance-us", min=0, help="An event is late beyond this many microseconds.")
    ] = 1000.0,
    rows: Annotated[int, typer.Option("--rows", min=0, help="How many of the latest events to print.")] = 10,
    as_json: JsonFlag = False,
) -> int:
    """Compare PLAN with TRACE event by event: which started later than it could, and why.

    Example: zbopt diff schedule.json trace.json
    """
    ran, planned = read_trace(trace), read_schedule(plan)
    chosen = ran.median_step() if step is None else next((s for s in ran.steps if s.step == step), None)
    if chosen is None:
        raise ValueError(f"{trace}: has no step {step}; its steps are {[s.step for s in ran.steps]}")
    found = diff_trace(planned, ran, chosen)
    first = found.first_late(round(tolerance_us * 1000))
    if as_json:
        out.measured(_diff_record(found, first))
        return 0
    out.page(diff_page(found, first, rows))
    if first is None:
        out.page([f"no event started more than {tolerance_us / 1000:g} ms later than it could"])
    return 0


def _diff_record(found: Diff, first: ComparedEvent | None) -> dict[str, Any]:
    """Return what ``zbopt diff --json`` prints."""
    figures = {name: value for name, value in asdict(found).items() if name != "events"}
    return figures | {
        "makespan_error": found.makespan_error,
        "first_late": asdict(first) if first else None,
        "rows": [
            asdict(event) | {"start_error": event.start_error, "duration_error": event.duration_error}
            for event in found.events
        ],
    }
