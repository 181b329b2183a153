"""Post-validation of the optimizer step, from Zero Bubble Pipeline Parallelism (arXiv 2401.10241), section 4.

Each stage makes an optimistic step as soon as its own gradients are ready, while the square sums of the gradients are
being reduced. In the next iteration it runs a prefix of forwards and then reads the global norm. Where that norm
overflows or has to be clipped, the stage restores weights and optimizer from a snapshot, skips the step or clips and
steps, and runs the prefix again. Everything that a prefix sends is received within the prefixes of the other stages, so
no message is under way when they are repeated.
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
from zbopt.replay.optimizer_step import Decision, apply, decide

_PREFIX_OPS = frozenset({Op.UNSHARD, Op.RECV_F, Op.FORWARD, Op.SEND_F})


def prefixes(actions_by_rank: Rows, stage_of: Sequence[int]) -> list[frozenset[Action]]:
    """Return the actions of each rank that may run before the last step is validated.

    These are forwards and their transfers only, and none of the last virtual stage, because the runtime keeps losses by
    position. Every forward comes with its input, every send with its receive, every receive with its send and forward.
    """
    last = len(stage_of) - 1

    def may_run(action: Action) -> bool:
        return action.op in _PREFIX_OPS and (action.virtual_stage, action.op) != (last, Op.FORWARD)

    found = [set(takewhile(may_run, actions)) for actions in actions_by_rank]
    while True:
        everywhere = set().union(*found)
        incomplete = {a for a in everywhere if not _needs(a, stage_of) <= everywhere}
        if not incomplete:
            return [frozenset(actions) for actions in found]
        found = [actions - incomplete for actions in found]


def _needs(action: Action, stage_of: Sequence[int]) -> set[Action]:
    """Return the actions without which ``action`` cannot be in a prefix."""
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
class _OptimisticStep:
    """Hold a step that is not validated yet: its square sums, and the snapshot to restore."""

    step: int
    max_norm: float | None
    sums: Tensor
    reduction: dist.Work | None
    weights: list[list[Tensor]]
    states: list[dict[str, Any]]


class PostValidation:
    """Make and validate the optimistic steps of one process's optimizers."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], group: dist.ProcessGroup | None) -> None:
        self.optimizers, self.group = optimizers, group
        self.rollbacks = 0
        self._pending: _OptimisticStep | None = None

    def try_step(self, sums: Tensor, max_norm: float | None, step: int) -> None:
        """Start the reduction of the square sums, take a snapshot, and step without clipping."""
        reduction = dist.all_reduce(sums, group=self.group, async_op=True) if self.group is not None else None
        weights = [[p.detach().clone() for p in _parameters(optimizer)] for optimizer in self.optimizers]
        states = [copy.deepcopy(optimizer.state_dict()) for optimizer in self.optimizers]
        self._pending = _OptimisticStep(step, max_norm, sums, reduction, weights, states)
        for optimizer in self.optimizers:
            optimizer.step()

    def validate(self) -> tuple[int, Decision, bool] | None:
        """Validate the pending step, and take it back where its norm has to be clipped or overflows.

        Returns:
            The step's number, the decision, and whether the optimistic step stands; ``None`` if no step is pending.
        """
        if self._pending is None:
            return None
        tried, self._pending = self._pending, None
        if tried.reduction is not None:
            tried.reduction.wait()
        decision = decide(tried.sums, tried.max_norm)
        if decision.act != "step":
            self._take_back(tried)
            apply(decision, tried.max_norm, self.optimizers)
            self.rollbacks += 1
        return tried.step, decision, decision.act == "step"

    def _take_back(self, tried: _OptimisticStep) -> None:
        for optimizer, weights, state in zip(self.optimizers, tried.weights, tried.states, strict=True):
            with torch.no_grad():
                for parameter, before in zip(_parameters(optimizer), weights, strict=True):
                    parameter.copy_(before)
            optimizer.load_state_dict(state)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
