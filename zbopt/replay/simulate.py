"""Ops that compute nothing and last their planned time: an honest simulation of a plan on the real engine.

What is real: the engine, its actions, the processes and their messages. What is not: the work. A message carries the
time at which it left, so that a transfer between stages lasts the planned latency.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbopt.problem.instance import Kind
from zbopt.problem.schedule import Schedule
from zbopt.replay.deferred import WeightQueue
from zbopt.replay.spec import Network


class _Wait(torch.autograd.Function):
    """Lets time pass in F and in the backward; the result carries the time at which it was ready."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, module: Waits) -> Tensor:
        ctx.module = module
        module.wait_for(x, module.forward_from)
        module.spend()
        return torch.full_like(x, time.perf_counter())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        module: Waits = ctx.module
        module.wait_for(grads[0], module.backward_from)
        later = module.spend()
        if module.queue is not None:
            module.queue.add_work(later)
        return torch.full_like(grads[0], time.perf_counter()), torch.zeros(1, dtype=torch.float64), None


class Waits(nn.Module):
    """One virtual stage of the simulation. ``now`` says which op runs: the engine's slice sets it before each."""

    def __init__(self, schedule: Schedule, network: Network, virtual_stage: int) -> None:
        super().__init__()
        instance = schedule.instance
        self.nothing = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.queue: WeightQueue | None = None
        self.now: tuple[Kind, int] = (Kind.F, 0)
        self._ticks = {
            (e.kind, e.microbatch): e.end - e.start for e in schedule.events if e.virtual_stage == virtual_stage
        }
        self._tick_s = network.tick_s
        comm = instance.comm_ticks * network.tick_s if network.link == "free" else 0.0
        neighbours = (virtual_stage - 1, virtual_stage + 1)
        arrives = [
            comm
            if 0 <= v < instance.virtual_stages and instance.stage_of[v] != instance.stage_of[virtual_stage]
            else None
            for v in neighbours
        ]
        self.forward_from, self.backward_from = arrives

    def forward(self, x: Tensor) -> Tensor:
        """(samples, width) -> the same, full of the time now."""
        out: Tensor = _Wait.apply(x, self.nothing, self)
        return out

    @staticmethod
    def wait_for(message: Tensor, latency_s: float | None) -> None:
        """Until ``message`` has been under way for the latency; ``None``: it did not travel."""
        if latency_s:
            time.sleep(max(0.0, float(message.flatten()[0]) + latency_s - time.perf_counter()))

    def spend(self) -> Callable[[], None]:
        """Let the op's time pass; gives back what passes the time of its W, for a backward that leaves one."""
        kind, microbatch = self.now
        whole = self._ticks.get((kind, microbatch))
        if kind is Kind.BW and whole is None:
            kind, whole = Kind.B, self._ticks.get((Kind.B, microbatch), 0)
        time.sleep((whole or 0) * self._tick_s)
        weight = self._ticks.get((Kind.W, microbatch), 0) if kind is Kind.B else 0
        return lambda: time.sleep(weight * self._tick_s)


class LinkWork:
    """A transfer on a link; waits as the engine's own works do."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self.error: Exception | None = None

    def wait(self) -> None:
        """Until the transfer is over."""
        self._done.wait()
        if self.error is not None:
            raise self.error

    def finish(self, error: Exception | None) -> None:
        """The transfer is over."""
        self.error = error
        self._done.set()


class FifoLink:
    """One queue for all transfers of a rank: each starts when both ends are at the head of their queues.

    What NCCL does with unbatched transfers on one communicator; gloo itself lets transfers overtake each other.
    """

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._queue: queue.SimpleQueue[tuple[dist.P2POp, LinkWork]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def post(self, op: dist.P2POp) -> LinkWork:
        """Put a transfer at the end of the queue."""
        work = LinkWork()
        self._queue.put((op, work))
        return work

    def _serve(self) -> None:
        while True:
            op, work = self._queue.get()
            try:
                if op.op is dist.isend:
                    dist.send(op.tensor, op.peer, group=op.group)
                else:
                    dist.recv(op.tensor, op.peer, group=op.group)
                time.sleep(self._latency_s)
                work.finish(None)
            except Exception as error:  # whoever waits for the transfer gets it
                work.finish(error)
