"""The work of every process of a run: meet the others, run the jobs, and gather the results on rank 0."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zbopt.problem.schedule import Schedule, read_schedule
from zbopt.replay import checkpoint
from zbopt.replay.damage import Damage
from zbopt.replay.groups import Groups, make_groups
from zbopt.replay.lowering import addition_order
from zbopt.replay.measure import measure
from zbopt.replay.number_check import ExpectedHistory, NumberCheck, merge
from zbopt.replay.observe import ActivityFile, CpuClock, CudaClock, MemoryMeter, Recorder, checksum
from zbopt.replay.ordered_loop import OrderedLoop
from zbopt.replay.plain_loop import LoopStep, PlainLoop
from zbopt.replay.spec import Job, Jobs
from zbopt.replay.training import Pipeline

Result = dict[str, Any]

_START_S = 180.0
"""Longest wait for the other processes to start and set up. Not measured; long, as a busy machine delays both."""


class Worker:
    """Run jobs in one process, and keep what they share: the activity file, and plain loops already run."""

    def __init__(self, activity: ActivityFile | None, timeout_s: float) -> None:
        self.activity, self.timeout_s = activity, timeout_s
        dist.barrier()  # the only wait with the long timeout: a process that starts late has not failed
        self.everyone = dist.new_group(timeout=timedelta(seconds=timeout_s))
        self._plain_loops: dict[str, list[LoopStep]] = {}

    def run(self, job: Job) -> Result | None:
        """Run one job, and return its result on rank 0, ``None`` elsewhere.

        Raises:
            ValueError: The schedule, the network and the number of processes do not fit each other.
        """
        device_of(job)
        if job.task == "profile":
            return measure(job)
        if job.schedule is None:
            raise ValueError(f"task {job.task} needs a schedule; give the path of its file")
        schedule = read_schedule(job.schedule)
        replicas = job.training.data_parallel
        dist.barrier()
        groups = make_groups(schedule, replicas, single_process=job.single_process, timeout_s=self.timeout_s)
        return self._prove(job, schedule, groups) if job.task == "prove" else self._replay(job, schedule, groups)

    def _recorder(self, job: Job) -> Recorder:
        cuda = job.device == "cuda"
        recorder = Recorder(CudaClock() if cuda else CpuClock(), None, self.activity)
        recorder.checksums = job.checksums
        recorder.counts_cores = job.network.kind == "wait"
        return recorder

    def _pipeline(self, job: Job, schedule: Schedule, groups: Groups, recorder: Recorder, **hooks: Any) -> Pipeline:
        damage = Damage(job.damage, groups.stage) if job.damage else None
        pipeline = Pipeline(
            schedule, job.network, job.training, groups, recorder, device=device_of(job), damage=damage, **hooks
        )
        if job.memory and job.network.kind != "wait":
            recorder.meter = MemoryMeter(p for _, p in pipeline.named_parameters())
            for local in pipeline.local.values():
                if local.queue is not None:
                    local.queue.hold = recorder.meter.hold
        dist.barrier()
        return pipeline

    def _prove(self, job: Job, schedule: Schedule, groups: Groups) -> Result | None:
        job = job.model_copy(update={"memory": False})
        check = NumberCheck(self._expected_history(job, schedule))
        recorder = self._recorder(job)
        hooks = {"after_gradients": check.after_gradients, "after_update": check.after_update}
        pipeline = check.pipeline = self._pipeline(job, schedule, groups, recorder, **hooks)
        rollbacks = 0
        while pipeline.step_number < job.training.steps:
            if pipeline.step_number == job.resume_at:
                path = checkpoint.save(pipeline, Path(job.checkpoint_dir or "."))
                other = job.network.model_copy(update={"seed": job.network.seed + 1})
                rollbacks += pipeline.rollbacks
                fresh = job.model_copy(update={"network": other})
                pipeline = check.pipeline = self._pipeline(fresh, schedule, groups, recorder, **hooks)
                checkpoint.load(pipeline, path)
                pipeline.network = job.network
            recorder.begin_step(f"step {pipeline.step_number}")
            pipeline.run_step()
        pipeline.finish()
        summary = check.summary()
        summary["rollbacks"] = rollbacks + pipeline.rollbacks
        summaries = self._gather(summary)
        if summaries is None:
            return None
        return merge(summaries) | {
            "bit_equality_expected": check.expected.in_order,
            "rollbacks": [each["rollbacks"] for each in summaries],
        }

    def _expected_history(self, job: Job, schedule: Schedule) -> ExpectedHistory:
        """Run the plain loop and, where the schedule adds up in another order, the loop that adds up in that order."""
        plain = self._plain_loop(job, schedule)
        order = addition_order(schedule)
        terms = schedule.instance.microbatches * job.training.accumulation
        if order.by_microbatch and not job.network.is_tied:
            return ExpectedHistory(plain, [step.gradients for step in plain], plain, terms)
        loop = OrderedLoop(job.network, job.training, schedule.instance, device_of(job), order)
        return ExpectedHistory(loop.run(), loop.plain, plain, terms)

    def _plain_loop(self, job: Job, schedule: Schedule) -> list[LoopStep]:
        shape = (schedule.instance.virtual_stages, schedule.instance.microbatches)
        training = job.training.model_copy(update={"split": "deferred", "lowering": "zbopt"})
        key = f"{shape} {job.network.model_dump_json()} {training.model_dump_json()} {job.device}"
        if key not in self._plain_loops:
            self._plain_loops[key] = PlainLoop(job.network, job.training, schedule.instance, device_of(job)).run()
        return self._plain_loops[key]

    def _replay(self, job: Job, schedule: Schedule, groups: Groups) -> Result | None:
        recorder = self._recorder(job)
        decisions: list[tuple[int, str, float]] = []
        pipeline = self._pipeline(
            job,
            schedule,
            groups,
            recorder,
            after_update=lambda step, decision: decisions.append((step, decision.act, decision.norm)),
        )
        folder = Path(job.checkpoint_dir) if job.checkpoint_dir else None
        if job.resume and folder is not None and (path := checkpoint.latest(folder)) is not None:
            checkpoint.load(pipeline, path)
        first = pipeline.step_number
        steps = []
        while pipeline.step_number < job.training.steps:
            number = pipeline.step_number
            recorder.begin_step(f"step {number}")
            self._align_clocks(recorder)
            pipeline.run_step()
            steps.append({"step": number, "losses": pipeline.losses, "events": _events(recorder, schedule, groups)})
            if folder is not None and job.checkpoint_every and (number + 1) % job.checkpoint_every == 0:
                checkpoint.save(pipeline, folder)
        pipeline.finish()
        weights = _weights_checksum(pipeline)
        mine = {"replica": groups.replica, "steps": steps, "weights": weights, "decisions": decisions}
        results = self._gather(mine)
        if results is None:
            return None
        return _merged_steps([each for each in results if each["replica"] == 0]) | {"first_step": first}

    def _gather(self, mine: Any) -> list[Any] | None:
        """Return every process's ``mine`` on rank 0, in order of rank; ``None`` elsewhere."""
        if dist.get_world_size() == 1:
            return [mine]
        everyones: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(mine, everyones, group=self.everyone)
        return everyones

    def _align_clocks(self, recorder: Recorder) -> None:
        """Start all clocks at one moment: rank 0's time on one machine, else each rank's own time after a barrier."""
        if dist.get_world_size() == 1:
            recorder.clock.start(recorder.clock.now())
            return
        dist.barrier(self.everyone)
        here = (socket.gethostname(), recorder.clock.now())
        everyone: list[tuple[str, int]] = [here] * dist.get_world_size()
        dist.all_gather_object(everyone, here, group=self.everyone)
        same = len({host for host, _ in everyone}) == 1
        recorder.clock.start(everyone[0][1] if same else recorder.clock.now())


def _merged_steps(results: list[Result]) -> Result:
    """Merge the results of the processes of one replica, step by step."""
    steps = []
    for by_process in zip(*(result["steps"] for result in results), strict=True):
        steps.append(
            {
                "step": by_process[0]["step"],
                "losses": next((each["losses"] for each in by_process if each["losses"]), []),
                "events": [event for each in by_process for event in each["events"]],
            }
        )
    return {
        "decisions": results[0]["decisions"],
        "weights": {name: value for result in results for name, value in result["weights"].items()},
        "steps": steps,
    }


def device_of(job: Job) -> torch.device:
    """Return this process's device.

    Raises:
        ValueError: There is no CUDA device, or too few for the processes of this machine.
    """
    if job.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError("device cuda: this machine has no CUDA device; use --device cpu")
    index, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= count:
        raise ValueError(
            f"device cuda: {count} devices for {index + 1} processes on this machine; use --single-process"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _events(recorder: Recorder, schedule: Schedule, groups: Groups) -> list[Result]:
    """Return the step's records with the plan's stages; of an op that ran twice, in a repeated prefix, the last.

    Where one process has all stages, its one optimizer step counts for each of them.
    """
    stages = range(schedule.instance.stages) if len(set(groups.stage_of)) == 1 else [groups.stage]
    stage_of = schedule.instance.stage_of
    read = recorder.clock.read
    last = {(r.virtual_stage, r.kind, r.microbatch): r for r in recorder.records}
    return [
        {
            "kind": r.kind.value,
            "stage": stage,
            "virtual_stage": r.virtual_stage,
            "microbatch": r.microbatch,
            "asked": read(r.asked),
            "start": read(r.start),
            "end": read(r.end),
            "memory_bytes": r.memory_bytes,
            "allocated_bytes": r.allocated_bytes,
            "core_wait_ns": r.core_wait_ns,
            "checksum": r.checksum,
            "gradients_checksum": r.gradients_checksum,
        }
        for r in last.values()
        for stage in (stages if r.virtual_stage is None else [stage_of[r.virtual_stage]])
    ]


def _weights_checksum(pipeline: Pipeline) -> dict[str, str]:
    return {name: checksum(parameter) for name, parameter in pipeline.named_parameters()}


def start(jobs: Jobs) -> None:
    """Meet the other processes: through the rendezvous file, or where torchrun's environment variables say."""
    for job in jobs.jobs:
        device_of(job)  # a missing device gets our error, not one of the group's backend
    cuda = any(job.device == "cuda" for job in jobs.jobs) and int(os.environ["WORLD_SIZE"]) > 1
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        init_method=f"file://{jobs.rendezvous}" if jobs.rendezvous else "env://",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=max(jobs.timeout_s, _START_S)),
    )


def run_all(jobs: Jobs) -> list[Result] | None:
    """Run the jobs in this process, one of a group, and return the results on rank 0, ``None`` elsewhere."""
    rank = int(os.environ["RANK"])
    start(jobs)
    try:
        worker = Worker(ActivityFile(Path(jobs.activity) / f"rank{rank}") if jobs.activity else None, jobs.timeout_s)
        results = [worker.run(job) for job in jobs.jobs]
        dist.barrier(worker.everyone)
    finally:
        dist.destroy_process_group()
    return [result for result in results if result is not None] if rank == 0 else None


def main(arguments: Sequence[str]) -> int:
    """Run the jobs of the file named in ``arguments``; a failure becomes one line on stderr and exit status 1."""
    jobs = Jobs.model_validate_json(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        results = run_all(jobs)
    except Exception as error:  # the launcher reads the last line of stderr; a traceback would hide it
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        sys.stderr.flush()
        os._exit(1)  # a normal exit would wait for gloo's threads, which may wait for a dead process without end
    if results is not None:
        Path(jobs.results).write_text(json.dumps(results), encoding="utf-8")
    return 0
