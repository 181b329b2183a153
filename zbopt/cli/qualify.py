"""Command ``zbopt qualify``: four proofs of a schedule in one report."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from zbopt.cli import out
from zbopt.cli.flag_records import takes
from zbopt.cli.flags import JsonFlag
from zbopt.cli.replay_flags import NetworkFlags, RunFlags, ScheduleArgument, TrainingFlags
from zbopt.problem.schedule import Schedule, read_schedule, write_schedule
from zbopt.replay.launch import costs_of, execute, under_torchrun
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
    trace_of,
)
from zbopt.replay.spec import Job


@takes(NetworkFlags, TrainingFlags, RunFlags)
def qualify_command(
    network: NetworkFlags,
    training: TrainingFlags,
    run: RunFlags,
    *,
    schedule: ScheduleArgument,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="Schedule to beat; default: 1F1B, written beside SCHEDULE.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Prove dependencies, numbers, memory and performance of a schedule; a proof that cannot run never passes.

    Example: zbopt qualify schedule.json --network gpt
    """
    if under_torchrun():
        raise ValueError("zbopt qualify starts its own processes; call it without torchrun")
    plan = read_schedule(schedule)
    report = _report(plan, schedule, baseline, network, training, run)
    if as_json:
        out.measured(report.document())
    else:
        out.page(_page(report))
    return 0 if report.verdict == "qualified" else 1


def _page(report: Report) -> Iterator[str]:
    yield f"{report.schedule}: {report.verdict}"
    for proof in report.proofs:
        yield f"  {proof.name:<13}{proof.outcome:<8} {proof.sentence}"
    if report.baseline:
        yield f"  the baseline to fall back on is {report.baseline}: same network, batch and accumulation"


def _report(
    plan: Schedule,
    schedule: Path,
    baseline: Path | None,
    network: NetworkFlags,
    training: TrainingFlags,
    run: RunFlags,
) -> Report:
    """Run the plan and its baseline, and return the report of all four proofs."""
    dependencies_of_plan = dependencies(plan, None)
    if dependencies_of_plan.outcome == "failed":
        others = (not_run(name, "the plan is invalid") for name in AFTER)
        return Report(str(schedule), None, (dependencies_of_plan, *others))
    rival = read_schedule(baseline) if baseline else baseline_of(plan.instance)
    rival_file = baseline or schedule.with_suffix(".baseline.json")
    if rival is not None and baseline is None:
        write_schedule(rival, rival_file)
    with tempfile.TemporaryDirectory(prefix="zbopt-qualify-") as folder:
        replayed, proved = jobs_of(schedule, network.build(), training.build(4), plan, run.device.value, folder)
        replayed, proved = (job.model_copy(update={"single_process": run.single_process}) for job in (replayed, proved))
        simulated = replayed.network.kind == "wait"
        results = _run([replayed] if simulated else [replayed, proved], plan, run)
        rival_job = replayed.model_copy(update={"schedule": str(rival_file)})
        rival_trace = trace_of(rival_job, rival, _run([rival_job], rival, run)[0]) if rival is not None else None
    trace = trace_of(replayed, plan, results[0])
    costs = None if simulated else costs_of(replayed, plan.instance.virtual_stages, run.timeout)
    proofs = (
        dependencies(plan, trace),
        numbers(None if simulated else results[1]),
        memory(plan, trace, costs),
        performance(trace, rival_trace),
    )
    return Report(str(schedule), str(rival_file) if rival is not None else None, proofs)


def _run(jobs: list[Job], plan: Schedule, run: RunFlags) -> list[dict[str, Any]]:
    return execute(jobs, plan, timeout_s=run.timeout) or []
