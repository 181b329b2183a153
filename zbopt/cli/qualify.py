"""``zbopt qualify``: four proofs of a schedule in one report."""

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
        out.measured(report.document())
    else:
        out.page(_page(report))
    return 0 if report.verdict == "qualified" else 1


def _page(report: Report) -> Iterator[str]:
    yield f"{report.schedule}: {report.verdict}"
    for part in report.parts:
        yield f"  {part.name:<13}{part.outcome:<8} {part.sentence}"
    if report.baseline:
        yield f"  to go back, run {report.baseline} instead: same network, batch and accumulation"


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
    costs = None if simulated else costs_of(replayed, plan.instance.virtual_stages, run.timeout)
    parts = (
        dependencies(plan, ran),
        numbers(None if simulated else results[1]),
        memory(plan, ran, costs),
        performance(ran, other),
    )
    return Report(str(schedule), str(beside) if rival is not None else None, parts)


def _run(jobs: list[Job], plan: Schedule, run: RunFlags) -> list[dict[str, Any]]:
    return execute(jobs, plan, timeout_s=run.timeout) or []
