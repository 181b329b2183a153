"""The fields of an instance around its microbatches: input, loss, gradient reduction, barrier, iterations."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from zbopt.problem.facts import Axis, CutRule, Facts, Flag, Panel, Unit
from zbopt.problem.goal import GoalFields
from zbopt.problem.kinds import Barrier, Objective, ReductionOccupies
from zbopt.problem.numbers import MAX_TICKS, Ticks, is_none

_Whole = Annotated[int, Field(ge=0, le=MAX_TICKS, strict=True)]


def _is_zero(value: object) -> bool:
    return value == 0


def _is_own_link(_: Any, occupies: ReductionOccupies) -> bool:
    return occupies is ReductionOccupies.STAGE


class UpdateFields(GoalFields):
    """Declare what comes before a microbatch and after the last, and how often the step runs."""

    iterations: Annotated[
        Annotated[int, Field(ge=1, strict=True)],
        Facts(
            Axis.NONE,
            Unit.NONE,
            cut=CutRule.KEPT,
            flag=Flag(
                "--iterations",
                "Steps one after another, with a barrier.",
                Panel.AROUND,
                default="1",
                beside_file=True,
            ),
        ),
    ] = Field(1, exclude_if=lambda value: value == 1, description="Training steps one after another in one schedule.")
    input_ready_ticks: Annotated[
        tuple[_Whole, ...] | None,
        Facts(
            Axis.MICROBATCH,
            Unit.TICKS,
            cut=CutRule.KEPT,
            scales=True,
            flag=Flag(
                "--input-ready",
                "When each microbatch's input is ready on the first stage, the first at 0 (0,0,2,4).",
                Panel.AROUND,
                is_list=True,
            ),
        ),
    ] = Field(
        None,
        description="When the input of each microbatch is ready on the first stage, over all iterations; not falling, "
        "counted from the first, which is 0. The makespan then counts from there.",
    )
    loss_ticks: Annotated[
        _Whole,
        Facts(
            Axis.NONE,
            Unit.TICKS,
            cut=CutRule.KEPT,
            scales=True,
            flag=Flag("--loss", "Time of the loss, after the last stage's F.", Panel.AROUND, default="0"),
        ),
    ] = Field(0, exclude_if=_is_zero, description="Time of the loss; it makes F of the last virtual stage longer.")
    reduction_ticks: Annotated[
        tuple[Ticks, ...] | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.TICKS,
            cut=CutRule.DIVIDED,
            scales=True,
            flag=Flag(
                "--reduction",
                "Time of G, the reduction of a stage's gradients over data parallel replicas.",
                Panel.AROUND,
            ),
        ),
    ] = Field(None, exclude_if=is_none, description="Time of G, by virtual stage; null: gradients are not reduced.")
    reduction_occupies: Annotated[
        ReductionOccupies | None,
        Facts(
            Axis.NONE,
            Unit.NONE,
            cut=CutRule.KEPT,
            is_absent=_is_own_link,
            flag=Flag(
                "--reduction-occupies",
                "What one reduction at a time may use: a link of its stage or node, or the stage's port.",
                Panel.AROUND,
                default="stage",
            ),
        ),
    ] = Field(None, exclude_if=is_none, description="What each G occupies: 'stage' (default), 'node' or 'port'.")
    barrier_ticks: Annotated[
        _Whole,
        Facts(
            Axis.NONE,
            Unit.TICKS,
            cut=CutRule.KEPT,
            scales=True,
            flag=Flag(
                "--barrier-time",
                "Time that joining all stages takes at a global barrier.",
                Panel.AROUND,
                default="0",
            ),
        ),
    ] = Field(0, exclude_if=_is_zero, description="Time of the reduction that joins all stages at a global barrier.")

    def check_update(self, microbatches: int, ports: bool) -> None:
        """Refuse fields that say nothing without another one.

        Args:
            microbatches: Microbatches of one step of the instance.
            ports: Transfers occupy ports.

        Raises:
            ValueError: One line that names the field, the value and the way out.
        """
        if self.iterations > 1 and self.barrier is Barrier.NONE:
            raise ValueError(
                f"iterations = {self.iterations} but barrier is none: no optimizer step parts them; set barrier to "
                "global or post_validation"
            )
        if self.objective is Objective.PERIOD and self.iterations == 1:
            raise ValueError("objective is period but iterations is 1; give 2 or more")
        if self.barrier_ticks and self.barrier is not Barrier.GLOBAL:
            raise ValueError(f"barrier_ticks is given but barrier is {self.barrier.value}; set barrier to global")
        if self.reduction_occupies is not None and self.reduction_ticks is None:
            raise ValueError("reduction_occupies is given but reduction_ticks is not; give the time of G too")
        if self.reduction_occupies is ReductionOccupies.PORT and not ports:
            raise ValueError(
                "reduction_occupies is port but transfers do not occupy ports; set communication to link or blocking, "
                "and transfer_occupies to port"
            )
        if self.input_ready_ticks is not None:
            self._check_ready(self.input_ready_ticks, self.iterations * microbatches)

    @staticmethod
    def _check_ready(ready: tuple[int, ...], expected: int) -> None:
        if len(ready) != expected:
            raise ValueError(f"input_ready_ticks has {len(ready)} values; give {expected}, one a microbatch")
        if ready[0] != 0:
            raise ValueError(f"input_ready_ticks[0] = {ready[0]}: times count from the first input; set it to 0")
        for j, (before, after) in enumerate(pairwise(ready)):
            if after < before:
                raise ValueError(
                    f"input_ready_ticks[{j + 1}] = {after} is before input_ready_ticks[{j}] = {before}; inputs come in "
                    "the order of the microbatches"
                )
