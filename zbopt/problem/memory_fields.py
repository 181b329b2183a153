"""An instance's memory fields beside activation and cap, and what they promise together."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from zbopt.problem.kinds import Drop
from zbopt.problem.numbers import Amounts, Ticks, number

if TYPE_CHECKING:
    from zbopt.problem.instance import Instance

PER_VIRTUAL_STAGE = (
    "activation",
    "weight_share",
    "gradient_state",
    "boundary",
    "recompute",
    "recompute_ticks",
    "checkpoint",
    "offload",
    "offload_ticks",
    "reload_ticks",
    "offload_rest",
)
PER_STAGE = ("memory_cap", "parameters", "gradients", "optimizer_state", "workspace", "reserve", "host_link")


class MemoryFields(BaseModel):
    """Fields of what stages hold beside activations, and of what may become of these."""

    model_config = ConfigDict(defer_build=True)  # nothing validates by it: the instance does, and it is costly to build

    gradient_state: Amounts | None = Field(
        None, description="Memory that B adds and that is held until the end of W, by virtual stage; null: none."
    )
    boundary: Amounts | None = Field(
        None,
        description="Memory of F's output, and of its gradient, by virtual stage; null: none. The stage of F holds the "
        "output, the stage of the next F its copy as input, both from their F until the gradient is taken.",
    )
    receive_buffers: Annotated[int, Field(ge=0, strict=True)] | Literal["all"] | None = Field(
        None,
        description="Microbatches for which a stage keeps receive buffers through the whole step, a boundary each for "
        "what it receives; null: none.",
    )
    parameters: Amounts | None = Field(None, description="Memory of the parameters, by stage; null: not counted.")
    gradients: Amounts | None = Field(None, description="Memory of their gradients, by stage; null: not counted.")
    optimizer_state: Amounts | None = Field(
        None, description="Memory of the optimizer's state, by stage; null: not counted."
    )
    workspace: Amounts | None = Field(None, description="Memory that ops need while they run, by stage; null: none.")
    reserve: Amounts | None = Field(None, description="Memory lost to the allocator, by stage; null: none.")
    memory_unit: Literal["activation", "B", "KiB", "MiB", "GiB"] = Field(
        "activation",
        exclude_if=lambda value: value == "activation",
        description="What amounts of memory count: a word for pages and files, no meaning to the solver.",
    )
    recompute: tuple[Drop, ...] | None = Field(
        None,
        description="Whether F drops its activation at its end and R makes it again, by virtual stage; null: never.",
    )
    recompute_ticks: tuple[Ticks, ...] | None = Field(
        None, description="Time of R, by virtual stage; default that of F."
    )
    checkpoint: Amounts | None = Field(
        None, description="What stays of an activation from the end of F to the start of R, by virtual stage; null: 0."
    )
    offload: tuple[Drop, ...] | None = Field(
        None,
        description="Whether OUT takes an activation to the host and IN brings it back, by virtual stage; null: never.",
    )
    offload_ticks: tuple[Ticks, ...] | None = Field(None, description="Time of OUT, by virtual stage; needs offload.")
    reload_ticks: tuple[Ticks, ...] | None = Field(
        None, description="Time of IN, by virtual stage; default that of OUT."
    )
    offload_rest: Amounts | None = Field(
        None,
        description="What stays of an activation from the end of OUT to the start of IN, by virtual stage; null: 0.",
    )
    host_link: tuple[Annotated[int, Field(ge=0, strict=True)], ...] | None = Field(
        None,
        description="Link to the host, by stage: those of one number share it, one OUT or IN at a time; null: its own.",
    )


def fill_memory(data: MutableMapping[str, Any]) -> None:
    """Put in the defaults of raw fields that depend on others: R takes as long as F, IN as long as OUT."""
    if data.get("offload_ticks") is not None and data.get("reload_ticks") is None:
        data["reload_ticks"] = data["offload_ticks"]
    if data.get("recompute") is not None and data.get("recompute_ticks") is None and "forward_ticks" in data:
        data["recompute_ticks"] = data["forward_ticks"]


def check_memory(instance: Instance) -> None:
    """Refuse fields that say nothing, or too much, without each other.

    Raises:
        ValueError: What is left of a dropped activation is more than it, or is given where nothing is dropped.
    """
    _check_left(instance, "recompute", "checkpoint")
    _check_left(instance, "offload", "offload_rest")
    _check_offload(instance)
    if instance.recompute is None and instance.recompute_ticks is not None:
        raise ValueError("recompute_ticks is given but recompute is not; set recompute to always or choose")
    if instance.receive_buffers not in (None, 0) and instance.boundary is None:
        raise ValueError("receive_buffers is given but boundary is not; give the memory of what a stage receives")


def _check_offload(instance: Instance) -> None:
    if (instance.offload is None) != (instance.offload_ticks is None):
        raise ValueError("offload and offload_ticks go together; give both, or neither")
    if instance.offload is None and (instance.reload_ticks is not None or instance.host_link is not None):
        raise ValueError("reload_ticks or host_link is given but offload is not; give offload and offload_ticks too")
    for v, modes in enumerate(zip(instance.recompute or (), instance.offload or (), strict=False)):
        if Drop.NEVER not in modes and Drop.ALWAYS in modes:
            raise ValueError(
                f"virtual stage {v}: recompute is {modes[0].value} and offload is {modes[1].value}, but an activation "
                "is dropped in one way at most; set one of them to never, or both to choose"
            )


def _check_left(instance: Instance, mode: str, left: str) -> None:
    amounts, modes = getattr(instance, left), getattr(instance, mode)
    if amounts is not None and modes is None:
        raise ValueError(f"{left} is given but {mode} is not; set {mode} to always or choose, or leave {left} out")
    for virtual_stage, amount in enumerate(amounts or ()):
        whole = instance.activation[virtual_stage]
        if amount > whole:
            raise ValueError(
                f"{left}[{virtual_stage}] = {number(amount)} is above the activation {number(whole)} of that virtual "
                f"stage; give at most {number(whole)}"
            )
