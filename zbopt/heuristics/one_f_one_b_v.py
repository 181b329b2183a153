"""1F1B-V of Pipeline Parallelism with Controllable Memory (Qi et al. 2024, arXiv 2405.15362): V without split."""

from __future__ import annotations

from zbopt.heuristics.tools.building_block import Block, family
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule


def one_f_one_b_v(instance: Instance) -> Schedule:
    """Build 1F1B-V: forwards without waits, gradients at two thirds of their speed, the backward in one piece.

    It holds two thirds of p microbatches, rounded up. The backward of an instance that only splits runs as B and W
    back to back.

    Raises:
        NotApplicableError: The placement is not v, or more than the ops of one step has to be placed.
        CannotFitError: A stage's cap is below two thirds of p microbatches.
    """
    p = instance.stages
    blocks = [Block(slopes, (0.0, 0.0, 1.0)) for slopes in ((0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 1.0, 0.0), (0.0,) * 4)]
    return family("1f1b-v", instance, blocks, -(-2 * p // 3), in_one_piece=True)
