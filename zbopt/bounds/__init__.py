"""Lower bounds from closed arguments, one a file; models/bounds.md states and proves each.

Each is a function from an instance to a ``Bound``, or ``None`` where its argument says nothing: because it has nothing
to say, or because a field is in use that it does not understand (``understood``).
"""

from __future__ import annotations

from collections.abc import Mapping

from zbopt.bounds.area import area
from zbopt.bounds.last_forward import last_forward
from zbopt.bounds.last_gradient import last_gradient
from zbopt.bounds.load import load
from zbopt.bounds.residency import residency
from zbopt.bounds.round_trip import round_trip
from zbopt.bounds.turns import turns
from zbopt.bounds.understood import Argument
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance

__all__ = ["ARGUMENTS", "lower_bound"]

ARGUMENTS: Mapping[str, Argument] = {
    "load": load,
    "round-trip": round_trip,
    "residency": residency,
    "turns": turns,
    "area": area,
    "last-gradient": last_gradient,
    "last-forward": last_forward,
}

_NOTHING = Bound(0, "bound:none")
"""No schedule takes less than no time, whatever an instance says that no argument understands."""


def lower_bound(instance: Instance) -> Bound:
    """Return the best bound of all arguments; the first named among equals, 0 where none says anything."""
    bounds = [bound for argument in ARGUMENTS.values() if (bound := argument(instance)) is not None]
    return max(bounds, key=lambda bound: bound.value, default=_NOTHING)
