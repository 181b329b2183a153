"""The yardstick: the same training in one process, microbatch after microbatch, by plain autograd. No pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zbopt.problem.instance import Instance
from zbopt.replay.networks import TIED, batch, build_slice, loss_of
from zbopt.replay.spec import Network, Training
from zbopt.replay.update import Decision, LossScale, apply, decide, optimizer_of, square_sum

State = dict[str, dict[str, Tensor]]
Gradients = list[Tensor]
"""A gradient for each parameter of the model, in its order."""


@dataclass(frozen=True)
class Step:
    """One finished step: gradients (unscaled, not clipped), weights and optimizer state by parameter, and the decision.

    A tied weight stands under both of its names.
    """

    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    optimizer: State
    decision: Decision
    losses: tuple[float, ...]


class Baseline:
    """Synchronous training in one process; ``steps`` are its history."""

    def __init__(self, network: Network, training: Training, instance: Instance, device: torch.device) -> None:
        self.network, self.training, self.device = network, training, device
        self.microbatches = instance.microbatches
        slices = [build_slice(network, v, instance.virtual_stages) for v in range(instance.virtual_stages)]
        self.model = nn.Sequential(*slices).to(device)
        if network.is_tied:
            self._tie()
        self.optimizer = optimizer_of(self.model.parameters(), training)
        self.scale = LossScale(training)
        self.loss = loss_of(network)
        self.steps: list[Step] = []

    def run(self) -> list[Step]:
        """All steps of the training."""
        while len(self.steps) < self.training.steps:
            self._step(len(self.steps))
        return self.steps

    def gradients(self, number: int) -> tuple[dict[str, Tensor], tuple[float, ...]]:
        """The gradients of step ``number`` at the present weights, which stay in the parameters, and the losses."""
        replicas = [self._mean(number, replica) for replica in range(self.training.data_parallel)]
        for i, parameter in enumerate(self.model.parameters()):
            total = replicas[0][0][i]
            for found, _ in replicas[1:]:
                total = total + found[i]
            parameter.grad = total if len(replicas) == 1 else total.div_(len(replicas))
        self._join_shares()
        for parameter in self.model.parameters():
            _grad(parameter).div_(self.scale.value)
        return {name: _grad(p).clone() for name, p in self.named()}, tuple(replicas[0][1])

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters as ``v3.block5.up.weight``; a tied weight under both of its names."""
        for v, part in enumerate(self.model):
            for name, parameter in part.named_parameters(remove_duplicate=False):
                yield f"v{v}.{name}", parameter

    def _tie(self) -> None:
        """One parameter with two uses, whose gradients autograd adds up microbatch by microbatch."""
        self.model[-1].get_submodule("head.scores").weight = self.model[0].get_parameter(TIED["first"])

    def _join_shares(self) -> None:
        """Autograd has done it."""

    def _step(self, number: int) -> None:
        gradients, losses = self.gradients(number)
        sums = torch.stack([square_sum(map(_grad, part)) for part in self._counted()])
        max_norm = self.training.max_norm(number)
        decision = decide(sums, max_norm)
        apply(decision, max_norm, [self.optimizer])
        self.scale.update(decision)
        weights = {name: p.detach().clone() for name, p in self.named()}
        self.steps.append(Step(gradients, weights, self._optimizer_state(), decision, losses))

    def _mean(self, number: int, replica: int) -> tuple[Gradients, list[float]]:
        """One replica's mean gradient by parameter, still scaled, and its losses."""
        self.optimizer.zero_grad()
        factor = float("inf") if number in self.training.overflow_at else self.scale.value
        losses: list[float] = []
        samples = self.microbatches * self.network.microbatch_size
        for accumulated in range(self.training.accumulation):
            inputs, targets = batch(self.network, samples, number, replica, accumulated)
            pairs = zip(inputs.chunk(self.microbatches), targets.chunk(self.microbatches), strict=True)
            losses += self._accumulate([(x.to(self.device), target.to(self.device)) for x, target in pairs], factor)
        for parameter in self.model.parameters():
            _grad(parameter).div_(self.microbatches * self.training.accumulation)
        return [_grad(p).clone() for p in self.model.parameters()], losses

    def _accumulate(self, microbatches: Sequence[tuple[Tensor, Tensor]], factor: float) -> list[float]:
        """Add the gradients of every microbatch to the parameters'; the losses."""
        return [self._backward(x, target, factor) for x, target in microbatches]

    def _backward(self, x: Tensor, target: Tensor, factor: float) -> float:
        loss = self.loss(self.model(x), target) * factor
        loss.backward()
        return float(loss.detach()) / factor

    def _counted(self) -> Iterator[list[nn.Parameter]]:
        """The parameters of each virtual stage in the global norm, a tied weight in the first of them only."""
        for v, part in enumerate(self.model):
            twice = TIED["last"] if self.network.is_tied and v == len(self.model) - 1 else None
            yield [p for name, p in part.named_parameters() if name != twice]

    def _optimizer_state(self) -> State:
        return {
            name: {key: torch.as_tensor(value).detach().clone() for key, value in self.optimizer.state[p].items()}
            for name, p in self.named()
        }


def _grad(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise ValueError("a parameter of the baseline got no gradient; every parameter must be used")
    return parameter.grad
