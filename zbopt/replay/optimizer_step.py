"""The optimizer step of one iteration: global norm, clipping, overflow, loss scale. All stages decide alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zbopt.replay.spec import Training


@dataclass(frozen=True, slots=True)
class Decision:
    """Say what every stage does with its gradients, from the global norm: ``step``, ``clip`` and step, or ``skip``."""

    norm: float
    act: str


class LossScale:
    """Keep the loss scale: an overflow halves it, enough good steps double it. Powers of two change no bit."""

    def __init__(self, training: Training) -> None:
        self.value = training.loss_scale
        self.good_steps = 0
        self._interval = training.growth_interval

    def update(self, decision: Decision) -> None:
        """Change the scale after one decision."""
        if decision.act == "skip":
            self.value, self.good_steps = self.value / 2, 0
            return
        self.good_steps += 1
        if self.good_steps == self._interval:
            self.value, self.good_steps = self.value * 2, 0


def square_sum(gradients: Iterable[Tensor]) -> Tensor:
    """Return the sum of squares in float64."""
    sums = [g.detach().double().pow(2).sum() for g in gradients]
    return torch.stack(sums).sum() if sums else torch.zeros((), dtype=torch.float64)


def decide(square_sums: Tensor, max_norm: float | None) -> Decision:
    """Decide from the square sums of all virtual stages in forward order, so that no bit depends on the placement."""
    norm = float(square_sums.sum().sqrt())
    if not torch.isfinite(square_sums).all():
        return Decision(norm, "skip")
    return Decision(norm, "clip" if max_norm is not None and norm > max_norm else "step")


def apply(decision: Decision, max_norm: float | None, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Carry out the decision: clip and step, step, or change nothing."""
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
    """Build AdamW, one parameter at a time, so that no bit depends on how parameters are grouped."""
    return torch.optim.AdamW(parameters, lr=training.learning_rate, foreach=False)
