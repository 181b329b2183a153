"""Replay on a CUDA device: all stages in one process, times from CUDA events, memory from the allocator."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")

import torch

from zbopt.problem.instance import Kind
from zbopt.problem.schedule import write_schedule
from zbopt.replay.launch import launch
from zbopt.replay.qualify import dependencies, memory, trace_of
from zbopt.replay.spec import Job, Network, Training

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here"),
]

FULL = Training(steps=5, overflow_at=(1,), clip_norm=0.05, clip_at=(3,), loss_scale=1024.0)


def _job(path: Path, task: str, **more: Any) -> Job:
    return Job(task=task, schedule=str(path), device="cuda", single_process=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("network", [Network(kind="mlp"), Network(kind="gpt"), Network(kind="gpt", tied=False)])
def test_numbers(plans: SimpleNamespace, tmp_path: Path, network: Network) -> None:
    path = tmp_path / "plan.json"
    write_schedule(plans.zb_h1(4, 8), path)
    job = _job(path, "prove", network=network, training=FULL, resume_at=2, checkpoint_dir=str(tmp_path / "checkpoint"))
    (found,) = launch([job], 1)
    assert found["first_difference"] is None
    assert found["decisions"] == ["step", "skip", "step", "clip", "step"]


def test_event_times_and_the_memory_ledger(plans: SimpleNamespace, tmp_path: Path) -> None:
    plan = plans.zb_h1(4, 8)
    path = tmp_path / "plan.json"
    write_schedule(plan, path)
    network = Network(kind="gpt", dtype="bfloat16", width=256, sequence=128, heads=4, microbatch_size=4)
    job = _job(path, "replay", network=network, training=Training(steps=4))
    profile = job.model_copy(update={"task": "profile", "virtual_stages": 4, "schedule": None})
    result, costs = launch([job, profile], 1)
    trace = trace_of(job, plan, result)
    for step in trace.steps:
        rows = sorted((e for e in step.events if e.kind is not Kind.O), key=lambda e: e.start)
        assert len(rows) >= 4 * 8 * 2
        assert all(e.end > e.start for e in rows)
        assert all(after.start >= before.end for before, after in pairwise(rows))
    assert dependencies(plan, trace).outcome == "passed"
    part = memory(plan, trace, costs)
    assert part.outcome == "passed", part.sentence
    assert part.figures["allocated_bytes"] > part.figures["observed_bytes"][0] > 0
    assert all(value > 0 for value in costs["weight_ns"])
