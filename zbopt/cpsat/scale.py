"""[D3] The instance in the coarsest ticks that lose nothing: every time divided by their greatest common divisor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any, Self

from zbopt.problem.facts import Unit, facts_by_field, fields_in_use
from zbopt.problem.instance import Instance, MicrobatchTimes, Objective
from zbopt.problem.routes import TIMES


@dataclass(frozen=True, slots=True)
class Scale:
    """Hold ``instance`` in units of ``ticks`` of the original. Every optimal value is a multiple of ``ticks``."""

    instance: Instance
    ticks: int

    @classmethod
    def of(cls, instance: Instance) -> Self:
        """Return the coarsest exact scale of ``instance``.

        The scale is 1 under ``max_stage_span``: the least span of p stages may be a multiple of only the p-th part. It
        is also 1 where a field in use counts ticks, or an amount a tick, and does not declare that it scales.
        """
        timed = _timed_fields(instance)
        if instance.objective is not Objective.MAKESPAN or timed is None:
            return cls(instance, 1)
        ticks = gcd(*(t for name in timed for t in _times(getattr(instance, name))))
        if ticks == 1:
            return cls(instance, 1)
        return cls(
            instance.model_copy(update={name: _divided(getattr(instance, name), ticks) for name in timed}), ticks
        )


def _timed_fields(instance: Instance) -> list[str] | None:
    """Return the fields in use that count ticks; ``None``: one of them may not be divided."""
    in_use = fields_in_use(instance)
    timed = []
    for name, facts in facts_by_field(Instance):
        if name in in_use and facts.unit in (Unit.TICKS, Unit.MEMORY_PER_TICK):
            if not facts.scales:
                return None
            timed.append(name)
    return timed


def _divided(value: Any, ticks: int) -> Any:
    """Return a time, or whatever holds times, in ticks that are ``ticks`` times as long."""
    if isinstance(value, tuple):
        return tuple(_divided(entry, ticks) for entry in value)
    if isinstance(value, MicrobatchTimes):
        return value.model_copy(update={name: _divided(getattr(value, name), ticks) for name in TIMES})
    return None if value is None else value // ticks


def _times(value: Any) -> Iterator[int]:
    """Yield every time in a field's value."""
    if isinstance(value, tuple):
        for entry in value:
            yield from _times(entry)
    elif isinstance(value, MicrobatchTimes):
        for name in TIMES:
            yield from _times(getattr(value, name))
    elif value is not None:
        yield value
