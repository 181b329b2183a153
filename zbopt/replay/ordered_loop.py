"""The plain loop with gradients added up in the schedule's order, which a pipeline has to match bit for bit.

The order of addition changes the last bits of a sum. After an optimizer step the weights differ too, which hides what
the order alone does. So the proof asks two questions apart, each at equal weights. Does the pipeline equal a loop that
adds gradients in the schedule's order, to the last bit? And how far is that loop from adding in microbatch order?
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zbopt.problem.instance import Instance
from zbopt.replay.lowering import AdditionOrder
from zbopt.replay.networks import TIED
from zbopt.replay.plain_loop import PlainLoop
from zbopt.replay.spec import Network, Training


class OrderedLoop(PlainLoop):
    """Train like the plain loop, but add gradients up in ``order``.

    ``plain`` holds the gradients of each step in microbatch order, at the same weights. A tied weight has two copies
    here, as in a pipeline: each adds up the gradients of its own use, and the two sums are added at the end.
    """

    def __init__(
        self, network: Network, training: Training, instance: Instance, device: torch.device, order: AdditionOrder
    ) -> None:
        super().__init__(network, training, instance, device)
        self._microbatch_order_loop = PlainLoop(network, training, instance, device)
        self.plain: list[dict[str, Tensor]] = []
        self._orders = [
            (order.of_weight if training.split == "engine" or in_w else order.of_backward)[v]
            for v, module in enumerate(self.model)
            for in_w in _added_in_w(module)
        ]

    def _tie(self) -> None:
        """Keep two copies of the tied weight, as a pipeline does."""

    def _add_tied_gradients(self) -> None:
        if self.network.is_tied:
            first = self.model[0].get_parameter(TIED["first"])
            last = self.model[-1].get_parameter(TIED["last"])
            if first.grad is not None and last.grad is not None:
                first.grad = first.grad + last.grad
                last.grad = first.grad.clone()

    def _accumulate(self, microbatches: Sequence[tuple[Tensor, Tensor]], factor: float) -> list[float]:
        parameters = list(self.model.parameters())
        earlier_passes = [p.grad for p in parameters]
        by_microbatch: list[list[Tensor | None]] = []
        losses = []
        for x, target in microbatches:
            self.optimizer.zero_grad()
            losses.append(self._backward(x, target, factor))
            by_microbatch.append([p.grad for p in parameters])
        for i, (parameter, order) in enumerate(zip(parameters, self._orders, strict=True)):
            total = earlier_passes[i]
            for gradient in (by_microbatch[microbatch][i] for microbatch in order):
                if gradient is not None:
                    total = gradient.clone() if total is None else total.add_(gradient)
            parameter.grad = total
        return losses

    def _step(self, number: int) -> None:
        with torch.no_grad():
            own = dict(self.named())
            for name, parameter in self._microbatch_order_loop.named():
                parameter.copy_(own[name])
        self._microbatch_order_loop.scale.value = self.scale.value
        self.plain.append(self._microbatch_order_loop.gradients(number)[0])
        super()._step(number)


def _added_in_w(virtual_stage: nn.Module) -> list[bool]:
    """Tell for each parameter whether W adds up its gradient (the weight of a Linear); B adds up the others."""
    weights = {id(module.weight) for module in virtual_stage.modules() if type(module) is nn.Linear}
    return [id(parameter) in weights for parameter in virtual_stage.parameters()]
