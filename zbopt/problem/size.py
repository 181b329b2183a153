"""The fields of an instance that say how large the pipeline is, where its virtual stages are, and what a tick is."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from zbopt.problem.facts import ALL_REFERENCE_MODELS, Axis, CutRule, Facts, Flag, Panel, Unit
from zbopt.problem.numbers import MAX_MICROBATCHES, MAX_STAGES, Amount


def _is_linear(instance: Any, stage_of: tuple[int, ...]) -> bool:
    return stage_of == tuple(range(instance.stages))


class SizeFields(BaseModel):
    """Declare the schema, the name, the size and the placement of a problem, and the length of a tick."""

    model_config = ConfigDict(defer_build=True)  # nothing validates by it: the instance does, and it is costly to build

    schema_version: Annotated[Literal["zbopt.instance/1"], Facts(Axis.NONE, Unit.NONE)] = Field(
        "zbopt.instance/1", alias="schema"
    )
    name: Annotated[str | None, Facts(Axis.NONE, Unit.NONE, is_label=True)] = Field(
        None, description="Where the problem comes from; no meaning to the solver."
    )
    stages: Annotated[
        int,
        Facts(
            Axis.NONE,
            Unit.NONE,
            cut=CutRule.KEPT,
            stated_by=ALL_REFERENCE_MODELS,
            flag=Flag("--stages", "Devices of the pipeline (p).", Panel.PROBLEM),
        ),
    ] = Field(ge=1, le=MAX_STAGES, strict=True, description="Devices of the pipeline (p).")
    microbatches: Annotated[
        int,
        Facts(
            Axis.NONE,
            Unit.NONE,
            cut=CutRule.KEPT,
            stated_by=ALL_REFERENCE_MODELS,
            flag=Flag("--micro", "Microbatches of the step (m).", Panel.PROBLEM),
        ),
    ] = Field(ge=1, le=MAX_MICROBATCHES, strict=True, description="Microbatches of the step (m).")
    stage_of: Annotated[
        tuple[Annotated[int, Field(strict=True)], ...],
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.NONE,
            one_for_all=False,
            stated_by=ALL_REFERENCE_MODELS,
            is_absent=_is_linear,
            filled=lambda given: tuple(range(given["stages"])),
        ),
    ] = Field(description="Stage of each virtual stage, in forward order; default linear.")
    tick: Annotated[str, Facts(Axis.NONE, Unit.NONE, is_label=True)] = Field(
        "unit",
        pattern=r"^(unit|[1-9]\d*(s|ms|us|ns))$",
        description="What one tick is: 'unit', or a duration such as '1us'.",
    )
    rounding_ticks: Annotated[Amount, Facts(Axis.NONE, Unit.TICKS, is_label=True)] = Field(
        Fraction(0), lt=1, description="Most that rounding up to ticks added to any given time, in ticks."
    )

    @property
    def virtual_stages(self) -> int:
        """Return the number of virtual stages."""
        return len(self.stage_of)
