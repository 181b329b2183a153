"""The fields of an instance that say how long its ops and transfers take."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from zbopt.problem.facts import ALL_REFERENCE_MODELS, Axis, CutRule, Facts, Flag, Panel, ReferenceModel, Unit
from zbopt.problem.numbers import MAX_TICKS, Ticks, is_none


def _is_never_overlapped(_: Any, overlapped_ticks: tuple[int | None, ...]) -> bool:
    return all(ticks is None for ticks in overlapped_ticks)


class OpTimeFields(BaseModel):
    """Declare the times of F, B, W and BW, of an overlapped F and BW, and of a transfer, in ticks."""

    model_config = ConfigDict(defer_build=True)  # nothing validates by it: the instance does, and it is costly to build

    forward_ticks: Annotated[
        tuple[Ticks, ...],
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.TICKS,
            cut=CutRule.DIVIDED,
            scales=True,
            stated_by=ALL_REFERENCE_MODELS,
            flag=Flag(
                "--forward",
                "Time of F of a virtual stage: whole ticks (3) or with a unit (18.522ms); one for all, or a comma list "
                "by virtual stage (3,3,4,4). With --placement auto: of a whole stage.",
                Panel.PROBLEM,
                default="1",
            ),
        ),
    ] = Field(description="Time of F, by virtual stage.")
    backward_ticks: Annotated[
        tuple[Ticks | None, ...] | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.TICKS,
            cut=CutRule.DIVIDED,
            scales=True,
            stated_by=ALL_REFERENCE_MODELS,
            flag=Flag(
                "--backward",
                "Time of B, the gradient of the input. 'none,1,1,1': the first stage has no B.",
                Panel.PROBLEM,
                default="1",
            ),
        ),
    ] = Field(None, description="Time of B, by virtual stage; null where the first one of a route has none.")
    weight_ticks: Annotated[
        tuple[Ticks, ...] | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.TICKS,
            cut=CutRule.DIVIDED,
            scales=True,
            stated_by=ALL_REFERENCE_MODELS,
            flag=Flag("--weight", "Time of W, the gradient of the weights.", Panel.PROBLEM, default="1"),
        ),
    ] = Field(None, description="Time of W, by virtual stage.")
    fused_backward_ticks: Annotated[
        tuple[Ticks | None, ...] | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.TICKS,
            cut=CutRule.DIVIDED,
            scales=True,
            stated_by=frozenset({ReferenceModel.MINIZINC}),
            flag=Flag(
                "--fused-backward",
                "Time of BW, B and W in one op. Alone: the backward is never split. Beside --backward and --weight: a "
                "schedule may fuse.",
                Panel.PROBLEM,
            ),
        ),
    ] = Field(
        None,
        description="Time of BW, by virtual stage. Alone: the backward is never split. Beside backward and weight: "
        "a schedule may fuse. null: a schedule must not fuse.",
    )
    overlapped_ticks: Annotated[
        tuple[Ticks | None, ...] | None,
        Facts(
            Axis.STAGE,
            Unit.TICKS,
            cut=CutRule.DIVIDED,
            scales=True,
            is_absent=_is_never_overlapped,
            flag=Flag(
                "--overlapped",
                "Time of an F and a BW of two microbatches as one op of a stage (DualPipe). Only handcrafted schedules "
                "have such ops.",
                Panel.PROBLEM,
            ),
        ),
    ] = Field(
        None,
        exclude_if=is_none,
        description="Time of an F and a BW of two microbatches that a stage runs as one op, by stage: both events have "
        "this interval. null: it runs them one at a time.",
    )
    comm_ticks: Annotated[
        int,
        Facts(
            Axis.NONE,
            Unit.TICKS,
            cut=CutRule.KEPT,
            scales=True,
            stated_by=ALL_REFERENCE_MODELS,
            flag=Flag("--comm", "Latency of a transfer between two stages (0.601ms).", Panel.PROBLEM, default="0"),
        ),
    ] = Field(0, ge=0, le=MAX_TICKS, strict=True, description="Latency of a transfer between different stages.")

    @property
    def may_split(self) -> bool:
        """Return whether a backward may run as B and W."""
        return self.backward_ticks is not None

    @property
    def may_fuse(self) -> bool:
        """Return whether a backward may run as BW."""
        return self.fused_backward_ticks is not None

    def has_b(self, virtual_stage: int) -> bool:
        """Return whether a backward of ``virtual_stage`` may run as B and W, and not as W alone."""
        return self.backward_ticks is not None and self.backward_ticks[virtual_stage] is not None

    def has_bw(self, virtual_stage: int) -> bool:
        """Return whether a backward of ``virtual_stage`` may run as BW."""
        return self.fused_backward_ticks is not None and self.fused_backward_ticks[virtual_stage] is not None

    def has_lone_w(self, virtual_stage: int) -> bool:
        """Return whether W of ``virtual_stage`` takes the gradient itself: a first virtual stage without B."""
        return self.backward_ticks is not None and self.backward_ticks[virtual_stage] is None

    def check_op_times(self) -> None:
        """Refuse times without a whole backward.

        Raises:
            ValueError: There are no times of a backward, or half of a pair.
        """
        if (self.backward_ticks is None) != (self.weight_ticks is None):
            raise ValueError("backward_ticks and weight_ticks go together; give both, or fused_backward_ticks alone")
        if self.backward_ticks is None and self.fused_backward_ticks is None:
            raise ValueError("no backward times; give backward_ticks and weight_ticks, or fused_backward_ticks")
