"""Stage and replica of every rank, and the process groups among the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from zbopt.problem.schedule import Schedule


@dataclass(frozen=True)
class Groups:
    """Hold this process's place in a run. A group is ``None`` where it would have one member.

    Ranks count stages first: rank = replica * stages + stage. Where one process has all stages, ``stage_of`` is all
    zeros.

    Attributes:
        stage_of: Stage of each virtual stage.
        stage: Stage of this process.
        replica: Replica of the pipeline that this process belongs to.
        replicas: Number of replicas.
        pipeline: The processes of this replica; they exchange activations and gradients. It exists also where it has
            one member, because PyTorch's runtime needs a group.
        norms: The same processes, for the reduction of the global gradient norm.
        data: The processes of this stage in all replicas.
        tie: The two processes of this replica that hold a copy of the tied weight.
    """

    stage_of: tuple[int, ...]
    stage: int
    replica: int
    replicas: int
    pipeline: dist.ProcessGroup | None
    norms: dist.ProcessGroup | None
    data: dist.ProcessGroup | None
    tie: dist.ProcessGroup | None

    @property
    def own(self) -> tuple[int, ...]:
        """Return the virtual stages of this process."""
        return tuple(v for v, stage in enumerate(self.stage_of) if stage == self.stage)


def make_groups(schedule: Schedule, replicas: int, *, single_process: bool, timeout_s: float) -> Groups:
    """Make the process groups of one job; every rank must call this in the same order.

    Raises:
        ValueError: The number of processes is not stages times replicas.
    """
    instance = schedule.instance
    stages = 1 if single_process else instance.stages
    world = dist.get_world_size()
    if world != stages * replicas:
        raise ValueError(
            f"{world} processes for {stages} stages and {replicas} replicas; start {stages * replicas} processes"
        )
    stage_of = (0,) * instance.virtual_stages if single_process else instance.stage_of
    replica, stage = divmod(dist.get_rank(), stages)
    first_ranks = [r * stages for r in range(replicas)]
    pipelines = [range(first, first + stages) for first in first_ranks]
    same_stage = [[first + s for first in first_ranks] for s in range(stages)]
    ties = [sorted({first + stage_of[0], first + stage_of[-1]}) for first in first_ranks]
    own_group = partial(_own_group, timeout_s=timeout_s)
    return Groups(
        stage_of=tuple(stage_of),
        stage=stage,
        replica=replica,
        replicas=replicas,
        pipeline=own_group(pipelines, keep_single=True),
        norms=own_group(pipelines),
        data=own_group(same_stage),
        tie=own_group(ties),
    )


def _own_group(
    members: Sequence[Sequence[int]], timeout_s: float, *, keep_single: bool = False
) -> dist.ProcessGroup | None:
    """Create every group, as all ranks have to, and return the one that this rank belongs to."""
    own = None
    for ranks in members:
        if len(ranks) > 1 or keep_single:
            group = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s))
            if dist.get_rank() in ranks:
                own = group
    return own
