"""A lower bound on the objective of an instance, and the argument behind it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """Hold a valid lower bound on the objective, in ticks, and the argument behind it (``bound:...`` or ``cp-sat``)."""

    value: int
    proved_by: str
