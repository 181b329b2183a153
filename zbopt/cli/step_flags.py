"""The flags around a step's ops: transfers between stages, reduction, barrier, iterations, inputs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from zbopt.cli.options import flag_maker, whole
from zbopt.problem.instance import Communication, ReductionOccupies, TransferOccupies

_transfers, _around = flag_maker("Transfers between stages"), flag_maker("Around the step")

STEP_TIMES = {
    "node_comm": "node_comm_ticks",
    "loss": "loss_ticks",
    "reduction": "reduction_ticks",
    "barrier_time": "barrier_ticks",
    "input_ready": "input_ready_ticks",
}
"""The field of each flag that is a time."""
SINGLE_TIMES = ("node_comm", "loss", "barrier_time")
"""Those that take one time."""
STEP_VALUES = (
    *("communication", "transfer_occupies", "boundary", "bandwidth", "stages_per_node", "node_bandwidth"),
    *("reduction_occupies", "iterations"),
)
"""Flags that are the field of their name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlags:
    """What a transfer takes and occupies, and what comes around the microbatches. ``None``: not given."""

    communication: Annotated[
        Communication | None,
        _transfers(
            "--communication",
            "What a transfer is: a lag, an event on its link, or one that holds the compute of both stages too. "
            "Sets communication.",
            "latency",
        ),
    ] = None
    transfer_occupies: Annotated[
        TransferOccupies | None,
        _transfers(
            "--transfer-occupies",
            "What one transfer at a time may use, with link and blocking: its directed link, or the port of both "
            "stages. Sets transfer_occupies.",
            "link",
        ),
    ] = None
    boundary: Annotated[
        str | None,
        _transfers(
            "--boundary",
            "Memory of what a stage hands to the next one, which a transfer carries and both stages hold. Sets "
            "boundary.",
            metavar="AMOUNT[,...]",
        ),
    ] = None
    bandwidth: Annotated[
        str | None,
        _transfers(
            "--bandwidth",
            "Memory units a tick between two stages: a transfer takes --comm + boundary / bandwidth. Sets bandwidth.",
            metavar="AMOUNT",
        ),
    ] = None
    stages_per_node: Annotated[
        int | None,
        _transfers(
            "--stages-per-node",
            "Stages of a node, inside which other times hold. Sets stages_per_node.",
            False,
            "N",
            whole,
        ),
    ] = None
    node_comm: Annotated[
        str | None,
        _transfers("--node-comm", "Latency between stages of one node. Sets node_comm_ticks.", metavar="TIME"),
    ] = None
    node_bandwidth: Annotated[
        str | None,
        _transfers("--node-bandwidth", "Memory units a tick inside a node. Sets node_bandwidth.", metavar="AMOUNT"),
    ] = None
    reduction: Annotated[
        str | None,
        _around(
            "--reduction",
            "Time of G, the reduction of a stage's gradients over data parallel replicas. Sets reduction_ticks.",
            metavar="TIME[,...]",
        ),
    ] = None
    reduction_occupies: Annotated[
        ReductionOccupies | None,
        _around(
            "--reduction-occupies",
            "What one reduction at a time may use: a link of its stage or node, or the stage's port. Sets "
            "reduction_occupies.",
            "stage",
        ),
    ] = None
    barrier_time: Annotated[
        str | None,
        _around(
            "--barrier-time", "Time that joining all stages takes at a global barrier. Sets barrier_ticks.", "0", "TIME"
        ),
    ] = None
    loss: Annotated[
        str | None, _around("--loss", "Time of the loss, after the last stage's F. Sets loss_ticks.", "0", "TIME")
    ] = None
    iterations: Annotated[
        int | None,
        _around("--iterations", "Steps one after another, with a barrier. Sets iterations.", "1", "N", whole),
    ] = None
    input_ready: Annotated[
        str | None,
        _around(
            "--input-ready",
            "When each microbatch's input is ready on the first stage, the first at 0 (0,0,2,4). Sets "
            "input_ready_ticks.",
            metavar="TIME,...",
        ),
    ] = None


def step_fields(flags: StepFlags) -> dict[str, object]:
    """The instance fields that the flags set, times left out."""
    fields: dict[str, object] = {}
    for name in STEP_VALUES:
        value = getattr(flags, name)
        if value is not None:
            fields[name] = value.value if isinstance(value, StrEnum) else value
    if flags.boundary is not None:
        parts = [part.strip() for part in flags.boundary.split(",")]
        fields["boundary"] = parts[0] if len(parts) == 1 else parts
    return fields
