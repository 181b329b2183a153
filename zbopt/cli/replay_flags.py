"""Flags of replay, prove, qualify and profile; each sets a field of a record. Reading them needs no torch."""

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
    """List the values of ``--network``."""

    MLP = "mlp"
    GPT = "gpt"
    WAIT = "wait"


class DtypeFlag(StrEnum):
    """List the values of ``--dtype``."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class DeviceFlag(StrEnum):
    """List the values of ``--device``."""

    CPU = "cpu"
    CUDA = "cuda"


class LoweringFlag(StrEnum):
    """List the values of ``--lowering``."""

    ZBOPT = "zbopt"
    ENGINE = "engine"


class SplitFlag(StrEnum):
    """List the values of ``--split``."""

    DEFERRED = "deferred"
    ENGINE = "engine"


class LinkFlag(StrEnum):
    """List the values of ``--link``."""

    FREE = "free"
    FIFO = "fifo"


def _step_numbers(text: str) -> tuple[int, ...]:
    """Read a list of step numbers; Typer reports the error for any other text."""
    try:
        return tuple(int(number) for number in text.split(",") if number.strip())
    except ValueError:
        raise typer.BadParameter(f"{text[:40]!r} is not a list of steps; write it as 1,3") from None


def _option(name: str, text: str, panel: str, **more: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, **more)


_NET, _TRAIN, _RUN = "The network", "Around the step", "The run"
ScheduleArgument = Annotated[Path, typer.Argument(metavar="SCHEDULE", help="Schedule file.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFlags:
    """Hold the flags of the network."""

    network: Annotated[
        NetworkFlag,
        _option("--network", "mlp, gpt, or wait: ops that compute nothing and last their planned time.", _NET),
    ] = NetworkFlag.MLP
    dtype: Annotated[DtypeFlag, _option("--dtype", "Number type of weights and activations.", _NET)] = DtypeFlag.FLOAT64
    layers: Annotated[
        int | None, _option("--layers", "Number of blocks; default: one for each virtual stage.", _NET)
    ] = None
    width: Annotated[int, _option("--width", "Hidden width.", _NET)] = 16
    heads: Annotated[int, _option("--heads", "Attention heads (gpt).", _NET)] = 2
    vocabulary: Annotated[int, _option("--vocabulary", "Size of the vocabulary (gpt).", _NET)] = 32
    sequence: Annotated[int, _option("--sequence", "Tokens in a sample (gpt).", _NET)] = 8
    untied: Annotated[
        bool, switch("--untied", "Give the head a weight of its own, not the embedding's (gpt).", _NET)
    ] = False
    microbatch_size: Annotated[int, _option("--microbatch-size", "Samples in a microbatch.", _NET)] = 2
    init_seed: Annotated[int, _option("--init-seed", "Seed of weights and data.", _NET)] = 0
    tick_s: Annotated[float, _option("--tick-s", "Seconds that a planned tick lasts (wait).", _NET)] = 0.1
    link: Annotated[
        LinkFlag, _option("--link", "Transfers run freely, or through one queue for each rank (wait).", _NET)
    ] = LinkFlag.FREE

    def build(self) -> Network:
        """Build the network. Raises ``ValueError`` where a field is out of range."""
        return _validated(
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
    """Hold the flags of what happens around the step."""

    steps: Annotated[
        int | None,
        _option(
            "--steps", "Optimizer steps; default: 3 in replay, 5 in prove, 4 in qualify.", _TRAIN, show_default=False
        ),
    ] = None
    accumulation: Annotated[int, _option("--accumulation", "Runs of the schedule for one optimizer step.", _TRAIN)] = 1
    data_parallel: Annotated[int, _option("--data-parallel", "Replicas of the pipeline.", _TRAIN)] = 1
    split: Annotated[
        SplitFlag, _option("--split", "How W is split off: deferred products, or PyTorch's runtime (engine).", _TRAIN)
    ] = SplitFlag.DEFERRED
    lowering: Annotated[
        LoweringFlag,
        _option("--lowering", "Who places sends and receives: zbopt, or PyTorch's runtime (engine).", _TRAIN),
    ] = LoweringFlag.ZBOPT
    learning_rate: Annotated[float, _option("--learning-rate", "Learning rate of AdamW.", _TRAIN)] = 1e-2
    clip_norm: Annotated[
        float | None, _option("--clip-norm", "Largest global gradient norm; default: no clipping.", _TRAIN)
    ] = None
    clip_at: Annotated[
        Any,
        _option(
            "--clip-at",
            "Steps in which gradients are clipped; default: all.",
            _TRAIN,
            parser=_step_numbers,
            metavar="N,...",
        ),
    ] = ""
    loss_scale: Annotated[float, _option("--loss-scale", "Initial loss scale.", _TRAIN)] = 1.0
    overflow_at: Annotated[
        Any,
        _option(
            "--overflow-at", "Steps made to overflow; default: none.", _TRAIN, parser=_step_numbers, metavar="N,..."
        ),
    ] = ""

    def build(self, steps: int) -> Training:
        """Build the training, ``steps`` long if no flag says otherwise. Raises ``ValueError`` for a wrong field."""
        built = _validated(
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
    """Hold the flags of where and how a job runs."""

    device: Annotated[DeviceFlag, _option("--device", "Device that computes.", _RUN)] = DeviceFlag.CPU
    single_process: Annotated[bool, switch("--single-process", "Run all stages in one process.", _RUN)] = False
    timeout: Annotated[float, _option("--timeout", "Longest wait for another process, in seconds.", _RUN)] = 60.0
    checkpoint_dir: Annotated[
        Path | None,
        _option("--checkpoint-dir", "Folder of checkpoints; default: none, in prove a temporary one.", _RUN),
    ] = None
    damage: Annotated[
        str | None,
        _option(
            "--damage",
            f"Damage done on purpose, for the proof to find: {', '.join(QUIET_DAMAGE)}, killed:STAGE:STEP or "
            "stopped:STAGE:STEP.",
            _RUN,
            metavar="NAME",
        ),
    ] = None

    def job(self, task: str, schedule: Path | None, network: Network, training: Training, **more: Any) -> Job:
        """Build the job of ``task``. Raises ``ValueError`` where a field is out of range."""
        if not 1 <= self.timeout < inf:  # with a timeout of some milliseconds gloo crashes as it sets up
            raise ValueError(f"timeout = {self.timeout:g}: give at least 1 second")
        return _validated(
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


def _validated(model: type[_Model], **given: Any) -> _Model:
    """Build a model, and turn its first fault into a sentence of one line."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ValueError(first_error(error)) from None
