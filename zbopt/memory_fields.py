"""What an instance's memory fields promise together: defaults that depend on other fields, and refusals."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from zbopt.kinds import Drop
from zbopt.quantities import number

if TYPE_CHECKING:
    from zbopt.instance import Instance

PER_VIRTUAL_STAGE = (
    "activation",
    "weight_share",
    "gradient_state",
    "boundary",
    "recompute",
    "recompute_ticks",
    "checkpoint",
)
PER_STAGE = ("memory_cap", "parameters", "gradients", "optimizer_state", "workspace", "reserve")


def fill_memory(data: MutableMapping[str, Any]) -> None:
    """Put in the defaults of raw fields that depend on others: R takes as long as F."""
    if data.get("recompute") is not None and data.get("recompute_ticks") is None and "forward_ticks" in data:
        data["recompute_ticks"] = data["forward_ticks"]


def check_memory(instance: Instance) -> None:
    """Refuse fields that say nothing, or too much, without each other.

    Raises:
        ValueError: What is left of a dropped activation is more than it, or is given where nothing is dropped.
    """
    _check_left(instance, "recompute", "checkpoint")
    if instance.recompute is None and instance.recompute_ticks is not None:
        raise ValueError("recompute_ticks is given but recompute is not; set recompute to always or choose")
    if instance.receive_buffers not in (None, 0) and instance.boundary is None:
        raise ValueError("receive_buffers is given but boundary is not; give the memory of what a stage receives")


def _check_left(instance: Instance, mode: str, left: str) -> None:
    amounts, modes = getattr(instance, left), getattr(instance, mode)
    if amounts is not None and (modes is None or set(modes) == {Drop.NEVER}):
        raise ValueError(f"{left} is given but {mode} is never; set {mode} to always or choose, or leave {left} out")
    for virtual_stage, amount in enumerate(amounts or ()):
        whole = instance.activation[virtual_stage]
        if amount > whole:
            raise ValueError(
                f"{left}[{virtual_stage}] = {number(amount)} is above the activation {number(whole)} of that virtual "
                f"stage; give at most {number(whole)}"
            )
