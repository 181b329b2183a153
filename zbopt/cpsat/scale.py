"""[D3] The instance in the coarsest ticks that lose nothing: every time divided by their greatest common divisor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Self

from zbopt.problem.instance import Instance, MicrobatchTimes, Objective
from zbopt.problem.routes import TIMES

_TIMES = (*TIMES, "offload_ticks", "reload_ticks", "optimizer_ticks", "reduction_ticks", "input_ready_ticks")
_SINGLE = ("comm_ticks", "loss_ticks", "barrier_ticks")


@dataclass(frozen=True, slots=True)
class Scale:
    """``instance`` counts in units of ``ticks`` of the original. Every optimal value is a multiple of ``ticks``."""

    instance: Instance
    ticks: int

    @classmethod
    def of(cls, instance: Instance) -> Self:
        """The coarsest exact scale of ``instance``.

        Under ``max_stage_span`` none: the least span of p stages may be a multiple of only the p-th part. None either
        where times follow from sizes.
        """
        if instance.objective is not Objective.MAKESPAN or _is_rated(instance):
            return cls(instance, 1)
        ticks = gcd(*_times(instance))
        if ticks == 1:
            return cls(instance, 1)
        smaller: dict[str, object] = {name: getattr(instance, name) // ticks for name in _SINGLE}
        for name in _TIMES:
            values = getattr(instance, name)
            if values is not None:
                smaller[name] = _divided(values, ticks)
        if instance.microbatch_times is not None:
            smaller["microbatch_times"] = tuple(_smaller(group, ticks) for group in instance.microbatch_times)
        return cls(instance.model_copy(update=smaller), ticks)


def _divided(values: tuple[int | None, ...], ticks: int) -> tuple[int | None, ...]:
    return tuple(None if t is None else t // ticks for t in values)


def _smaller(group: MicrobatchTimes, ticks: int) -> MicrobatchTimes:
    fields = {name: getattr(group, name) for name in TIMES}
    return group.model_copy(update={n: _divided(values, ticks) for n, values in fields.items() if values is not None})


def _is_rated(instance: Instance) -> bool:
    """Some times are not ticks of their own: a transfer's by size and bandwidth, a table of latencies, windows."""
    fields = (
        instance.bandwidth,
        instance.bandwidth_matrix,
        instance.node_bandwidth,
        instance.comm_matrix,
        instance.node_comm_ticks,
        instance.collectives,
    )
    return any(field is not None for field in fields)


def _times(instance: Instance) -> Iterator[int]:
    yield from (getattr(instance, name) for name in _SINGLE)
    for name in _TIMES:
        yield from (t for t in getattr(instance, name) or () if t)
    for group in instance.microbatch_times or ():
        yield from (t for name in TIMES for t in getattr(group, name) or () if t)
