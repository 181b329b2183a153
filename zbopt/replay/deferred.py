"""B and W apart, through the engine's official hook: B is autograd's whole backward without the products of Linear
weights, which wait in a queue; W runs the queue. Beside Megatron's and the zero-bubble papers' weight store.

Unlike the engine's own split this also splits the first stage, costs no walk over the autograd graph, and lets the
activations go at B but for the two factors of each product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Hold = Callable[[Tensor], object]
"""Counts a tensor as held for as long as the returned object lives (the memory meter's)."""


class WeightQueue:
    """Weight gradients of one virtual stage that its B left over. ``take`` is the engine's ``dw_builder``."""

    def __init__(self) -> None:
        self.hold: Hold | None = None
        self._waiting: list[tuple[nn.Parameter, Tensor, Tensor, object]] = []
        self._work: list[Callable[[], None]] = []

    def add(self, weight: nn.Parameter, inputs: Tensor, grad: Tensor) -> None:
        """Leave the product ``grad^T inputs`` for W."""
        held = (self.hold(inputs), self.hold(grad)) if self.hold else None
        self._waiting.append((weight, inputs, grad, held))

    def add_work(self, work: Callable[[], None]) -> None:
        """Leave any other work for W."""
        self._work.append(work)

    def take(self) -> Callable[[], None]:
        """Everything left since the last call, as the function that does it."""
        waiting, self._waiting = self._waiting, []
        works, self._work = self._work, []

        def run() -> None:
            for work in works:
                work()
            while waiting:
                weight, inputs, grad, _held = waiting.pop(0)
                product = grad.reshape(-1, grad.shape[-1]).t() @ inputs.reshape(-1, inputs.shape[-1])
                weight.grad = product if weight.grad is None else weight.grad.add_(product)

        return run


class _Product(torch.autograd.Function):
    """``linear`` with its weight gradient queued. The weight stays on ``ctx``: a saved one may come back as a copy."""

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
    """A Linear whose weight gradient is left to W."""

    queue: WeightQueue

    def forward(self, x: Tensor) -> Tensor:
        """As ``nn.Linear``, bit for bit."""
        out: Tensor = _Product.apply(x, self.weight, self.bias, self.queue)
        return out


def defer_weights(module: nn.Module) -> WeightQueue:
    """Make every plain ``nn.Linear`` in ``module`` leave its weight gradient to the returned queue."""
    queue = WeightQueue()
    for part in module.modules():
        if type(part) is nn.Linear:
            part.__class__ = DeferredLinear
            part.queue = queue  # type: ignore[assignment]  # the class just changed
    return queue
