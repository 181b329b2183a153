"""V-Min of Pipeline Parallelism with Controllable Memory (Qi et al. 2024, arXiv 2405.15362): memory of p / 3."""

from __future__ import annotations

from zbopt.heuristics.tools.building_block import Block, family
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule


def v_min(instance: Instance) -> Schedule:
    """Build V-Min, whose block has no waits: each op of a microbatch follows the one before at once.

    It holds (p + 4) // 3 microbatches on every stage.

    Raises:
        NotApplicableError: The placement is not v, or more than the ops of one step has to be placed.
        CannotFitError: A stage's cap is below (p + 4) // 3 microbatches.
    """
    p = instance.stages
    # Where 3 divides p, two ops of each stage would fall together but for a rest at the first stage.
    rests = (0.0, 0.0 if p % 3 else 2.0, 0.0)
    blocks = [Block(rests=rests, weight=weight, period=period) for weight, period in ((0, 1), (1, 1), (0, 1.25))]
    return family("v-min", instance, blocks, (p + 4) // 3)
