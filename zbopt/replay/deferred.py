"""A backward split into B and W, through the official hook of PyTorch's runtime.

B is autograd's whole backward without the weight products of Linear layers, which wait in a queue; W runs the queue.
Megatron-LM's and the zero-bubble papers' weight gradient stores work in the same way.

Unlike the runtime's own split this one also splits the first virtual stage, needs no walk over the autograd graph, and
frees the activations at B, except for the two factors of each product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Hold = Callable[[Tensor], object]
"""Function that counts a tensor as kept in memory for as long as the returned object lives (the memory meter's)."""


class WeightQueue:
    """Queue the weight gradients that B of one virtual stage leaves to W. ``take`` is PyTorch's ``dw_builder``."""

    def __init__(self) -> None:
        self.hold: Hold | None = None
        self._waiting: list[tuple[nn.Parameter, Tensor, Tensor, object]] = []
        self._work: list[Callable[[], None]] = []

    def add(self, weight: nn.Parameter, inputs: Tensor, grad: Tensor) -> None:
        """Leave the product ``grad^T inputs`` to W."""
        counted = (self.hold(inputs), self.hold(grad)) if self.hold else None
        self._waiting.append((weight, inputs, grad, counted))

    def add_work(self, work: Callable[[], None]) -> None:
        """Leave any other work to W."""
        self._work.append(work)

    def take(self) -> Callable[[], None]:
        """Return a function that does everything left since the last call."""
        waiting, self._waiting = self._waiting, []
        works, self._work = self._work, []

        def run() -> None:
            for work in works:
                work()
            while waiting:  # popped one by one, so that each product's factors are freed at once
                weight, inputs, grad, _ = waiting.pop(0)
                product = grad.reshape(-1, grad.shape[-1]).t() @ inputs.reshape(-1, inputs.shape[-1])
                weight.grad = product if weight.grad is None else weight.grad.add_(product)

        return run


class _Product(torch.autograd.Function):
    """Compute ``linear`` and queue its weight gradient.

    The weight stays on ``ctx``: one that autograd saved may come back as a copy, whose ``grad`` nobody reads.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: Tensor | None, queue: WeightQueue) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.queue, ctx.has_bias = weight, queue, bias is not None
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        (grad,) = grads
        (x,) = ctx.saved_tensors
        ctx.queue.add(ctx.weight, x.detach(), grad)
        grad_x = grad @ ctx.weight if ctx.needs_input_grad[0] else None
        grad_bias = grad.reshape(-1, grad.shape[-1]).sum(0) if ctx.has_bias else None
        return grad_x, None, grad_bias, None


class DeferredLinear(nn.Linear):
    """Replace a Linear by one that leaves its weight gradient to W."""

    queue: WeightQueue

    def forward(self, x: Tensor) -> Tensor:
        """Return what ``nn.Linear`` returns, bit for bit."""
        out: Tensor = _Product.apply(x, self.weight, self.bias, self.queue)
        return out


def defer_weights(module: nn.Module) -> WeightQueue:
    """Make every plain ``nn.Linear`` in ``module`` leave its weight gradient to the returned queue."""
    queue = WeightQueue()
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = DeferredLinear
            layer.queue = queue  # type: ignore[assignment]  # the class just changed
    return queue
