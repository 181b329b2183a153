"""[D3] The instance in the coarsest ticks that lose nothing: every time divided by their greatest common divisor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Self

from zbopt.instance import Instance, Objective

_TIMES = ("forward_ticks", "backward_ticks", "weight_ticks", "fused_backward_ticks", "optimizer_ticks")


@dataclass(frozen=True, slots=True)
class Scale:
    """``instance`` counts in units of ``ticks`` of the original. Every optimal value is a multiple of ``ticks``."""

    instance: Instance
    ticks: int

    @classmethod
    def of(cls, instance: Instance) -> Self:
        """The coarsest exact scale of ``instance``.

        Under ``max_stage_span`` none: the least span of p stages may be a multiple of only the p-th part.
        """
        ticks = gcd(instance.comm_ticks, *_times(instance))
        if ticks == 1 or instance.objective is Objective.MAX_STAGE_SPAN:
            return cls(instance, 1)
        smaller: dict[str, object] = {"comm_ticks": instance.comm_ticks // ticks}
        for name in _TIMES:
            values = getattr(instance, name)
            if values is not None:
                smaller[name] = tuple(None if t is None else t // ticks for t in values)
        return cls(instance.model_copy(update=smaller), ticks)


def _times(instance: Instance) -> Iterator[int]:
    for name in _TIMES:
        yield from (t for t in getattr(instance, name) or () if t)
