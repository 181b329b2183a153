"""The fields of an instance that say what is minimised, and what the optimizer steps wait for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from zbopt.problem.facts import ALL_REFERENCE_MODELS, Axis, CutRule, Facts, Flag, Panel, Unit
from zbopt.problem.kinds import Barrier, Objective
from zbopt.problem.numbers import MAX_TICKS


def _no_time_at_a_barrier(given: Mapping[str, Any]) -> int | None:
    return None if given.get("barrier", "none") == "none" else 0


class GoalFields(BaseModel):
    """Declare the objective, the barrier before the optimizer steps, and their time."""

    model_config = ConfigDict(defer_build=True)  # nothing validates by it: the instance does, and it is costly to build

    objective: Annotated[
        Objective,
        Facts(
            Axis.NONE,
            Unit.NONE,
            cut=CutRule.KEPT,
            stated_by=ALL_REFERENCE_MODELS,
            flag=Flag(
                "--objective",
                "What is minimised: last end minus first start over all stages, the largest one of any stage, or the "
                "time between starts of iterations (with --iterations).",
                Panel.PROBLEM,
                default="makespan",
                beside_file=True,
            ),
        ),
    ] = Objective.MAKESPAN
    barrier: Annotated[
        Barrier,
        Facts(
            Axis.NONE,
            Unit.NONE,
            cut=CutRule.KEPT,
            stated_by=ALL_REFERENCE_MODELS,
            flag=Flag(
                "--barrier",
                "What the optimizer step O of a stage waits for: it is not modelled, every W of all stages, or the W "
                "of its own stage.",
                Panel.PROBLEM,
                default="none",
                beside_file=True,
            ),
        ),
    ] = Barrier.NONE
    optimizer_ticks: Annotated[
        tuple[Annotated[int, Field(ge=0, le=MAX_TICKS, strict=True)], ...] | None,
        Facts(
            Axis.STAGE,
            Unit.TICKS,
            cut=CutRule.KEPT,
            scales=True,
            stated_by=ALL_REFERENCE_MODELS,
            filled=_no_time_at_a_barrier,
            flag=Flag("--optimizer", "Time of O, with a barrier.", Panel.PROBLEM, default="0", beside_file=True),
        ),
    ] = Field(None, description="Time of O, by stage; null without a barrier. 0: only the barrier itself.")

    def check_goal(self) -> None:
        """Refuse the time of an optimizer step that is not modelled.

        Raises:
            ValueError: There is a time, and no barrier.
        """
        if self.barrier is Barrier.NONE and self.optimizer_ticks is not None:
            raise ValueError(
                "optimizer_ticks is given but barrier is none; set barrier to global or post_validation, "
                "or leave optimizer_ticks out"
            )
