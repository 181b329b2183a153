"""Lower bounds from closed arguments, one a file; models/bounds.md states and proves each.

Each is a function from an instance to a ``Bound``, or ``None`` where its argument says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zbopt.bounds.area import area
from zbopt.bounds.last_forward import last_forward
from zbopt.bounds.last_gradient import last_gradient
from zbopt.bounds.load import load
from zbopt.bounds.residency import residency
from zbopt.bounds.round_trip import round_trip
from zbopt.bounds.turns import turns
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance

ARGUMENTS: Mapping[str, Callable[[Instance], Bound | None]] = {
    "load": load,
    "round-trip": round_trip,
    "residency": residency,
    "turns": turns,
    "area": area,
    "last-gradient": last_gradient,
    "last-forward": last_forward,
}


def lower_bound(instance: Instance) -> Bound:
    """The best of all arguments; the first named among equals."""
    bounds = [bound for argument in ARGUMENTS.values() if (bound := argument(instance)) is not None]
    return max(bounds, key=lambda bound: bound.value)


__all__ = ["ARGUMENTS", "lower_bound"]
