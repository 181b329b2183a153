"""The plain loop once more, adding up as the schedule does: what a pipeline has to match bit for bit.

The order of addition changes last bits, and after an optimizer step the weights differ, which hides what the order
alone does. So two questions are asked apart, at the same weights each: does the pipeline differ from a loop that adds
in the schedule's order (not by a bit), and how far is that from adding up in microbatch order?
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zbopt.problem.instance import Instance
from zbopt.replay.baseline import Baseline
from zbopt.replay.lowering import AdditionOrder
from zbopt.replay.networks import TIED
from zbopt.replay.spec import Network, Training


class Ordered(Baseline):
    """The baseline that adds up in ``order``; ``plain`` are the gradients of each step in microbatch order.

    A tied weight is two copies here, as in a pipeline: each adds up its own use, and the two shares are joined after.
    """

    def __init__(
        self, network: Network, training: Training, instance: Instance, device: torch.device, order: AdditionOrder
    ) -> None:
        super().__init__(network, training, instance, device)
        self._twin = Baseline(network, training, instance, device)
        self.plain: list[dict[str, Tensor]] = []
        self._orders = [
            (order.of_weight if training.split == "engine" or deferred else order.of_backward)[v]
            for v, part in enumerate(self.model)
            for deferred in _deferred(part)
        ]

    def _tie(self) -> None:
        """Two copies."""

    def _join_shares(self) -> None:
        if self.network.is_tied:
            first = self.model[0].get_parameter(TIED["first"])
            last = self.model[-1].get_parameter(TIED["last"])
            if first.grad is not None and last.grad is not None:
                first.grad = first.grad + last.grad
                last.grad = first.grad.clone()

    def _accumulate(self, microbatches: Sequence[tuple[Tensor, Tensor]], factor: float) -> list[float]:
        parameters = list(self.model.parameters())
        before = [p.grad for p in parameters]
        single: list[list[Tensor | None]] = []
        losses = []
        for x, target in microbatches:
            self.optimizer.zero_grad()
            losses.append(self._backward(x, target, factor))
            single.append([p.grad for p in parameters])
        for i, (parameter, order) in enumerate(zip(parameters, self._orders, strict=True)):
            total = before[i]
            for share in (single[microbatch][i] for microbatch in order):
                if share is not None:
                    total = share.clone() if total is None else total.add_(share)
            parameter.grad = total
        return losses

    def _step(self, number: int) -> None:
        with torch.no_grad():
            own = dict(self.named())
            for name, parameter in self._twin.named():
                parameter.copy_(own[name])
        self._twin.scale.value = self.scale.value
        self.plain.append(self._twin.gradients(number)[0])
        super()._step(number)


def _deferred(part: nn.Module) -> list[bool]:
    """Whether W adds up the gradient of each parameter of ``part``; the others come in B."""
    weights = {id(module.weight) for module in part.modules() if type(module) is nn.Linear}
    return [id(parameter) in weights for parameter in part.parameters()]
