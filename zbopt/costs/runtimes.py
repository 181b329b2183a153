"""Runtimes as fields of an instance: how each splits the backward, and the memory that it takes.

Measured times and activations stay as they are. The runtime decides what B and W compute, what memory each frees, and
what it allocates besides. Each figure says where it comes from.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction

from zbopt.problem.instance import Instance


class Runtime(StrEnum):
    """Name the runtime whose split of the backward is modelled."""

    TORCH = "torch"
    """torch.distributed.pipelining's own: ``stage_backward_input`` and ``stage_backward_weight`` (_backward.py)."""
    DEFERRED_WEIGHT = "deferred-weight"
    """B runs the whole autograd and queues the weight's products, which W computes: PipelineStage(dw_builder=...)."""


NODE_GRADIENTS = Fraction(68, 100)
"""Gradients of autograd's nodes that PyTorch's B keeps for W, as a share of the activation.

Measured on a transformer block with PyTorch 2.13: 0.68; on a multilayer perceptron it was 1.0.
"""


def run_by(instance: Instance, runtime: Runtime) -> Instance:
    """Return ``instance`` with the fields that ``runtime`` decides. Memory fields that are given already stay.

    ``torch`` (PyTorch 2.13, torch/distributed/pipelining): on the first virtual stage B does nothing and W is the whole
    backward (stage.py, ``backward_one_chunk``: no input needs a gradient there); nothing is freed before W, since the
    graph is kept alive for it; and B adds the gradients of the nodes at which W takes up. ``deferred-weight``: a queue
    holds inputs and output gradients of the linear layers until W, 0.98 to 1.0 of the activation as measured, so that
    nothing is counted free before W either. Both keep receive buffers for every microbatch (stage.py,
    ``_prepare_forward_infra``; pytorch/pytorch#136380).

    Raises:
        ValueError: The backward is never split, so that there is no split to model.
    """
    if instance.backward_ticks is None or instance.weight_ticks is None:
        raise ValueError(f"runtime {runtime.value}: the backward is never split; give backward_ticks and weight_ticks")
    changes: dict[str, object] = {"weight_share": (Fraction(1),) * instance.virtual_stages}
    if instance.boundary is not None and instance.receive_buffers is None:
        changes["receive_buffers"] = "all"
    if runtime is Runtime.TORCH:
        changes |= _first_stage(instance)
        if instance.gradient_state is None:
            changes["gradient_state"] = tuple(amount * NODE_GRADIENTS for amount in instance.activation)
    return Instance.model_validate(instance.model_dump(exclude_none=True) | changes)


def _first_stage(instance: Instance) -> dict[str, object]:
    """Return the changes that leave the first virtual stage without B, its W as long as both were."""
    assert instance.backward_ticks is not None
    assert instance.weight_ticks is not None
    first = instance.backward_ticks[0] or 0
    changes: dict[str, object] = {
        "backward_ticks": (None, *instance.backward_ticks[1:]),
        "weight_ticks": (instance.weight_ticks[0] + first, *instance.weight_ticks[1:]),
    }
    if instance.fused_backward_ticks is not None:
        changes["fused_backward_ticks"] = (None, *instance.fused_backward_ticks[1:])
    return changes
