"""The flags of the commands, which each set a field of a record; torch is not needed to read them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError

from zbopt.cli.options import switch
from zbopt.problem.instance import first_error
from zbopt.replay.spec import QUIET_DAMAGE, Job, Network, Training

_Model = TypeVar("_Model", Network, Training, Job)


class NetworkFlag(StrEnum):
    """Values of ``--network``."""

    MLP = "mlp"
    GPT = "gpt"
    WAIT = "wait"


class DtypeFlag(StrEnum):
    """Values of ``--dtype``."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class DeviceFlag(StrEnum):
    """Values of ``--device``."""

    CPU = "cpu"
    CUDA = "cuda"


class WhoFlag(StrEnum):
    """Values of ``--lowering``."""

    ZBOPT = "zbopt"
    ENGINE = "engine"


class SplitFlag(StrEnum):
    """Values of ``--split``."""

    DEFERRED = "deferred"
    ENGINE = "engine"


class LinkFlag(StrEnum):
    """Values of ``--link``."""

    FREE = "free"
    FIFO = "fifo"


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"{text[:40]!r} is no list of steps; write it as 1,3") from None


def _option(name: str, text: str, panel: str, **more: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, **more)


_NET, _TRAIN, _RUN = "The network", "Around the step", "The run"
ScheduleArgument = Annotated[Path, typer.Argument(metavar="SCHEDULE", help="Schedule file.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFlags:
    """The network, by its fields."""

    network: Annotated[NetworkFlag, _option("--network", "mlp, gpt, or wait: ops that only wait.", _NET)] = (
        NetworkFlag.MLP
    )
    dtype: Annotated[DtypeFlag, _option("--dtype", "Of weights and activations.", _NET)] = DtypeFlag.FLOAT64
    layers: Annotated[int | None, _option("--layers", "Blocks in all; default one a virtual stage.", _NET)] = None
    width: Annotated[int, _option("--width", "Hidden width.", _NET)] = 16
    heads: Annotated[int, _option("--heads", "Attention heads (gpt).", _NET)] = 2
    vocabulary: Annotated[int, _option("--vocabulary", "Tokens (gpt).", _NET)] = 32
    sequence: Annotated[int, _option("--sequence", "Tokens a sample (gpt).", _NET)] = 8
    untied: Annotated[bool, switch("--untied", "The head has a weight of its own (gpt).", _NET)] = False
    microbatch_size: Annotated[int, _option("--microbatch-size", "Samples a microbatch.", _NET)] = 2
    init_seed: Annotated[int, _option("--init-seed", "Of weights and data.", _NET)] = 0
    tick_s: Annotated[float, _option("--tick-s", "Seconds that a planned tick lasts (wait).", _NET)] = 0.1
    link: Annotated[
        LinkFlag, _option("--link", "Transfers each on their own, or through one queue a rank (wait).", _NET)
    ] = LinkFlag.FREE

    def build(self) -> Network:
        """The network. Raises ``ValueError`` where a field is out of range."""
        return _checked(
            Network,
            kind=self.network.value,
            dtype=self.dtype.value,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            vocabulary=self.vocabulary,
            sequence=self.sequence,
            tied=not self.untied,
            microbatch_size=self.microbatch_size,
            seed=self.init_seed,
            tick_s=self.tick_s,
            link=self.link.value,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlags:
    """What happens around the step, by its fields."""

    steps: Annotated[
        int | None,
        _option("--steps", "Optimizer steps; default 3, of prove 5, of qualify 4.", _TRAIN, show_default=False),
    ] = None
    accumulation: Annotated[int, _option("--accumulation", "Runs of the schedule for one step.", _TRAIN)] = 1
    data_parallel: Annotated[int, _option("--data-parallel", "Replicas of the pipeline.", _TRAIN)] = 1
    split: Annotated[
        SplitFlag, _option("--split", "W as deferred products, or the engine's own graph walk.", _TRAIN)
    ] = SplitFlag.DEFERRED
    lowering: Annotated[WhoFlag, _option("--lowering", "Who places sends and receives.", _TRAIN)] = WhoFlag.ZBOPT
    learning_rate: Annotated[float, _option("--learning-rate", "Of AdamW.", _TRAIN)] = 1e-2
    clip_norm: Annotated[
        float | None, _option("--clip-norm", "Largest global gradient norm; default no clipping.", _TRAIN)
    ] = None
    clip_at: Annotated[
        Any, _option("--clip-at", "Steps that clip; default all.", _TRAIN, parser=_numbers, metavar="N,...")
    ] = ""
    loss_scale: Annotated[float, _option("--loss-scale", "Start of the loss scale.", _TRAIN)] = 1.0
    overflow_at: Annotated[
        Any, _option("--overflow-at", "Steps made to overflow; default none.", _TRAIN, parser=_numbers, metavar="N,...")
    ] = ""

    def build(self, steps: int) -> Training:
        """The training, ``steps`` long unless the flag says otherwise."""
        built = _checked(
            Training,
            steps=steps if self.steps is None else self.steps,
            accumulation=self.accumulation,
            data_parallel=self.data_parallel,
            split=self.split.value,
            lowering=self.lowering.value,
            learning_rate=self.learning_rate,
            clip_norm=self.clip_norm,
            clip_at=self.clip_at or (),
            loss_scale=self.loss_scale,
            overflow_at=self.overflow_at or (),
        )
        for name in ("clip_at", "overflow_at"):
            beyond = next((step for step in getattr(built, name) if not 0 <= step < built.steps), None)
            if beyond is not None:
                raise ValueError(f"{name} = {beyond}: there is no such step; steps are 0 to {built.steps - 1}")
        return built


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """Where and how it runs."""

    device: Annotated[DeviceFlag, _option("--device", "Where it runs.", _RUN)] = DeviceFlag.CPU
    single_process: Annotated[bool, switch("--single-process", "All stages in one process.", _RUN)] = False
    timeout: Annotated[float, _option("--timeout", "Longest wait for another process, in seconds.", _RUN)] = 60.0
    checkpoint_dir: Annotated[
        Path | None, _option("--checkpoint-dir", "Folder of checkpoints; default none, of prove a temporary one.", _RUN)
    ] = None
    damage: Annotated[
        str | None,
        _option(
            "--damage",
            f"Damage done on purpose, to be found: {', '.join(QUIET_DAMAGE)}, killed:STAGE:STEP or stopped:STAGE:STEP.",
            _RUN,
            metavar="NAME",
        ),
    ] = None

    def job(self, task: str, schedule: Path | None, network: Network, training: Training, **more: Any) -> Job:
        """The job of ``task``. Raises ``ValueError`` where a field is out of range."""
        if not 1 <= self.timeout < inf:  # with some milliseconds gloo crashes as it sets up
            raise ValueError(f"timeout = {self.timeout:g}: give at least 1 second")
        return _checked(
            Job,
            task=task,
            schedule=str(schedule) if schedule else None,
            network=network,
            training=training,
            device=self.device.value,
            single_process=self.single_process,
            checkpoint_dir=str(self.checkpoint_dir) if self.checkpoint_dir else None,
            damage=self.damage,
            **more,
        )


def _checked(model: type[_Model], **given: Any) -> _Model:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ValueError(first_error(error)) from None
