"""The reference for all numbers: training without a pipeline, one microbatch after the other in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zbopt.problem.instance import Instance
from zbopt.replay.networks import TIED, batch, build_virtual_stage, loss_of
from zbopt.replay.optimizer_step import Decision, LossScale, apply, decide, optimizer_of, square_sum
from zbopt.replay.spec import Network, Training

OptimizerState = dict[str, dict[str, Tensor]]
Gradients = list[Tensor]
"""One gradient for each parameter of the model, in the model's order."""


@dataclass(frozen=True)
class LoopStep:
    """Hold one finished step: gradients, weights and optimizer state by parameter, and the optimizer's decision.

    Gradients are without the loss scale and before clipping. A tied weight is listed under both of its names.
    """

    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    optimizer: OptimizerState
    decision: Decision
    losses: tuple[float, ...]


class PlainLoop:
    """Train synchronously in one process; ``steps`` holds the finished steps."""

    def __init__(self, network: Network, training: Training, instance: Instance, device: torch.device) -> None:
        self.network, self.training, self.device = network, training, device
        self.microbatches = instance.microbatches
        slices = [build_virtual_stage(network, v, instance.virtual_stages) for v in range(instance.virtual_stages)]
        self.model = nn.Sequential(*slices).to(device)
        if network.is_tied:
            self._tie()
        self.optimizer = optimizer_of(self.model.parameters(), training)
        self.scale = LossScale(training)
        self.loss = loss_of(network)
        self.steps: list[LoopStep] = []

    def run(self) -> list[LoopStep]:
        """Train until the last step and return all steps."""
        while len(self.steps) < self.training.steps:
            self._step(len(self.steps))
        return self.steps

    def gradients(self, number: int) -> tuple[dict[str, Tensor], tuple[float, ...]]:
        """Return the gradients of step ``number`` by parameter name, and the losses by microbatch.

        The present weights are used and not changed; the gradients also stay in the parameters' ``grad``.
        """
        replicas = [self._mean_gradients(number, replica) for replica in range(self.training.data_parallel)]
        for i, parameter in enumerate(self.model.parameters()):
            total = replicas[0][0][i]
            for gradients, _ in replicas[1:]:
                total = total + gradients[i]
            parameter.grad = total if len(replicas) == 1 else total.div_(len(replicas))
        self._add_tied_gradients()
        for parameter in self.model.parameters():
            _grad(parameter).div_(self.scale.value)
        return {name: _grad(p).clone() for name, p in self.named()}, tuple(replicas[0][1])

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters with names such as ``v3.block5.up.weight``; a tied weight comes under both names."""
        for v, module in enumerate(self.model):
            for name, parameter in module.named_parameters(remove_duplicate=False):
                yield f"v{v}.{name}", parameter

    def _tie(self) -> None:
        """Make the tied weight one parameter with two uses; autograd then adds its gradients up by microbatch."""
        self.model[-1].get_submodule("head.scores").weight = self.model[0].get_parameter(TIED["first"])

    def _add_tied_gradients(self) -> None:
        """Do nothing: autograd has already added the gradients of the one tied parameter."""

    def _step(self, number: int) -> None:
        gradients, losses = self.gradients(number)
        sums = torch.stack([square_sum(map(_grad, parameters)) for parameters in self._parameters_in_norm()])
        max_norm = self.training.max_norm(number)
        decision = decide(sums, max_norm)
        apply(decision, max_norm, [self.optimizer])
        self.scale.update(decision)
        weights = {name: p.detach().clone() for name, p in self.named()}
        self.steps.append(LoopStep(gradients, weights, self._optimizer_state(), decision, losses))

    def _mean_gradients(self, number: int, replica: int) -> tuple[Gradients, list[float]]:
        """Return one replica's mean gradient by parameter, still with the loss scale, and its losses."""
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
        """Add the gradients of every microbatch to those of the parameters, and return the losses."""
        return [self._backward(x, target, factor) for x, target in microbatches]

    def _backward(self, x: Tensor, target: Tensor, factor: float) -> float:
        loss = self.loss(self.model(x), target) * factor
        loss.backward()
        return float(loss.detach()) / factor

    def _parameters_in_norm(self) -> Iterator[list[nn.Parameter]]:
        """Yield the parameters of each virtual stage that count in the global norm.

        A tied weight counts once, in the first virtual stage.
        """
        for v, module in enumerate(self.model):
            second_copy = TIED["last"] if self.network.is_tied and v == len(self.model) - 1 else None
            yield [p for name, p in module.named_parameters() if name != second_copy]

    def _optimizer_state(self) -> OptimizerState:
        return {
            name: {key: torch.as_tensor(value).detach().clone() for key, value in self.optimizer.state[p].items()}
            for name, p in self.named()
        }


def _grad(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise ValueError("a parameter of the plain loop got no gradient; every parameter of the network must be used")
    return parameter.grad
