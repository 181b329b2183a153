"""What every process of a run does: meet the others, run the jobs, and let rank 0 answer for all."""

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
from zbopt.replay.baseline import Baseline, Step
from zbopt.replay.compare import Comparison, Reference, merge
from zbopt.replay.damage import Damage
from zbopt.replay.groups import Groups, join
from zbopt.replay.lowering import addition_order
from zbopt.replay.measure import measure
from zbopt.replay.observe import CpuClock, CudaClock, MemoryMeter, Progress, Recorder, checksum
from zbopt.replay.ordered import Ordered
from zbopt.replay.spec import Job, Jobs
from zbopt.replay.training import Pipeline

Result = dict[str, Any]

_START_S = 180.0
"""Longest wait for the other processes to start and to set a run up, which a busy machine may delay."""


class Worker:
    """One process; keeps what jobs share: the place to note progress, and baselines already computed."""

    def __init__(self, progress: Progress | None, timeout_s: float) -> None:
        self.progress, self.timeout_s = progress, timeout_s
        dist.barrier()  # who comes late to a start is no failure yet: here alone the wait is long
        self.everyone = dist.new_group(timeout=timedelta(seconds=timeout_s))
        self._baselines: dict[str, list[Step]] = {}

    def run(self, job: Job) -> Result | None:
        """Do one job; the result on rank 0, ``None`` elsewhere.

        Raises:
            ValueError: The schedule, the network and the processes do not go together.
        """
        device_of(job)
        if job.task == "profile":
            return measure(job)
        if job.schedule is None:
            raise ValueError(f"task {job.task} needs a schedule; give its path")
        schedule = read_schedule(job.schedule)
        replicas = job.training.data_parallel
        dist.barrier()
        groups = join(schedule, replicas, single_process=job.single_process, timeout_s=self.timeout_s)
        return self._prove(job, schedule, groups) if job.task == "prove" else self._replay(job, schedule, groups)

    def _recorder(self, job: Job) -> Recorder:
        cuda = job.device == "cuda"
        recorder = Recorder(CudaClock() if cuda else CpuClock(), None, self.progress)
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
            for part in pipeline.parts.values():
                if part.queue is not None:
                    part.queue.hold = recorder.meter.hold
        dist.barrier()
        return pipeline

    def _prove(self, job: Job, schedule: Schedule, groups: Groups) -> Result | None:
        job = job.model_copy(update={"memory": False})
        comparison = Comparison(self._reference(job, schedule))
        recorder = self._recorder(job)
        hooks = {"after_gradients": comparison.after_gradients, "after_update": comparison.after_update}
        pipeline = comparison.pipeline = self._pipeline(job, schedule, groups, recorder, **hooks)
        rollbacks = 0
        while pipeline.step_number < job.training.steps:
            if pipeline.step_number == job.resume_at:
                path = checkpoint.save(pipeline, Path(job.checkpoint_dir or "."))
                other = job.network.model_copy(update={"seed": job.network.seed + 1})
                rollbacks += pipeline.rollbacks
                fresh = job.model_copy(update={"network": other})
                pipeline = comparison.pipeline = self._pipeline(fresh, schedule, groups, recorder, **hooks)
                checkpoint.load(pipeline, path)
                pipeline.network = job.network
            recorder.begin_step(f"step {pipeline.step_number}")
            pipeline.run_step()
        pipeline.finish()
        summary = comparison.summary()
        summary["rollbacks"] = rollbacks + pipeline.rollbacks
        parts = self._gather(summary)
        if parts is None:
            return None
        in_order = comparison.reference.in_order
        return merge(parts) | {"bit_equality_expected": in_order, "rollbacks": [part["rollbacks"] for part in parts]}

    def _reference(self, job: Job, schedule: Schedule) -> Reference:
        """The plain loop's history, and where the schedule adds up otherwise that of the loop that does so too."""
        plain = self._baseline(job, schedule)
        order = addition_order(schedule)
        terms = schedule.instance.microbatches * job.training.accumulation
        if order.by_microbatch and not job.network.is_tied:
            return Reference(plain, [step.gradients for step in plain], plain, terms)
        loop = Ordered(job.network, job.training, schedule.instance, device_of(job), order)
        return Reference(loop.run(), loop.plain, plain, terms)

    def _baseline(self, job: Job, schedule: Schedule) -> list[Step]:
        shape = (schedule.instance.virtual_stages, schedule.instance.microbatches)
        training = job.training.model_copy(update={"split": "deferred", "lowering": "zbopt"})
        key = f"{shape} {job.network.model_dump_json()} {training.model_dump_json()} {job.device}"
        if key not in self._baselines:
            self._baselines[key] = Baseline(job.network, job.training, schedule.instance, device_of(job)).run()
        return self._baselines[key]

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
            self._align(recorder)
            pipeline.run_step()
            steps.append({"step": number, "losses": pipeline.losses, "events": _events(recorder, schedule, groups)})
            if folder is not None and job.checkpoint_every and (number + 1) % job.checkpoint_every == 0:
                checkpoint.save(pipeline, folder)
        pipeline.finish()
        weights = _weights_checksum(pipeline)
        parts = self._gather({"replica": groups.replica, "steps": steps, "weights": weights, "decisions": decisions})
        if parts is None:
            return None
        return _merged_steps([part for part in parts if part["replica"] == 0]) | {"first_step": first}

    def _gather(self, part: Any) -> list[Any] | None:
        """Every process's ``part`` on rank 0, in order; ``None`` elsewhere."""
        if dist.get_world_size() == 1:
            return [part]
        parts: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(part, parts, group=self.everyone)
        return parts

    def _align(self, recorder: Recorder) -> None:
        """One origin of time: rank 0's clock on one machine, each rank's own after a barrier on several."""
        if dist.get_world_size() == 1:
            recorder.clock.start(recorder.clock.now())
            return
        dist.barrier(self.everyone)
        here = (socket.gethostname(), recorder.clock.now())
        everyone: list[tuple[str, int]] = [here] * dist.get_world_size()
        dist.all_gather_object(everyone, here, group=self.everyone)
        same = len({host for host, _ in everyone}) == 1
        recorder.clock.start(everyone[0][1] if same else recorder.clock.now())


def _merged_steps(parts: list[Result]) -> Result:
    """The steps of one replica, from its processes'."""
    steps = []
    for rows in zip(*(part["steps"] for part in parts), strict=True):
        steps.append(
            {
                "step": rows[0]["step"],
                "losses": next((row["losses"] for row in rows if row["losses"]), []),
                "events": [event for row in rows for event in row["events"]],
            }
        )
    return {
        "decisions": parts[0]["decisions"],
        "weights": {name: value for part in parts for name, value in part["weights"].items()},
        "steps": steps,
    }


def device_of(job: Job) -> torch.device:
    """This process's device.

    Raises:
        ValueError: There is no CUDA device, or none for this process.
    """
    if job.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError("device cuda: no CUDA device is here; use --device cpu")
    index, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= count:
        raise ValueError(f"device cuda: {count} devices for {index + 1} processes here; use --single-process")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _events(recorder: Recorder, schedule: Schedule, groups: Groups) -> list[Result]:
    """The step's records by the plan's stages; of an op that ran twice (a rolled back prefix) the last.

    One process for all stages has one optimizer step, which counts for each of them.
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
    """Meet the other processes: at the rendezvous file, or where the environment says (torchrun)."""
    for job in jobs.jobs:
        device_of(job)  # or the group's backend says, in words of its own, that it is not there
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
    """Run the jobs in this process, one of a group; the results on rank 0."""
    rank = int(os.environ["RANK"])
    start(jobs)
    try:
        worker = Worker(Progress(Path(jobs.progress) / f"rank{rank}") if jobs.progress else None, jobs.timeout_s)
        results = [worker.run(job) for job in jobs.jobs]
        dist.barrier(worker.everyone)
    finally:
        dist.destroy_process_group()
    return [result for result in results if result is not None] if rank == 0 else None


def main(arguments: Sequence[str]) -> int:
    """Run the jobs file named in ``arguments``; a failure is one line on stderr and status 1."""
    jobs = Jobs.model_validate_json(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        results = run_all(jobs)
    except Exception as error:  # the launcher reads the line; a traceback would hide it
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        sys.stderr.flush()
        os._exit(1)  # gloo's threads may wait for a dead peer for ever
    if results is not None:
        Path(jobs.results).write_text(json.dumps(results), encoding="utf-8")
    return 0
