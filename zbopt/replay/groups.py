"""Which process is which: stage and replica of every rank, and the process groups among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from zbopt.problem.schedule import Schedule


@dataclass(frozen=True)
class Groups:
    """This process's place. A group is ``None`` where it would have one member.

    Ranks count stages first: rank = replica * stages + stage. In one process ``stage_of`` is all zeros.
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
        """Virtual stages of this process."""
        return tuple(v for v, stage in enumerate(self.stage_of) if stage == self.stage)


def join(schedule: Schedule, replicas: int, *, single_process: bool, timeout_s: float) -> Groups:
    """Make the groups of one job; every rank calls this in the same order.

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
    base = [r * stages for r in range(replicas)]
    pipelines = [range(b, b + stages) for b in base]
    datas = [[b + s for b in base] for s in range(stages)]
    ties = [sorted({b + stage_of[0], b + stage_of[-1]}) for b in base]
    own_group = partial(_own_group, timeout_s=timeout_s)
    return Groups(
        stage_of=tuple(stage_of),
        stage=stage,
        replica=replica,
        replicas=replicas,
        pipeline=own_group(pipelines, keep_single=True),
        norms=own_group(pipelines),
        data=own_group(datas),
        tie=own_group(ties),
    )


def _own_group(
    members: Sequence[Sequence[int]], timeout_s: float, *, keep_single: bool = False
) -> dist.ProcessGroup | None:
    """Create every group, as all ranks must; give back this rank's."""
    own = None
    for ranks in members:
        if len(ranks) > 1 or keep_single:
            group = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s))
            if dist.get_rank() in ranks:
                own = group
    return own
