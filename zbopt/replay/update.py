"""The optimizer step of one iteration: global norm, clipping, overflow, loss scale; decided on all stages alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zbopt.replay.spec import Training


@dataclass(frozen=True, slots=True)
class Decision:
    """What every stage does with its gradients: ``step``, ``clip`` (and step) or ``skip``; from the global norm."""

    norm: float
    act: str


class LossScale:
    """Loss scaling by powers of two, which change no bit: halved by an overflow, doubled after enough good steps."""

    def __init__(self, training: Training) -> None:
        self.value = training.loss_scale
        self.good_steps = 0
        self._interval = training.growth_interval

    def update(self, decision: Decision) -> None:
        """Follow one decision."""
        if decision.act == "skip":
            self.value, self.good_steps = self.value / 2, 0
            return
        self.good_steps += 1
        if self.good_steps == self._interval:
            self.value, self.good_steps = self.value * 2, 0


def square_sum(gradients: Iterable[Tensor]) -> Tensor:
    """Sum of squares, in float64."""
    parts = [g.detach().double().pow(2).sum() for g in gradients]
    return torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.float64)


def decide(square_sums: Tensor, max_norm: float | None) -> Decision:
    """The decision from the square sums of all virtual stages, in forward order: no bit depends on the placement."""
    norm = float(square_sums.sum().sqrt())
    if not torch.isfinite(square_sums).all():
        return Decision(norm, "skip")
    return Decision(norm, "clip" if max_norm is not None and norm > max_norm else "step")


def apply(decision: Decision, max_norm: float | None, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Clip where the decision says so, and step, or leave everything as it was."""
    if decision.act == "skip":
        return
    if decision.act == "clip" and max_norm is not None:
        for optimizer in optimizers:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            norm = torch.tensor(decision.norm, dtype=torch.float64, device=parameters[0].device)
            nn.utils.clip_grads_with_norm_(parameters, max_norm, norm, foreach=False)
    for optimizer in optimizers:
        optimizer.step()


def optimizer_of(parameters: Iterable[nn.Parameter], training: Training) -> torch.optim.Optimizer:
    """AdamW, one parameter at a time, so that no bit depends on how parameters are grouped."""
    return torch.optim.AdamW(parameters, lr=training.learning_rate, foreach=False)
