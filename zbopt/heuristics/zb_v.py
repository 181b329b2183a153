"""ZB-V, also V-ZB: the zero bubble schedule of V placement (Qi et al. 2024, arXiv 2401.10241 and 2405.15362)."""

from __future__ import annotations

from zbopt.heuristics.building_block import Block, family
from zbopt.instance import Instance
from zbopt.schedule import Schedule


def zb_v(instance: Instance) -> Schedule:
    """Blocks slow enough that no stage waits in the steady state, in the memory of 1F1B.

    It holds p microbatches on every stage. At unit times its makespan is 6m + p - 1 ticks for m >= p, and its
    largest stage span 6m, without bubble, for m >= 2p.

    Raises:
        NotApplicableError: The placement is not v, or more than the ops of one step has to be placed.
        CannotFitError: A stage's cap is below p microbatches.
    """
    slopes = ((0.0, 1.0, 3.0, 1.0), (2.0, 0.5, 2.0, 1.0), (2.0, 0.5, 2.0, 0.5), (1.0, 1.0, 2.0, 1.0))
    blocks = [Block(s) for s in slopes] + [Block(s, weight=1) for s in slopes[1:]]
    return family("zb-v", instance, blocks, instance.stages)
