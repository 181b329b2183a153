"""The yardstick: the same training in one process, microbatch after microbatch, by plain autograd. No pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zbopt.instance import Instance
from zbopt.replay.networks import TIED, batch, build_slice, loss_of
from zbopt.replay.spec import Network, Training
from zbopt.replay.update import Decision, LossScale, apply, decide, optimizer_of, square_sum

State = dict[str, dict[str, Tensor]]


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
            first = self.model[0].get_parameter(TIED["first"])
            self.model[-1].get_submodule("head.scores").weight = first
        self.optimizer = optimizer_of(self.model.parameters(), training)
        self.scale = LossScale(training)
        self.loss = loss_of(network)
        self.steps: list[Step] = []

    def run(self) -> list[Step]:
        """All steps of the training."""
        while len(self.steps) < self.training.steps:
            self._step(len(self.steps))
        return self.steps

    def _step(self, number: int) -> None:
        replicas = [self._accumulate(number, replica) for replica in range(self.training.data_parallel)]
        losses = replicas[0][1]
        for i, parameter in enumerate(self.model.parameters()):
            total = replicas[0][0][i]
            for gradients, _ in replicas[1:]:
                total = total + gradients[i]
            parameter.grad = (total if len(replicas) == 1 else total.div_(len(replicas))).div_(self.scale.value)
        named = {name: _grad(p).clone() for name, p in self._named()}
        sums = torch.stack([square_sum(map(_grad, part.parameters())) for part in self._counted()])
        max_norm = self.training.max_norm(number)
        decision = decide(sums, max_norm)
        apply(decision, max_norm, [self.optimizer])
        self.scale.update(decision)
        weights = {name: p.detach().clone() for name, p in self._named()}
        self.steps.append(Step(named, weights, self._optimizer_state(), decision, tuple(losses)))

    def _accumulate(self, number: int, replica: int) -> tuple[list[Tensor], list[float]]:
        """One replica's mean gradient by parameter, still scaled, and its losses."""
        self.optimizer.zero_grad()
        factor = float("inf") if number in self.training.overflow_at else self.scale.value
        losses = []
        samples = self.microbatches * self.network.microbatch_size
        for accumulated in range(self.training.accumulation):
            inputs, targets = batch(self.network, samples, number, replica, accumulated)
            pairs = zip(inputs.chunk(self.microbatches), targets.chunk(self.microbatches), strict=True)
            for x, target in pairs:
                loss = self.loss(self.model(x.to(self.device)), target.to(self.device)) * factor
                loss.backward()
                losses.append(float(loss.detach()) / factor)
        for parameter in self.model.parameters():
            _grad(parameter).div_(self.microbatches * self.training.accumulation)
        return [_grad(p).clone() for p in self.model.parameters()], losses

    def _counted(self) -> Iterator[nn.Module]:
        """The slices, a tied weight in the first of them only."""
        for v, part in enumerate(self.model):
            if self.network.is_tied and v == len(self.model) - 1 and v > 0:
                yield nn.ParameterList([p for name, p in part.named_parameters() if name != TIED["last"]])
            else:
                yield part

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        for v, part in enumerate(self.model):
            for name, parameter in part.named_parameters(remove_duplicate=False):
                yield f"v{v}.{name}", parameter

    def _optimizer_state(self) -> State:
        return {
            name: {key: torch.as_tensor(value).detach().clone() for key, value in self.optimizer.state[p].items()}
            for name, p in self._named()
        }


def _grad(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise ValueError("a parameter of the baseline got no gradient; every parameter must be used")
    return parameter.grad
