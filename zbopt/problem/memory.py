"""The fields of an instance that say what else takes memory, and what may become of activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from zbopt.problem.activations import ActivationFields
from zbopt.problem.facts import Axis, CutRule, Facts, Flag, Panel, Unit, is_nothing
from zbopt.problem.kinds import Drop
from zbopt.problem.numbers import Amounts, Ticks, number


def _is_zero(_: Any, count: object) -> bool:
    return count == 0


def _never_drops(_: Any, modes: tuple[Drop, ...]) -> bool:
    return all(mode is Drop.NEVER for mode in modes)


def _is_own_link(_: Any, host_link: tuple[int, ...]) -> bool:
    return host_link == tuple(range(len(host_link)))


def _forward_where_recomputed(given: Mapping[str, Any]) -> Any:
    return None if given.get("recompute") is None else given.get("forward_ticks")


def _as_out(given: Mapping[str, Any]) -> Any:
    return given.get("offload_ticks")


class MemoryFields(ActivationFields):
    """Declare what stages hold beside activations, and how activations may be dropped and brought back."""

    gradient_state: Annotated[
        Amounts | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.MEMORY,
            cut=CutRule.DIVIDED,
            is_absent=is_nothing,
            flag=Flag(
                "--gradient-state",
                "Memory that B adds and that is held until the end of W.",
                Panel.MEMORY,
                default="0",
            ),
        ),
    ] = Field(None, description="Memory that B adds and that is held until the end of W, by virtual stage; null: none.")
    boundary: Annotated[
        Amounts | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.MEMORY,
            cut=CutRule.KEPT,
            is_absent=is_nothing,
            flag=Flag(
                "--boundary",
                "Memory of what a stage hands to the next one, which a transfer carries and both stages hold.",
                Panel.TRANSFERS,
            ),
        ),
    ] = Field(
        None,
        description="Memory of F's output, and of its gradient, by virtual stage; null: none. The stage of F holds the "
        "output, the stage of the next F its copy as input, both from their F until the gradient is taken.",
    )
    receive_buffers: Annotated[
        Annotated[int, Field(ge=0, strict=True)] | Literal["all"] | None,
        Facts(
            Axis.NONE,
            Unit.NONE,
            cut=CutRule.KEPT,
            is_absent=_is_zero,
            flag=Flag(
                "--receive-buffers",
                "Microbatches for which a stage keeps receive buffers, a --boundary each, or all.",
                Panel.MEMORY,
                default="0",
                metavar="N|all",
            ),
        ),
    ] = Field(
        None,
        description="Microbatches for which a stage keeps receive buffers through the whole step, a boundary each for "
        "what it receives; null: none.",
    )
    parameters: Annotated[
        Amounts | None,
        Facts(
            Axis.STAGE,
            Unit.MEMORY,
            cut=CutRule.GATHERED,
            is_absent=is_nothing,
            flag=Flag("--parameters", "Memory of the parameters, by stage.", Panel.MEMORY, default="not counted"),
        ),
    ] = Field(None, description="Memory of the parameters, by stage; null: not counted.")
    gradients: Annotated[
        Amounts | None,
        Facts(
            Axis.STAGE,
            Unit.MEMORY,
            cut=CutRule.GATHERED,
            is_absent=is_nothing,
            flag=Flag("--gradients", "Memory of their gradients, by stage.", Panel.MEMORY, default="not counted"),
        ),
    ] = Field(None, description="Memory of their gradients, by stage; null: not counted.")
    optimizer_state: Annotated[
        Amounts | None,
        Facts(
            Axis.STAGE,
            Unit.MEMORY,
            cut=CutRule.GATHERED,
            is_absent=is_nothing,
            flag=Flag(
                "--optimizer-state", "Memory of the optimizer's state, by stage.", Panel.MEMORY, default="not counted"
            ),
        ),
    ] = Field(None, description="Memory of the optimizer's state, by stage; null: not counted.")
    workspace: Annotated[
        Amounts | None,
        Facts(
            Axis.STAGE,
            Unit.MEMORY,
            cut=CutRule.KEPT,
            is_absent=is_nothing,
            flag=Flag("--workspace", "Memory that ops need while they run, by stage.", Panel.MEMORY, default="0"),
        ),
    ] = Field(None, description="Memory that ops need while they run, by stage; null: none.")
    reserve: Annotated[
        Amounts | None,
        Facts(
            Axis.STAGE,
            Unit.MEMORY,
            cut=CutRule.KEPT,
            is_absent=is_nothing,
            flag=Flag("--reserve", "Memory lost to the allocator, by stage.", Panel.MEMORY, default="0"),
        ),
    ] = Field(None, description="Memory lost to the allocator, by stage; null: none.")
    memory_unit: Annotated[
        Literal["activation", "B", "KiB", "MiB", "GiB"],
        Facts(
            Axis.NONE,
            Unit.NONE,
            is_label=True,
            flag=Flag(
                "--memory-unit",
                "What amounts of memory count, for pages and files: activation, B, KiB, MiB or GiB.",
                Panel.MEMORY,
                default="activation",
                metavar="UNIT",
            ),
        ),
    ] = Field(
        "activation",
        exclude_if=lambda value: value == "activation",
        description="What amounts of memory count: a word for pages and files, no meaning to the solver.",
    )
    recompute: Annotated[
        tuple[Drop, ...] | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.NONE,
            cut=CutRule.KEPT,
            is_absent=_never_drops,
            flag=Flag(
                "--recompute",
                "Whether F drops its activation and R makes it again, by virtual stage: never, always or choose for "
                "each microbatch.",
                Panel.DROPPING,
                default="never",
                metavar="MODE[,...]",
                beside_file=True,
            ),
        ),
    ] = Field(
        None,
        description="Whether F drops its activation at its end and R makes it again, by virtual stage; null: never.",
    )
    recompute_ticks: Annotated[
        tuple[Ticks, ...] | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.TICKS,
            cut=CutRule.DIVIDED,
            scales=True,
            filled=_forward_where_recomputed,
            flag=Flag("--recompute-time", "Time of R.", Panel.DROPPING, default="that of F"),
        ),
    ] = Field(None, description="Time of R, by virtual stage; default that of F.")
    checkpoint: Annotated[
        Amounts | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.MEMORY,
            cut=CutRule.DIVIDED,
            is_absent=is_nothing,
            flag=Flag(
                "--checkpoint",
                "What stays of an activation from the end of F to the start of R.",
                Panel.DROPPING,
                default="0",
            ),
        ),
    ] = Field(
        None, description="What stays of an activation from the end of F to the start of R, by virtual stage; null: 0."
    )
    offload: Annotated[
        tuple[Drop, ...] | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.NONE,
            cut=CutRule.KEPT,
            is_absent=_never_drops,
            flag=Flag(
                "--offload",
                "Whether OUT takes an activation to the host and IN brings it back: never, always or choose.",
                Panel.DROPPING,
                default="never",
                metavar="MODE[,...]",
                beside_file=True,
            ),
        ),
    ] = Field(
        None,
        description="Whether OUT takes an activation to the host and IN brings it back, by virtual stage; null: never.",
    )
    offload_ticks: Annotated[
        tuple[Ticks, ...] | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.TICKS,
            cut=CutRule.DIVIDED,
            scales=True,
            flag=Flag("--offload-time", "Time of OUT.", Panel.DROPPING),
        ),
    ] = Field(None, description="Time of OUT, by virtual stage; needs offload.")
    reload_ticks: Annotated[
        tuple[Ticks, ...] | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.TICKS,
            cut=CutRule.DIVIDED,
            scales=True,
            filled=_as_out,
            flag=Flag("--reload-time", "Time of IN.", Panel.DROPPING, default="that of OUT"),
        ),
    ] = Field(None, description="Time of IN, by virtual stage; default that of OUT.")
    offload_rest: Annotated[
        Amounts | None,
        Facts(
            Axis.VIRTUAL_STAGE,
            Unit.MEMORY,
            cut=CutRule.DIVIDED,
            is_absent=is_nothing,
            flag=Flag(
                "--offload-rest",
                "What stays of an activation from the end of OUT to the start of IN.",
                Panel.DROPPING,
                default="0",
            ),
        ),
    ] = Field(
        None,
        description="What stays of an activation from the end of OUT to the start of IN, by virtual stage; null: 0.",
    )
    host_link: Annotated[
        tuple[Annotated[int, Field(ge=0, strict=True)], ...] | None,
        Facts(
            Axis.STAGE,
            Unit.NONE,
            cut=CutRule.KEPT,
            is_absent=_is_own_link,
            flag=Flag(
                "--host-link",
                "Link to the host, by stage: stages of one number share it (0,0,1,1).",
                Panel.DROPPING,
                default="one each",
                metavar="N,...",
                is_list=True,
            ),
        ),
    ] = Field(
        None,
        description="Link to the host, by stage: those of one number share it, one OUT or IN at a time; null: its own.",
    )

    def check_memory(self) -> None:
        """Refuse fields that say nothing, or too much, without each other.

        Raises:
            ValueError: What is left of a dropped activation is more than it, or is given where nothing is dropped.
        """
        self._check_rest("recompute", "checkpoint")
        self._check_rest("offload", "offload_rest")
        self._check_offload()
        if self.recompute is None and self.recompute_ticks is not None:
            raise ValueError("recompute_ticks is given but recompute is not; set recompute to always or choose")
        if self.receive_buffers not in (None, 0) and self.boundary is None:
            raise ValueError("receive_buffers is given but boundary is not; give the memory of what a stage receives")

    def _check_offload(self) -> None:
        if (self.offload is None) != (self.offload_ticks is None):
            raise ValueError("offload and offload_ticks go together; give both, or neither")
        if self.offload is None and (self.reload_ticks is not None or self.host_link is not None):
            raise ValueError(
                "reload_ticks or host_link is given but offload is not; give offload and offload_ticks too"
            )
        for v, modes in enumerate(zip(self.recompute or (), self.offload or (), strict=False)):
            if Drop.NEVER not in modes and Drop.ALWAYS in modes:
                raise ValueError(
                    f"virtual stage {v}: recompute is {modes[0].value} and offload is {modes[1].value}, but an "
                    "activation is dropped in one way at most; set one of them to never, or both to choose"
                )

    def _check_rest(self, mode: str, rest: str) -> None:
        amounts, modes = getattr(self, rest), getattr(self, mode)
        if amounts is not None and modes is None:
            raise ValueError(f"{rest} is given but {mode} is not; set {mode} to always or choose, or leave {rest} out")
        for virtual_stage, amount in enumerate(amounts or ()):
            whole = self.activation[virtual_stage]
            if amount > whole:
                raise ValueError(
                    f"{rest}[{virtual_stage}] = {number(amount)} is above the activation {number(whole)} of that "
                    f"virtual stage; give at most {number(whole)}"
                )
