"""Simulation of a plan on PyTorch's real runtime, by ops that compute nothing and last their planned time.

The runtime, its actions, the processes and their messages are real; only the work is not. A message carries the time at
which it left, so that a transfer between stages lasts the planned latency.
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


class _PassTime(torch.autograd.Function):
    """Let time pass in F and in the backward; the result carries the time at which it was ready."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, module: SimulatedStage) -> Tensor:
        ctx.module = module
        module.wait_for(x, module.forward_latency_s)
        module.spend()
        return torch.full_like(x, time.perf_counter())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        module: SimulatedStage = ctx.module
        module.wait_for(grads[0], module.backward_latency_s)
        pass_time_of_w = module.spend()
        if module.queue is not None:
            module.queue.add_work(pass_time_of_w)
        return torch.full_like(grads[0], time.perf_counter()), torch.zeros(1, dtype=torch.float64), None


class SimulatedStage(nn.Module):
    """Simulate one virtual stage. ``RecordedStage`` sets ``current_op`` before each op."""

    def __init__(self, schedule: Schedule, network: Network, virtual_stage: int) -> None:
        super().__init__()
        instance = schedule.instance
        self.unused = nn.Parameter(torch.zeros(1, dtype=torch.float64))  # an optimizer refuses to have no parameters
        self.queue: WeightQueue | None = None
        self.current_op: tuple[Kind, int] = (Kind.F, 0)
        self._ticks = {
            (e.kind, e.microbatch): e.end - e.start for e in schedule.events if e.virtual_stage == virtual_stage
        }
        self._tick_s = network.tick_s
        comm_s = instance.comm_ticks * network.tick_s if network.link == "free" else 0.0

        def latency_from(neighbour: int) -> float | None:
            exists = 0 <= neighbour < instance.virtual_stages
            if not exists or instance.stage_of[neighbour] == instance.stage_of[virtual_stage]:
                return None
            return comm_s

        self.forward_latency_s = latency_from(virtual_stage - 1)
        self.backward_latency_s = latency_from(virtual_stage + 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, width) to a tensor of the same shape that is filled with the present time."""
        out: Tensor = _PassTime.apply(x, self.unused, self)
        return out

    @staticmethod
    def wait_for(message: Tensor, latency_s: float | None) -> None:
        """Wait until ``message`` has travelled for the latency; ``None``: it did not leave the stage."""
        if latency_s:
            time.sleep(max(0.0, float(message.flatten()[0]) + latency_s - time.perf_counter()))

    def spend(self) -> Callable[[], None]:
        """Let the current op's time pass, and return a function that passes the time of its W.

        The W takes no time unless the op is a B, or a BW of which the plan has B and W.
        """
        kind, microbatch = self.current_op
        planned = self._ticks.get((kind, microbatch))
        if kind is Kind.BW and planned is None:
            kind, planned = Kind.B, self._ticks.get((Kind.B, microbatch), 0)
        time.sleep((planned or 0) * self._tick_s)
        weight = self._ticks.get((Kind.W, microbatch), 0) if kind is Kind.B else 0
        return lambda: time.sleep(weight * self._tick_s)


class LinkWork:
    """Represent a transfer on a simulated link, with the interface of PyTorch's ``dist.Work``."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self.error: Exception | None = None

    def wait(self) -> None:
        """Wait until the transfer is over; raise the error that it ended with, if any."""
        self._done.wait()
        if self.error is not None:
            raise self.error

    def finish(self, error: Exception | None) -> None:
        """Note that the transfer is over, with the error that it ended with, if any."""
        self.error = error
        self._done.set()


class FifoLink:
    """Simulate a link with one queue for all transfers of a rank.

    A transfer starts when it is at the head of the queues of both its ranks. NCCL treats unbatched transfers on one
    communicator in this way; gloo itself lets transfers overtake each other.
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
            except Exception as error:  # raised in the thread that waits for the transfer
                work.finish(error)
