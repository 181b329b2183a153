"""The rule that decides in list scheduling (``dispatch``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rule:
    """Say how a free stage picks its next op: a backward before a forward before a W, but for these attributes.

    Attributes:
        in_flight: By virtual stage, most microbatches between the start of F and the start of B; ``None``: no limit.
        alternate: After a backward a forward goes first, and a W makes room for it.
        least_fill: A W may delay an op that is known to arrive if the gap before that is at least this share of W.
        share_idle: A W delays it too where waiting would make the stage the most idle of all so far.
        may_idle: By stage, ticks that it may be idle before ``share_idle`` counts it as the most idle; ``None``: 0.
        older_first: A forward waits where it would hold up that of an older microbatch which is known to arrive: never,
            until the stage's first backward, or always.
        spare: By stage, memory that forwards leave free, in units of the schedule's own; ``None``: none.
        fuse: Take BW wherever the instance leaves the choice.
        drop: Where the instance leaves the choice, drop activations never, always, or only when there is no room.
        group: Microbatches that pass a virtual stage before the next virtual stage of the same stage.
        sequence: Which of ``Costs.sequences`` the microbatches of each route pass in.
        surprise: Share of the choices between a backward and a forward that go the other way, by ``seed``.
        seed: Seed of the surprises.
    """

    in_flight: tuple[int, ...] | None = None
    alternate: bool = True
    least_fill: float = 0.0
    share_idle: bool = False
    may_idle: tuple[int, ...] | None = None
    older_first: Literal["never", "warm-up", "always"] = "never"
    spare: tuple[int, ...] | None = None
    fuse: bool = False
    drop: Literal["never", "always", "no-room"] = "never"
    group: int = 1
    sequence: int = 0
    surprise: float = 0.0
    seed: int = 0
