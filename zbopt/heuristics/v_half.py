"""V-Half of Pipeline Parallelism with Controllable Memory (Qi et al. 2024, arXiv 2405.15362): memory of p / 2."""

from __future__ import annotations

from zbopt.heuristics.tools.building_block import Block, family
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule


def v_half(instance: Instance) -> Schedule:
    """Build V-Half, whose block goes down the pipeline, forward and back, at half the speed at which it comes up.

    It holds (p + 2) // 2 microbatches on every stage. At unit times and m >= p its makespan and largest stage span are
    6m + 3p - 7 ticks where p is even.

    Raises:
        NotApplicableError: The placement is not v, or more than the ops of one step has to be placed.
        CannotFitError: A stage's cap is below (p + 2) // 2 microbatches.
    """
    p = instance.stages
    rests = (0.0, 0.0 if p % 2 else 3.0, 1.0)
    slopes = ((1.0, 0.0, 1.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.5, 0.5, 0.5, 0.5))
    blocks = [Block(slopes[0], rests), *(Block(s, weight=w) for s in slopes for w in (0, 1))]
    return family("v-half", instance, blocks, (p + 2) // 2)
