"""ZB-V, also V-ZB: the zero bubble schedule of V placement (Qi et al. 2024, arXiv 2401.10241 and 2405.15362)."""

from __future__ import annotations

from collections.abc import Iterator

from zbopt.heuristics.tools.build import OrderedOp
from zbopt.heuristics.tools.building_block import Block, family, require_v
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule


def zb_v(instance: Instance) -> Schedule:
    """Build ZB-V: blocks slow enough that no stage waits in the steady state, in the memory of 1F1B.

    It holds p microbatches on every stage. At unit times its makespan is 6m + p - 1 ticks for m >= p, and its
    largest stage span 6m, without bubble, for m >= 2p.

    Raises:
        NotApplicableError: The placement is not v, or more than the ops of one step has to be placed.
        CannotFitError: A stage's cap is below p microbatches.
    """
    require_v("zb-v", instance)
    slopes = ((0.0, 1.0, 3.0, 1.0), (2.0, 0.5, 2.0, 1.0), (2.0, 0.5, 2.0, 0.5), (1.0, 1.0, 2.0, 1.0))
    blocks = [Block(s) for s in slopes] + [Block(s, weight=1) for s in slopes[1:]]
    return family("zb-v", instance, blocks, instance.stages, published=handcrafted(instance))


def handcrafted(instance: Instance) -> list[list[OrderedOp]] | None:
    """Return for each stage the order of 2401.10241, section 6; ``None``: below p microbatches, or without B and W.

    A stage holds at most p microbatches. The first gradient of each microbatch follows its last forward at once.
    """
    split = None not in (instance.weight_ticks or (None,)) and None not in (instance.backward_ticks or (None,))
    if not split or not instance.may_split or instance.microbatches < instance.stages:
        return None
    return [list(_order(stage, instance.stages, instance.microbatches)) for stage in range(instance.stages)]


def _order(stage: int, p: int, m: int) -> Iterator[OrderedOp]:
    """Yield the ops of a stage. No W waits before the pipeline drains; then gradients that go up come first."""
    counts: dict[tuple[Kind, int], int] = {}
    down, up = stage, 2 * p - 1 - stage

    def run(times: int, *ops: tuple[Kind, int]) -> Iterator[OrderedOp]:
        for _ in range(times):
            for kind, v in ops:
                microbatch = counts.get((kind, v), 0)
                if microbatch < m:
                    counts[kind, v] = microbatch + 1
                    yield kind, v, microbatch

    backward_up, backward_down = ((Kind.B, up), (Kind.W, up)), ((Kind.B, down), (Kind.W, down))
    yield from run(2 * (p - stage) - 1, (Kind.F, down))
    yield from run(stage, (Kind.F, up), (Kind.F, down))
    yield from run(p - stage, (Kind.F, up), *backward_up)
    yield from run(m - p, (Kind.F, down), *backward_down, (Kind.F, up), *backward_up)
    yield from run(stage, (Kind.B, down), (Kind.B, up))
    yield from run(p - stage, *backward_down)
    yield from run(m, (Kind.W, up))
    yield from run(m, (Kind.W, down))
