"""Cost of each virtual stage on this device: F, B, W and BW by themselves, and what a microbatch keeps in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from zbopt.replay.deferred import WeightQueue, defer_weights
from zbopt.replay.engine import split_backward
from zbopt.replay.networks import batch, boundary, build_slice, loss_of
from zbopt.replay.observe import CpuClock, CudaClock, MemoryMeter
from zbopt.replay.spec import Job, Network
from zbopt.replay.update import optimizer_of

_WARM_UP = 2


def measure(job: Job) -> dict[str, Any]:
    """Medians over ``job.repeats`` in nanoseconds and bytes, a list by virtual stage each.

    On a GPU times are the device's.
    """
    virtual_stages = job.virtual_stages or 1
    rows = [_Probe(job, v, virtual_stages).run() for v in range(virtual_stages)]
    return {name: [row[name] for row in rows] for name in rows[0]}


class _Probe:
    """One virtual stage, alone."""

    def __init__(self, job: Job, virtual_stage: int, virtual_stages: int) -> None:
        self.job, self.network = job, job.network
        self.device = torch.device(job.device)
        self.module = build_slice(job.network, virtual_stage, virtual_stages).to(self.device)
        self.queue: WeightQueue | None = defer_weights(self.module) if job.training.split == "deferred" else None
        self.meter = MemoryMeter(self.module.parameters())
        self.clock = CudaClock() if job.device == "cuda" else CpuClock()
        self.takes, self.gives = boundary(job.network, virtual_stage, virtual_stages)
        self.first, self.last = virtual_stage == 0, virtual_stage == virtual_stages - 1
        self.optimizer = optimizer_of(self.module.parameters(), job.training)

    def run(self) -> dict[str, int]:
        """Every figure of this virtual stage."""
        memory = self._memory()
        times: dict[str, list[int]] = {"forward": [], "backward": [], "weight": [], "fused_backward": [], "step": []}
        for _ in range(_WARM_UP + self.job.repeats):
            self.clock.start(self.clock.now())
            stamps = [self.clock.stamp()]
            out = self._forward()
            stamps.append(self.clock.stamp())
            work = self._backward(out)[0]
            stamps.append(self.clock.stamp())
            work()
            stamps.append(self.clock.stamp())
            self.optimizer.step()
            stamps.append(self.clock.stamp())
            begin, forward, backward, weight, step = (self.clock.read(stamp) for stamp in stamps)
            times["forward"].append(forward - begin)
            times["backward"].append(backward - forward)
            times["weight"].append(weight - backward)
            times["fused_backward"].append(self._fused())
            times["step"].append(step - weight)
        return {f"{name}_ns": max(1, int(median(values[_WARM_UP:]))) for name, values in times.items()} | memory

    def _forward(self) -> Tensor:
        """The output, or on the last virtual stage the loss."""
        inputs = _example(self.network, self.takes, self.first).to(self.device)
        target = batch(self.network, self.network.microbatch_size, 0)[1].to(self.device)
        self.meter.ignore(target, *([inputs] if self.first else []))
        self.inputs = inputs.requires_grad_(not self.first)
        out: Tensor = self.module(self.inputs)
        return loss_of(self.network)(out, target) if self.last else out

    def _backward(self, out: Tensor) -> tuple[Callable[[], None], list[Tensor]]:
        """B; gives back its W, and what that needs beside graph and queue. The engine's own is nothing on the first."""
        whole = partial(torch.autograd.backward, out, torch.ones_like(out))
        if self.queue is not None:
            whole()
            return self.queue.take(), []
        return (whole, []) if self.first else split_backward(out, self.inputs, self.module)

    def _fused(self) -> int:
        """B and W in one go, as BW runs."""
        out = self._forward()
        begin = self.clock.stamp()
        torch.autograd.backward(out, torch.ones_like(out))
        if self.queue is not None:
            self.queue.take()()
        return self.clock.read(self.clock.stamp()) - self.clock.read(begin)

    def _memory(self) -> dict[str, int]:
        """Bytes that one microbatch keeps at most, and after B until W."""
        empty = self.meter.bytes()
        if self.queue is not None:
            self.queue.hold = self.meter.hold
        with self.meter.watching():
            out = self._forward()
        kept = self.meter.bytes() - empty
        work, left = self._backward(out)
        del out
        holds = [self.meter.hold(tensor) for tensor in left]
        held = self.meter.bytes() - empty
        work()
        del work, holds
        if self.queue is not None:
            self.queue.hold = None
        self.optimizer.zero_grad()
        return {"activation_bytes": max(kept, held), "held_bytes": held}


def _example(network: Network, takes: Tensor, first: bool) -> Tensor:
    """An input with content: zeros would make some ops faster than they are."""
    if first:
        return batch(network, network.microbatch_size, 0)[0]
    return nn.init.normal_(torch.empty_like(takes.detach()))
