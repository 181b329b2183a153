"""The fields of an instance that say how much memory a stage has, and what one live activation takes of it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from zbopt.problem.facts import ALL_REFERENCE_MODELS, Axis, CutRule, Facts, Flag, Panel, Unit
from zbopt.problem.numbers import Amount
from zbopt.problem.routes import default_shares


def _shares(given: Mapping[str, Any]) -> tuple[Fraction, ...]:
    return default_shares(given["stage_of"], given.get("routes"))


def _are_shares(instance: Any, activation: tuple[Fraction, ...]) -> bool:
    return activation == default_shares(instance.stage_of, instance.routes)


def _is_all_held(_: Any, weight_share: tuple[Fraction, ...]) -> bool:
    return all(share == 1 for share in weight_share)


class ActivationFields(BaseModel):
    """Declare the cap of a stage, and what a microbatch holds there until its B and its W."""

    model_config = ConfigDict(defer_build=True)  # nothing validates by it: the instance does, and it is costly to build

    memory_cap: Annotated[
        tuple[Amount, ...] | None,
        Facts(
            Axis.STAGE,
            Unit.MEMORY,
            cut=CutRule.KEPT,
            stated_by=ALL_REFERENCE_MODELS,
            flag=Flag(
                "--mem-limit",
                "Most live activations of a stage: 6, 4.5, or by stage 8,6,4,4. An activation of a virtual stage "
                "counts as its share of its stage.",
                Panel.PROBLEM,
                default="no limit",
                beside_file=True,
            ),
        ),
    ] = Field(None, description="Most live memory, by stage; null: no limit.")
    activation: Annotated[
        tuple[Amount, ...],
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.MEMORY,
            cut=CutRule.DIVIDED,
            stated_by=ALL_REFERENCE_MODELS,
            is_absent=_are_shares,
            filled=_shares,
            flag=Flag(
                "--activation",
                "Memory of one live activation, by virtual stage; with --placement auto of a whole stage.",
                Panel.MEMORY,
                default="one a stage, shared by its virtual stages",
            ),
        ),
    ] = Field(description="Memory of one live activation, by virtual stage.")
    weight_share: Annotated[
        tuple[Annotated[Amount, Field(le=1)], ...],
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.SHARE,
            cut=CutRule.KEPT,
            stated_by=ALL_REFERENCE_MODELS,
            is_absent=_is_all_held,
            filled=lambda _: 1,
            flag=Flag(
                "--weight-share",
                "Share of an activation that is held from the end of B until the end of W, 0 to 1 (0.5, 48/131).",
                Panel.PROBLEM,
                default="1",
            ),
        ),
    ] = Field(
        description="Share of the activation that is held until the end of W, by virtual stage; the rest goes at "
        "the end of B."
    )
