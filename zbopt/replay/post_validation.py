"""Post-validation, as the zero-bubble papers have it: step first, ask later, take back exactly if the answer is no.

Each stage steps right after its own gradients, while the square sums travel. In the next iteration it runs a prefix of
forwards, then looks at the global norm: an overflow or a norm to clip restores weights and optimizer from a snapshot,
clips and steps or skips, and runs the prefix again. The prefix is closed: what it sends it also receives, so that
nothing is under way when it is repeated.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zbopt.formats.torch_csv import Action, Op, Rows
from zbopt.replay.update import Decision, apply, decide

_PREFIX = frozenset({Op.UNSHARD, Op.RECV_F, Op.FORWARD, Op.SEND_F})


def prefixes(rows: Rows, stage_of: Sequence[int]) -> list[frozenset[Action]]:
    """The actions of each row that may run before validation.

    Forwards and their transfers only, none of the last virtual stage (the runtime keeps losses by position), every
    forward with its input, every send with its receive and every receive with its send and its forward.
    """
    last = len(stage_of) - 1
    inside = [
        set(takewhile(lambda a: a.op in _PREFIX and (a.virtual_stage, a.op) != (last, Op.FORWARD), row)) for row in rows
    ]
    while True:
        everywhere = {action for row in inside for action in row}
        outside = {a for a in everywhere if not _needs(a, stage_of) <= everywhere}
        if not outside:
            return [frozenset(row) for row in inside]
        inside = [row - outside for row in inside]


def _needs(action: Action, stage_of: Sequence[int]) -> set[Action]:
    v, micro = action.virtual_stage, action.microbatch
    forward = Action(v, Op.FORWARD, micro)
    if action.op is Op.SEND_F:
        return {forward, Action(v + 1, Op.RECV_F, micro)}
    if action.op is Op.RECV_F:
        return {forward, Action(v - 1, Op.SEND_F, micro)}
    if action.op is Op.FORWARD and v > 0:
        local = stage_of[v - 1] == stage_of[v]
        return {Action(v - 1, Op.FORWARD, micro) if local else Action(v, Op.RECV_F, micro)}
    return set()


@dataclass
class _Try:
    """An optimistic step: the square sums on their way, and how to take it back."""

    step: int
    max_norm: float | None
    sums: Tensor
    work: dist.Work | None
    weights: list[list[Tensor]]
    states: list[dict[str, Any]]


class PostValidation:
    """Optimistic steps of one process's optimizers."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], group: dist.ProcessGroup | None) -> None:
        self.optimizers, self.group = optimizers, group
        self.rollbacks = 0
        self._open: _Try | None = None

    def try_step(self, sums: Tensor, max_norm: float | None, step: int) -> None:
        """Send the square sums on their way, take a snapshot, and step without clipping."""
        work = dist.all_reduce(sums, group=self.group, async_op=True) if self.group is not None else None
        weights = [[p.detach().clone() for p in _parameters(optimizer)] for optimizer in self.optimizers]
        states = [copy.deepcopy(optimizer.state_dict()) for optimizer in self.optimizers]
        self._open = _Try(step, max_norm, sums, work, weights, states)
        for optimizer in self.optimizers:
            optimizer.step()

    def validate(self) -> tuple[int, Decision, bool] | None:
        """Settle the open step: (its number, the decision, whether the optimistic step stands); ``None``: none open."""
        if self._open is None:
            return None
        tried, self._open = self._open, None
        if tried.work is not None:
            tried.work.wait()
        decision = decide(tried.sums, tried.max_norm)
        if decision.act != "step":
            self._take_back(tried)
            apply(decision, tried.max_norm, self.optimizers)
            self.rollbacks += 1
        return tried.step, decision, decision.act == "step"

    def _take_back(self, tried: _Try) -> None:
        for optimizer, weights, state in zip(self.optimizers, tried.weights, tried.states, strict=True):
            with torch.no_grad():
                for parameter, before in zip(_parameters(optimizer), weights, strict=True):
                    parameter.copy_(before)
            optimizer.load_state_dict(state)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
