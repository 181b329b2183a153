"""The fields of an instance that say what a transfer takes and occupies, and how long it is between two stages."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from zbopt.problem.facts import Axis, CutRule, Facts, Flag, Panel, Unit, facts_by_field, fields_in
from zbopt.problem.kinds import COMPUTE, Communication, Kind, ReductionOccupies, TransferOccupies
from zbopt.problem.numbers import MAX_AMOUNT, MAX_TICKS, Rational, Ticks, is_none
from zbopt.problem.op_times import OpTimeFields

Bandwidth = Annotated[Rational, Field(gt=0, le=MAX_AMOUNT)]
Latency = Annotated[int, Field(ge=0, le=MAX_TICKS, strict=True)]


class Collective(BaseModel):
    """Represent a tensor-parallel collective inside an op: it occupies the stage's port while the op runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = Field(description="The op that holds it: F, B, W or BW, on every virtual stage.")
    start: Latency = Field(description="Ticks from the start of the op.")
    ticks: Ticks = Field(description="Length.")


def _is_own_link(_: Any, occupies: TransferOccupies) -> bool:
    return occupies is TransferOccupies.LINK


def _asks_for_no_node(instance: Any, _: int) -> bool:
    inside = (instance.node_comm_ticks, instance.node_bandwidth)
    return inside == (None, None) and instance.reduction_occupies is not ReductionOccupies.NODE


class CommunicationFields(OpTimeFields):
    """Declare what transfers take and occupy. Latency alone is a lag; other fields lengthen it, or make it an event."""

    communication: Annotated[
        Communication,
        Facts(
            Axis.NONE,
            Unit.NONE,
            cut=CutRule.KEPT,
            flag=Flag(
                "--communication",
                "What a transfer is: a lag, an event on its link, or one that holds the compute of both stages too.",
                Panel.TRANSFERS,
                default="latency",
                beside_file=True,
            ),
        ),
    ] = Field(
        Communication.LATENCY,
        exclude_if=lambda value: value is Communication.LATENCY,
        description="What a transfer is: 'latency', a lag; 'link', an event on its link; 'blocking', one that holds "
        "the compute of both stages too.",
    )
    transfer_occupies: Annotated[
        TransferOccupies | None,
        Facts(
            Axis.NONE,
            Unit.NONE,
            cut=CutRule.KEPT,
            is_absent=_is_own_link,
            flag=Flag(
                "--transfer-occupies",
                "What one transfer at a time may use, with link and blocking: its directed link, or the port of both "
                "stages.",
                Panel.TRANSFERS,
                default="link",
                beside_file=True,
            ),
        ),
    ] = Field(
        None,
        exclude_if=is_none,
        description="What each transfer of 'link' and 'blocking' occupies: 'link' (default) or 'port'.",
    )
    bandwidth: Annotated[
        Bandwidth | None,
        Facts(
            Axis.NONE,
            Unit.MEMORY_PER_TICK,
            cut=CutRule.KEPT,
            flag=Flag(
                "--bandwidth",
                "Memory units a tick between two stages: a transfer takes --comm + boundary / bandwidth.",
                Panel.TRANSFERS,
            ),
        ),
    ] = Field(
        None,
        exclude_if=is_none,
        description="Memory units a tick between two stages: a transfer takes latency + boundary / bandwidth.",
    )
    stages_per_node: Annotated[
        Annotated[int, Field(ge=1, strict=True)] | None,
        Facts(
            Axis.NONE,
            Unit.NONE,
            cut=CutRule.KEPT,
            is_absent=_asks_for_no_node,
            flag=Flag("--stages-per-node", "Stages of a node, inside which other times hold.", Panel.TRANSFERS),
        ),
    ] = Field(
        None,
        exclude_if=is_none,
        description="Stages of a node, counted from stage 0; the node's own fields hold inside it.",
    )
    node_comm_ticks: Annotated[
        Latency | None,
        Facts(
            Axis.NONE,
            Unit.TICKS,
            cut=CutRule.KEPT,
            flag=Flag("--node-comm", "Latency between stages of one node.", Panel.TRANSFERS),
        ),
    ] = Field(None, exclude_if=is_none, description="Latency between stages of one node.")
    node_bandwidth: Annotated[
        Bandwidth | None,
        Facts(
            Axis.NONE,
            Unit.MEMORY_PER_TICK,
            cut=CutRule.KEPT,
            flag=Flag("--node-bandwidth", "Memory units a tick inside a node.", Panel.TRANSFERS),
        ),
    ] = Field(None, exclude_if=is_none, description="Memory units a tick between stages of one node.")
    comm_matrix: Annotated[
        tuple[tuple[Latency, ...], ...] | None,
        Facts(Axis.STAGE_PAIR, Unit.TICKS, cut=CutRule.KEPT),
    ] = Field(
        None, exclude_if=is_none, description="Latency from each stage (row) to each stage, instead of comm_ticks."
    )
    bandwidth_matrix: Annotated[
        tuple[tuple[Bandwidth, ...], ...] | None, Facts(Axis.STAGE_PAIR, Unit.MEMORY_PER_TICK, cut=CutRule.KEPT)
    ] = Field(
        None,
        exclude_if=is_none,
        description="Memory units a tick from each stage (row) to each stage, instead of bandwidth.",
    )
    collectives: Annotated[tuple[Collective, ...] | None, Facts(Axis.NONE, Unit.TICKS)] = Field(
        None,
        exclude_if=is_none,
        description="Tensor-parallel collectives inside the ops; they occupy the stage's port.",
    )

    @property
    def sends(self) -> bool:
        """Return whether transfers are events."""
        return self.communication is not Communication.LATENCY

    def same_node(self, stage: int, other: int) -> bool:
        """Return whether two stages are on one node; without ``stages_per_node`` each stage is a node of its own."""
        size = self.stages_per_node or 1
        return stage // size == other // size

    @property
    def occupies_ports(self) -> bool:
        """Return whether transfers are events that occupy ports."""
        return self.sends and self.transfer_occupies is TransferOccupies.PORT

    def latency_ticks(self, stage: int, other: int) -> int:
        """Return the latency between two different stages."""
        if self.comm_matrix is not None:
            return self.comm_matrix[stage][other]
        if self.node_comm_ticks is not None and self.same_node(stage, other):
            return self.node_comm_ticks
        return self.comm_ticks

    def bandwidth_between(self, stage: int, other: int) -> Fraction | None:
        """Return the memory units a tick between two stages; ``None``: size does not count."""
        if self.bandwidth_matrix is not None:
            return self.bandwidth_matrix[stage][other]
        if self.node_bandwidth is not None and self.same_node(stage, other):
            return self.node_bandwidth
        return self.bandwidth

    def transfer_ticks(self, size: Fraction, stage: int, other: int) -> int:
        """Return the time of one transfer of ``size`` memory units between different stages."""
        bandwidth = self.bandwidth_between(stage, other)
        return self.latency_ticks(stage, other) + (0 if bandwidth is None else ceil(size / bandwidth))

    def check_communication(self, stages: int, sized: bool) -> None:
        """Refuse fields that say nothing without another one.

        Args:
            stages: Number of stages of the instance.
            sized: The instance says how large a boundary is.

        Raises:
            ValueError: One line that names the field and the way out.
        """
        self._check_matrices(stages)
        given = [name for name in fields_in(type(self), Unit.MEMORY_PER_TICK) if getattr(self, name) is not None]
        if given and not sized:
            raise ValueError(f"{given[0]} is given but boundary is not; give the size of what a stage hands on")
        inside = [name for name in ("node_comm_ticks", "node_bandwidth") if getattr(self, name) is not None]
        if inside and self.stages_per_node is None:
            raise ValueError(f"{inside[0]} is given but stages_per_node is not; say how many stages a node has")
        if self.transfer_occupies is not None and not self.sends:
            raise ValueError("transfer_occupies is given but communication is latency; set it to link or blocking")
        if self.collectives is not None:
            if self.transfer_occupies is not TransferOccupies.PORT:
                raise ValueError(
                    "collectives are given but transfers do not occupy ports; set communication to link or blocking, "
                    "and transfer_occupies to port"
                )
            self._check_collectives(self.collectives)

    def _check_matrices(self, stages: int) -> None:
        for name, facts in facts_by_field(type(self)):
            matrix = getattr(self, name) if facts.axis is Axis.STAGE_PAIR else None
            if matrix is None:
                continue
            if len(matrix) != stages or any(len(row) != stages for row in matrix):
                raise ValueError(f"{name} is not {stages} rows of {stages} values; give one row and column a stage")
            inside = _INSIDE.get(name)
            if inside is not None and self.stages_per_node is not None and getattr(self, inside) is not None:
                raise ValueError(f"{name} and {inside} say the same twice; leave one out")

    @staticmethod
    def _check_collectives(collectives: tuple[Collective, ...]) -> None:
        for i, collective in enumerate(collectives):
            if collective.kind not in COMPUTE - {Kind.O}:
                raise ValueError(f"collectives[{i}].kind = {collective.kind.value}: collectives are inside F, B, W, BW")
        by_kind = sorted((c.kind.value, c.start, c.ticks) for c in collectives)
        for (kind, start, ticks), (other, later, _) in pairwise(by_kind):
            if kind == other and later < start + ticks:
                raise ValueError(f"collectives of {kind} overlap at {later}; one begins after the other ends")


_INSIDE = {"comm_matrix": "node_comm_ticks", "bandwidth_matrix": "node_bandwidth"}
"""By matrix, the field of single nodes whose entries it has already."""
