"""Settings of a run: the network, the training around the step, and the job that every process reads."""

from __future__ import annotations

import re
from math import inf
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Split = Literal["deferred", "engine"]
"""Who splits a backward into B and W: zbopt's queue of deferred products, or PyTorch's runtime ("engine")."""
Lowering = Literal["zbopt", "engine"]
"""Who places sends and receives: zbopt, or PyTorch's runtime ("engine")."""
QUIET_DAMAGE = ("missing-w", "late-w", "no-reduction", "swapped-microbatch", "stale-buffer")
"""Kinds of damage that no error reports: only wrong numbers show them."""
_DAMAGE = re.compile(rf"{'|'.join(QUIET_DAMAGE)}|(killed|stopped)(:\d+:\d+)?")


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Network(_Spec):
    """Describe a small real network, or ``wait``: ops that compute nothing and last their planned time."""

    kind: Literal["mlp", "gpt", "wait"] = "mlp"
    layers: int | None = Field(None, ge=1, description="Number of blocks; null: one for each virtual stage.")
    width: int = Field(16, ge=1)
    heads: int = Field(2, ge=1, description="Attention heads (gpt).")
    vocabulary: int = Field(32, ge=2, description="Size of the vocabulary (gpt).")
    sequence: int = Field(8, ge=1, description="Tokens in a sample (gpt).")
    tied: bool = Field(True, description="The head shares the embedding's weight (gpt).")
    microbatch_size: int = Field(2, ge=1, description="Samples in a microbatch.")
    dtype: Literal["float64", "float32", "bfloat16"] = "float64"
    seed: int = Field(0, ge=0, lt=2**63)
    tick_s: float = Field(0.1, gt=0, lt=inf, description="Seconds that a planned tick lasts (wait).")
    link: Literal["free", "fifo"] = Field(
        "free",
        description="How transfers of `wait` share links: free of each other, or in order through one queue for each "
        "rank, as on a communicator with one stream.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "wait" and self.dtype != "float64":
            raise ValueError(f"dtype {self.dtype} cannot carry a time; use float64 for network wait")
        if self.kind == "gpt" and self.width % self.heads:
            raise ValueError(f"width {self.width} does not divide by {self.heads} heads; make it a multiple")
        return self

    @property
    def is_tied(self) -> bool:
        """Tell whether the network has a head that shares its weight with the embedding."""
        return self.kind == "gpt" and self.tied


class Training(_Spec):
    """Describe what happens around the runs of the schedule: accumulation, replicas, optimizer, loss scale."""

    steps: int = Field(1, ge=1)
    accumulation: int = Field(1, ge=1, description="Runs of the schedule for one optimizer step.")
    data_parallel: int = Field(1, ge=1, description="Replicas of the pipeline.")
    split: Split = Field(
        "deferred",
        description="How W is split off: products of Linear deferred, or the graph walk of PyTorch's runtime.",
    )
    lowering: Lowering = Field("zbopt", description="Who places sends and receives: zbopt, or PyTorch's runtime.")
    learning_rate: float = Field(1e-2, gt=0, lt=inf)
    clip_norm: float | None = Field(None, gt=0, lt=inf, description="Largest global gradient norm; null: no clipping.")
    clip_at: tuple[int, ...] = Field((), description="Steps in which clipping is on; empty: every step.")
    loss_scale: float = Field(1.0, gt=0, lt=inf)
    growth_interval: int = Field(1000, ge=1, description="Good steps after which the loss scale doubles.")
    overflow_at: tuple[int, ...] = Field((), description="Steps whose loss is made infinite.")

    def max_norm(self, step: int) -> float | None:
        """Return the largest global norm allowed in ``step``; ``None`` where there is no clipping."""
        return self.clip_norm if not self.clip_at or step in self.clip_at else None


class Job(_Spec):
    """Describe one job, which every process of a run takes part in."""

    task: Literal["replay", "prove", "profile"]
    schedule: str | None = Field(None, description="Path of the schedule file.")
    network: Network = Network()
    training: Training = Training()
    device: Literal["cpu", "cuda"] = "cpu"
    single_process: bool = False
    checksums: bool = False
    memory: bool = True
    repeats: int = Field(5, ge=1, description="Measurements of each op (profile).")
    virtual_stages: int | None = Field(
        None, ge=1, description="Number of virtual stages to cut the network into (profile)."
    )
    resume_at: int | None = Field(None, ge=1, description="Step before which everything is stopped and resumed.")
    checkpoint_dir: str | None = None
    checkpoint_every: int | None = Field(None, ge=1, description="Steps between checkpoints.")
    resume: bool = Field(False, description="Start from the last checkpoint of checkpoint_dir.")
    damage: str | None = Field(
        None,
        description=f"Damage done on purpose, for the proof to find: {', '.join(QUIET_DAMAGE)}, or killed or stopped "
        "with stage and step, as killed:2:1.",
    )

    @field_validator("damage")
    @classmethod
    def _check_damage(cls, damage: str | None) -> str | None:
        if damage is not None and not _DAMAGE.fullmatch(damage):
            raise ValueError(f"give {', '.join(QUIET_DAMAGE)}, or killed or stopped with stage and step (killed:2:1)")
        return damage


class Jobs(_Spec):
    """Hold what a launched process reads: the jobs to run one after the other, and the file for their results."""

    jobs: tuple[Job, ...]
    timeout_s: float = Field(60.0, gt=0, lt=inf, description="Longest wait for another process, in seconds.")
    rendezvous: str | None = Field(
        None, description="File through which local processes meet; null: where the environment says."
    )
    results: str = Field(description="Where rank 0 writes the results, as JSON.")
    activity: str | None = Field(None, description="Folder in which each rank writes which op it runs.")
