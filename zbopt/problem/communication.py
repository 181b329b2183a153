"""The fields of an instance that say what a transfer takes and occupies, and how long it is between two stages."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from zbopt.problem.kinds import COMPUTE, Communication, Kind, TransferOccupies
from zbopt.problem.numbers import MAX_AMOUNT, MAX_TICKS, Rational, Ticks, is_none

Bandwidth = Annotated[Rational, Field(gt=0, le=MAX_AMOUNT)]
Latency = Annotated[int, Field(ge=0, le=MAX_TICKS, strict=True)]


class Collective(BaseModel):
    """A tensor-parallel collective inside an op: it occupies the stage's port while the op runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = Field(description="The op that holds it: F, B, W or BW, on every virtual stage.")
    start: Latency = Field(description="Ticks from the start of the op.")
    ticks: Ticks = Field(description="Length.")


class CommunicationFields(BaseModel):
    """Transfers between stages. The latency alone is a lag; the other fields make it longer, or an event of its own."""

    model_config = ConfigDict(defer_build=True)  # nothing validates by it: the instance does, and it is costly to build

    communication: Communication = Field(
        Communication.LATENCY,
        exclude_if=lambda value: value is Communication.LATENCY,
        description="What a transfer is: 'latency', a lag; 'link', an event on its link; 'blocking', one that holds "
        "the compute of both stages too.",
    )
    transfer_occupies: TransferOccupies | None = Field(
        None,
        exclude_if=is_none,
        description="What each transfer of 'link' and 'blocking' occupies: 'link' (default) or 'port'.",
    )
    bandwidth: Bandwidth | None = Field(
        None,
        exclude_if=is_none,
        description="Memory units a tick between two stages: a transfer takes latency + boundary / bandwidth.",
    )
    stages_per_node: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        None,
        exclude_if=is_none,
        description="Stages of a node, counted from stage 0; the node's own fields hold inside it.",
    )
    node_comm_ticks: Latency | None = Field(None, exclude_if=is_none, description="Latency between stages of one node.")
    node_bandwidth: Bandwidth | None = Field(
        None, exclude_if=is_none, description="Memory units a tick between stages of one node."
    )
    comm_matrix: tuple[tuple[Latency, ...], ...] | None = Field(
        None, exclude_if=is_none, description="Latency from each stage (row) to each stage, instead of comm_ticks."
    )
    bandwidth_matrix: tuple[tuple[Bandwidth, ...], ...] | None = Field(
        None,
        exclude_if=is_none,
        description="Memory units a tick from each stage (row) to each stage, instead of bandwidth.",
    )
    collectives: tuple[Collective, ...] | None = Field(
        None,
        exclude_if=is_none,
        description="Tensor-parallel collectives inside the ops; they occupy the stage's port.",
    )

    @property
    def sends(self) -> bool:
        """Transfers are events."""
        return self.communication is not Communication.LATENCY

    def same_node(self, stage: int, other: int) -> bool:
        """Both stages are on one node; each stage is a node of its own where nothing is said."""
        size = self.stages_per_node or 1
        return stage // size == other // size

    def latency_ticks(self, comm_ticks: int, stage: int, other: int) -> int:
        """Latency between two stages, of which ``comm_ticks`` is the general one."""
        if self.comm_matrix is not None:
            return self.comm_matrix[stage][other]
        if self.node_comm_ticks is not None and self.same_node(stage, other):
            return self.node_comm_ticks
        return comm_ticks

    def bandwidth_between(self, stage: int, other: int) -> Fraction | None:
        """Memory units a tick between two stages; ``None``: size does not count."""
        if self.bandwidth_matrix is not None:
            return self.bandwidth_matrix[stage][other]
        if self.node_bandwidth is not None and self.same_node(stage, other):
            return self.node_bandwidth
        return self.bandwidth

    def transfer_ticks(self, comm_ticks: int, size: Fraction, stage: int, other: int) -> int:
        """Time of one transfer of ``size`` memory units between different stages."""
        bandwidth = self.bandwidth_between(stage, other)
        return self.latency_ticks(comm_ticks, stage, other) + (0 if bandwidth is None else ceil(size / bandwidth))

    def check_communication(self, stages: int, sized: bool) -> None:
        """Refuse fields that say nothing without another one.

        Args:
            stages: The instance's.
            sized: The instance says how large a boundary is.

        Raises:
            ValueError: One line that names the field and the way out.
        """
        self._check_matrices(stages)
        rates = ("bandwidth", "node_bandwidth", "bandwidth_matrix")
        given = [name for name in rates if getattr(self, name) is not None]
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
        for name in ("comm_matrix", "bandwidth_matrix"):
            rows = getattr(self, name)
            if rows is not None and (len(rows) != stages or any(len(row) != stages for row in rows)):
                raise ValueError(f"{name} is not {stages} rows of {stages} values; give one row and column a stage")
            if rows is not None and self.stages_per_node is not None and getattr(self, _INSIDE[name]) is not None:
                raise ValueError(f"{name} and {_INSIDE[name]} say the same twice; leave one out")

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
