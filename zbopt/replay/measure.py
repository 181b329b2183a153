"""Measurement of each virtual stage on this device: times of F, B, W and BW, and the memory of a microbatch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from zbopt.replay.deferred import WeightQueue, defer_weights
from zbopt.replay.networks import batch, boundary, build_virtual_stage, loss_of
from zbopt.replay.observe import CpuClock, CudaClock, MemoryMeter
from zbopt.replay.optimizer_step import optimizer_of
from zbopt.replay.spec import Job, Network
from zbopt.replay.torch_runtime import split_backward

_WARM_UP = 2
"""Repeats that are not counted: the first calls of an op also choose kernels and fill caches. Not measured."""


def measure(job: Job) -> dict[str, Any]:
    """Measure each virtual stage of ``job``'s network.

    Returns:
        For each figure a list by virtual stage: medians over ``job.repeats``, in nanoseconds and bytes. On a GPU the
        times are the device's, not the host's.
    """
    virtual_stages = job.virtual_stages or 1
    by_virtual_stage = [_Probe(job, v, virtual_stages).run() for v in range(virtual_stages)]
    return {name: [figures[name] for figures in by_virtual_stage] for name in by_virtual_stage[0]}


class _Probe:
    """Measure one virtual stage by itself."""

    def __init__(self, job: Job, virtual_stage: int, virtual_stages: int) -> None:
        self.job, self.network = job, job.network
        self.device = torch.device(job.device)
        self.module = build_virtual_stage(job.network, virtual_stage, virtual_stages).to(self.device)
        self.queue: WeightQueue | None = defer_weights(self.module) if job.training.split == "deferred" else None
        self.meter = MemoryMeter(self.module.parameters())
        self.clock = CudaClock() if job.device == "cuda" else CpuClock()
        self.example_input, _ = boundary(job.network, virtual_stage, virtual_stages)
        self.first, self.last = virtual_stage == 0, virtual_stage == virtual_stages - 1
        self.optimizer = optimizer_of(self.module.parameters(), job.training)

    def run(self) -> dict[str, int]:
        """Return every figure of this virtual stage by its name."""
        memory = self._memory()
        times: dict[str, list[int]] = {"forward": [], "backward": [], "weight": [], "fused_backward": [], "step": []}
        for _ in range(_WARM_UP + self.job.repeats):
            self.clock.start(self.clock.now())
            stamps = [self.clock.stamp()]
            out = self._forward()
            stamps.append(self.clock.stamp())
            run_w = self._backward(out)[0]
            stamps.append(self.clock.stamp())
            run_w()
            stamps.append(self.clock.stamp())
            self.optimizer.step()
            stamps.append(self.clock.stamp())
            begin, forward, backward, weight, step = (self.clock.read(stamp) for stamp in stamps)
            times["forward"].append(forward - begin)
            times["backward"].append(backward - forward)
            times["weight"].append(weight - backward)
            times["fused_backward"].append(self._time_of_bw())
            times["step"].append(step - weight)
        return {f"{name}_ns": max(1, int(median(values[_WARM_UP:]))) for name, values in times.items()} | memory

    def _forward(self) -> Tensor:
        """Return the output, or on the last virtual stage the loss."""
        inputs = _filled_input(self.network, self.example_input, self.first).to(self.device)
        target = batch(self.network, self.network.microbatch_size, 0)[1].to(self.device)
        self.meter.ignore(target, *([inputs] if self.first else []))
        self.inputs = inputs.requires_grad_(not self.first)
        out: Tensor = self.module(self.inputs)
        return loss_of(self.network)(out, target) if self.last else out

    def _backward(self, out: Tensor) -> tuple[Callable[[], None], list[Tensor]]:
        """Run B, and return its W and the tensors that W needs beside the autograd graph and the queue.

        With the runtime's own split the first virtual stage has no B: its W is the whole backward.
        """
        whole_backward = partial(torch.autograd.backward, out, torch.ones_like(out))
        if self.queue is not None:
            whole_backward()
            return self.queue.take(), []
        return (whole_backward, []) if self.first else split_backward(out, self.inputs, self.module)

    def _time_of_bw(self) -> int:
        """Run B and W as one BW, and return its time in nanoseconds."""
        out = self._forward()
        begin = self.clock.stamp()
        torch.autograd.backward(out, torch.ones_like(out))
        if self.queue is not None:
            self.queue.take()()
        return self.clock.read(self.clock.stamp()) - self.clock.read(begin)

    def _memory(self) -> dict[str, int]:
        """Return the bytes that one microbatch keeps at most, and those that it keeps between B and W."""
        empty = self.meter.bytes()
        if self.queue is not None:
            self.queue.hold = self.meter.hold
        with self.meter.watching():
            out = self._forward()
        after_f = self.meter.bytes() - empty
        run_w, kept_for_w = self._backward(out)
        del out
        counted = [self.meter.hold(tensor) for tensor in kept_for_w]
        after_b = self.meter.bytes() - empty
        run_w()
        del run_w, counted
        if self.queue is not None:
            self.queue.hold = None
        self.optimizer.zero_grad()
        return {"activation_bytes": max(after_f, after_b), "held_bytes": after_b}


def _filled_input(network: Network, example: Tensor, first: bool) -> Tensor:
    """Return an input with random content: zeros would make some ops faster than they are."""
    if first:
        return batch(network, network.microbatch_size, 0)[0]
    return nn.init.normal_(torch.empty_like(example.detach()))
