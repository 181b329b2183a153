"""All fields of an instance, and what follows from fields of several groups."""

from __future__ import annotations

from fractions import Fraction

from zbopt.problem.activations import ActivationFields
from zbopt.problem.communication import CommunicationFields
from zbopt.problem.goal import GoalFields
from zbopt.problem.kinds import Kind
from zbopt.problem.memory import MemoryFields
from zbopt.problem.op_times import OpTimeFields
from zbopt.problem.routes import OpTicks, RouteFields, own_times
from zbopt.problem.size import SizeFields
from zbopt.problem.update import UpdateFields


class InstanceFields(
    RouteFields, CommunicationFields, MemoryFields, UpdateFields, GoalFields, ActivationFields, OpTimeFields, SizeFields
):
    """Hold every field of a problem, and derive what ops there are and how long they take.

    Files hold the fields of the last base first: the order of the bases is that of files, backwards.
    """

    @property
    def is_simple(self) -> bool:
        """Return whether one iteration has lags as transfers and all inputs at once, so that long steps repeat."""
        return not self.sends and self.iterations == 1 and self.input_ready_ticks is None

    def op_ticks(self, kind: Kind, virtual_stage: int, microbatch: int) -> int | None:
        """Return the time of F, B, W, BW or R of a microbatch; ``None``: there is no such op."""
        return self.ticks_of(virtual_stage, microbatch).of(kind)

    def ticks_of(self, virtual_stage: int, microbatch: int) -> OpTicks:
        """Return the times of a microbatch's ops on a virtual stage; F with the loss on the last one of its route."""
        times = self if self.microbatch_times is None else own_times(self.microbatch_times).get(microbatch, self)
        v = virtual_stage
        return OpTicks(
            times.forward_ticks[v] + (self.loss_ticks if self.loss_ticks and self.next_of(v) is None else 0),
            None if times.backward_ticks is None else times.backward_ticks[v],
            None if times.weight_ticks is None else times.weight_ticks[v],
            None if times.fused_backward_ticks is None else times.fused_backward_ticks[v],
            None if times.recompute_ticks is None else times.recompute_ticks[v],
        )

    def lag_ticks(self, from_virtual_stage: int, to_virtual_stage: int) -> int:
        """Return the time of a transfer between neighbours on a route, a lag or an event; none on one stage."""
        stage, other = self.stage_of[from_virtual_stage], self.stage_of[to_virtual_stage]
        if stage == other:
            return 0
        size = Fraction(0) if self.boundary is None else self.boundary[min(from_virtual_stage, to_virtual_stage)]
        return self.transfer_ticks(size, stage, other)
