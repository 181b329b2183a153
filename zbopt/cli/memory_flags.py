"""The flags of what stages hold, and of what may become of activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from zbopt.cli.options import flag_maker, whole
from zbopt.cli.step_flags import StepFlags
from zbopt.costs.runtimes import Runtime

_memory, _dropping = flag_maker("Memory"), flag_maker("Recompute and offload")

MEMORY_TIMES = {"recompute_time": "recompute_ticks", "offload_time": "offload_ticks", "reload_time": "reload_ticks"}
"""The field of each flag that is a time."""
_LISTS = (
    *("activation", "gradient_state", "parameters", "gradients", "optimizer_state", "workspace", "reserve"),
    *("recompute", "checkpoint", "offload", "offload_rest"),
)
"""Flags that are the field of their name, one value for all or a comma list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFlags(StepFlags):
    """What takes memory besides activations, and how these are dropped. ``None``: not given."""

    activation: Annotated[
        str | None,
        _memory(
            "--activation",
            "Memory of one live activation, by virtual stage; with --placement auto of a whole stage. Sets activation.",
            "one a stage, shared by its virtual stages",
            "AMOUNT[,...]",
        ),
    ] = None
    gradient_state: Annotated[
        str | None,
        _memory(
            "--gradient-state",
            "Memory that B adds and that is held until the end of W. Sets gradient_state.",
            "0",
            "AMOUNT[,...]",
        ),
    ] = None
    receive_buffers: Annotated[
        str | None,
        _memory(
            "--receive-buffers",
            "Microbatches for which a stage keeps receive buffers, a --boundary each, or all. Sets receive_buffers.",
            "0",
            "N|all",
        ),
    ] = None
    parameters: Annotated[
        str | None,
        _memory(
            "--parameters",
            "Memory of the parameters, by stage. Sets parameters.",
            "not counted",
            "AMOUNT[,...]",
        ),
    ] = None
    gradients: Annotated[
        str | None,
        _memory(
            "--gradients",
            "Memory of their gradients, by stage. Sets gradients.",
            "not counted",
            "AMOUNT[,...]",
        ),
    ] = None
    optimizer_state: Annotated[
        str | None,
        _memory(
            "--optimizer-state",
            "Memory of the optimizer's state, by stage. Sets optimizer_state.",
            "not counted",
            "AMOUNT[,...]",
        ),
    ] = None
    workspace: Annotated[
        str | None,
        _memory(
            "--workspace",
            "Memory that ops need while they run, by stage. Sets workspace.",
            "0",
            "AMOUNT[,...]",
        ),
    ] = None
    reserve: Annotated[
        str | None,
        _memory(
            "--reserve",
            "Memory lost to the allocator, by stage. Sets reserve.",
            "0",
            "AMOUNT[,...]",
        ),
    ] = None
    memory_unit: Annotated[
        str | None,
        _memory(
            "--memory-unit",
            "What amounts of memory count, for pages and files: activation, B, KiB, MiB or GiB. Sets memory_unit.",
            "activation",
            "UNIT",
        ),
    ] = None
    recompute: Annotated[
        str | None,
        _dropping(
            "--recompute",
            "Whether F drops its activation and R makes it again, by virtual stage: never, always or choose for each "
            "microbatch. Sets recompute.",
            "never",
            "MODE[,...]",
        ),
    ] = None
    recompute_time: Annotated[
        str | None,
        _dropping(
            "--recompute-time",
            "Time of R. Sets recompute_ticks.",
            "that of F",
            "TIME[,...]",
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        _dropping(
            "--checkpoint",
            "What stays of an activation from the end of F to the start of R. Sets checkpoint.",
            "0",
            "AMOUNT[,...]",
        ),
    ] = None
    offload: Annotated[
        str | None,
        _dropping(
            "--offload",
            "Whether OUT takes an activation to the host and IN brings it back: never, always or choose. Sets offload.",
            "never",
            "MODE[,...]",
        ),
    ] = None
    offload_time: Annotated[
        str | None,
        _dropping(
            "--offload-time",
            "Time of OUT. Sets offload_ticks.",
            False,
            "TIME[,...]",
        ),
    ] = None
    reload_time: Annotated[
        str | None,
        _dropping(
            "--reload-time",
            "Time of IN. Sets reload_ticks.",
            "that of OUT",
            "TIME[,...]",
        ),
    ] = None
    offload_rest: Annotated[
        str | None,
        _dropping(
            "--offload-rest",
            "What stays of an activation from the end of OUT to the start of IN. Sets offload_rest.",
            "0",
            "AMOUNT[,...]",
        ),
    ] = None
    host_link: Annotated[
        str | None,
        _dropping(
            "--host-link",
            "Link to the host, by stage: stages of one number share it (0,0,1,1). Sets host_link.",
            "one each",
            "N,...",
        ),
    ] = None
    runtime: Annotated[
        Runtime | None,
        _memory(
            "--runtime",
            "Whose split of the backward is modelled: torch (PyTorch's own: no B on the first stage, nothing freed "
            "before W) or deferred-weight. Sets weight_share, receive_buffers, and for torch backward_ticks, "
            "weight_ticks and gradient_state.",
        ),
    ] = None


def memory_fields(flags: MemoryFlags) -> dict[str, object]:
    """The instance fields that the flags set, times left out."""
    fields: dict[str, object] = {}
    for name in _LISTS:
        text = getattr(flags, name)
        if text is not None:
            parts = [part.strip() for part in text.split(",")]
            fields[name] = parts[0] if len(parts) == 1 else parts
    if flags.memory_unit is not None:
        fields["memory_unit"] = flags.memory_unit
    if flags.receive_buffers is not None:
        fields["receive_buffers"] = (
            "all" if flags.receive_buffers == "all" else _whole("--receive-buffers", flags.receive_buffers)
        )
    if flags.host_link is not None:
        fields["host_link"] = [_whole("--host-link", part) for part in flags.host_link.split(",")]
    return fields


def _whole(flag: str, text: str) -> int:
    """A whole number inside the text of ``flag``.

    Raises:
        ValueError: It is none.
    """
    try:
        return whole(text)
    except typer.BadParameter as error:
        raise ValueError(f"{flag}: {error.message}") from None
