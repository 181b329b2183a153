"""Building blocks: one microbatch's ops at given times, repeated once a period.

Pipeline Parallelism with Controllable Memory (Qi et al. 2024, arXiv 2405.15362) makes a schedule of such a block:
how long the block holds activations decides how much memory the schedule needs. A block here has a slope for each leg
of the way, which is once over all stages, and rests between the legs. In V placement forwards go down and up and
gradients down and up, four legs; round robin, forwards go down v times and gradients up v times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from zbopt.graph import Key, TaskGraph, expand
from zbopt.graph.memory import static_memory, whole_memory
from zbopt.heuristics.tools.build import (
    CannotFitError,
    NotApplicableError,
    OrderedOp,
    backward_steps,
    fitted_schedule,
    require_one_route,
    require_plain_step,
)
from zbopt.heuristics.tools.pack import Packing, Starts, packed_order
from zbopt.heuristics.tools.patience import OutOfTimeError, check
from zbopt.problem.instance import Instance, Kind, placement_of
from zbopt.problem.schedule import Schedule

ROUNDS = 8
"""Packings from both ends of an order that is returned; most stop changing after three."""


Packed = tuple[Packing, Starts]
"""A schedule as packed."""


@dataclass(frozen=True, slots=True)
class Block:
    """Times of one microbatch, in shares of the mean op beyond what op and transfer take themselves.

    Attributes:
        slopes: Wait between neighbouring stages on each leg: those of forwards, then those of gradients.
        rests: Wait between one leg and the next.
        period: Time between two microbatches, as a multiple of the largest load of a stage.
        weight: Wait of W after its B, in periods.
        group: Microbatches that follow one another at once, each in its share of a period that one leg has; then the
            next group waits for the periods of all. 1: no groups.
        bend: Before so many virtual stages of a slice forwards and gradients wait as the other does behind them.
    """

    slopes: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    rests: tuple[float, ...] = (0.0, 0.0, 0.0)
    period: float = 1
    weight: float = 0
    group: int = 1
    bend: int = 0

    def slope(self, leg: int, position: int) -> float:
        """Wait between the virtual stages ``position`` - 1 and ``position`` of those that a leg passes."""
        return self.slopes[-1 - leg] if position <= self.bend else self.slopes[leg]


def require_v(name: str, instance: Instance) -> None:
    """Raise ``NotApplicableError`` where the placement is not down and back up, two virtual stages a stage."""
    require_one_route(name, instance)
    if instance.stage_of != placement_of("v", instance.stages, 2):
        raise NotApplicableError(
            f"{name}: the placement is not v, two virtual stages a stage down and back up; "
            "give placement v with virtual 2, or take list"
        )


def family(
    name: str,
    instance: Instance,
    blocks: Sequence[Block],
    whole: int,
    *,
    in_one_piece: bool = False,
    published: Sequence[Sequence[OrderedOp]] | None = None,
) -> Schedule:
    """The best of ``blocks`` that need at most ``whole`` microbatches of memory, packed from both ends.

    Each is packed at the instance's own times and, as published, at unit times, whose order is then kept.

    Args:
        name: The heuristic's name, for provenance and errors.
        instance: The problem.
        blocks: What to repeat.
        whole: Microbatches that the family holds on each stage.
        in_one_piece: The backward is BW, or where there is none, B and W back to back.
        published: For each stage an order that fits ``whole`` microbatches, to be packed as well; ``None``: none.

    Raises:
        NotApplicableError: The placement is not v, or more than the ops of one step has to be placed.
        CannotFitError: A stage's cap is below ``whole`` microbatches, or below what the schedule holds.
    """
    require_v(name, instance)
    require_plain_step(name, instance)
    needs = memory_of(instance, whole)
    for stage, (cap, needed) in enumerate(zip(instance.memory_cap or needs, needs, strict=True)):
        if needed > cap:
            raise CannotFitError(name, stage, needed, cap)
    limited = (_fused(instance) if in_one_piece else instance).model_copy(update={"memory_cap": tuple(needs)})
    found = [packed_steps(limited, published)] if published else []
    found += _packed_in_two_ways(limited, blocks)
    if not found:
        raise NotApplicableError(f"{name}: its blocks hold more than {whole} microbatches at these times; take v-auto")
    packing, starts = min(found, key=lambda one: one[0].value(one[1]))
    rows = [list(_as_given(instance, row)) for row in packing.steps(starts)]
    return fitted_schedule(name, instance, rows, gradient_after_weight=in_one_piece)


def memory_of(instance: Instance, whole: int) -> list[Fraction]:
    """Memory of each stage that holds ``whole`` microbatches in all its virtual stages, and its static state."""
    kept = min(whole, instance.microbatches)
    return [static_memory(instance, s) + kept * _one_microbatch(instance, s) for s in range(instance.stages)]


def packed_steps(instance: Instance, rows: Sequence[Sequence[OrderedOp]]) -> Packed:
    """An order of the ops of each stage that fits the cap, packed from both ends."""
    graph = expand(instance)
    return packed_order(graph, [[graph.index[Key(*step)] for step in row] for row in rows], ROUNDS)


class TwoWays:
    """Packs blocks at an instance's own times and at unit times, whose order is then kept: as published ones are.

    Args:
        instance: The problem.
        rounds: Packings from both ends, at most.
    """

    def __init__(self, instance: Instance, rounds: int = ROUNDS) -> None:
        unit = at_unit_times(instance)
        self.graph, self.rounds = expand(instance), rounds
        self.unit = None if unit == instance else expand(unit)

    def own(self, block: Block) -> Packed | None:
        """The block at the instance's own times; ``None`` where it does not fit the cap."""
        return packed_block(self.graph, block, self.rounds)

    def as_published(self, block: Block) -> Packed | None:
        """The order that the block has at unit times; ``None`` where it does not fit, or where those are its own."""
        packed = None if self.unit is None else packed_block(self.unit, block, self.rounds)
        if packed is None:
            return None
        rows = [[self.graph.index[Key(*step)] for step in row] for row in packed[0].steps(packed[1])]
        return packed_order(self.graph, rows, self.rounds)

    def __call__(self, block: Block) -> Iterator[Packed]:
        """Both, one after the other."""
        yield from filter(None, (way(block) for way in (self.own, self.as_published)))


def _packed_in_two_ways(instance: Instance, blocks: Sequence[Block]) -> list[Packed]:
    """Each block at the instance's own times, then each at unit times."""
    found: list[Packed | None] = []
    with suppress(OutOfTimeError):
        ways = TwoWays(instance)
        for way in (ways.own, ways.as_published):
            found += map(way, blocks)
    if not found:
        check()
    return list(filter(None, found))


def _fused(instance: Instance) -> Instance:
    """The instance with BW alone, as long as B and W where it has none."""
    fused = instance.fused_backward_ticks or (None,) * instance.virtual_stages
    gradient, weight = _backward_ticks(instance)
    ticks = tuple(g + w if f is None else f for f, g, w in zip(fused, gradient, weight, strict=True))
    return instance.model_copy(update={"fused_backward_ticks": ticks, "backward_ticks": None, "weight_ticks": None})


def _as_given(instance: Instance, row: Iterable[OrderedOp]) -> Iterator[OrderedOp]:
    """``row`` with each BW that the instance does not have as B and W."""
    for kind, virtual_stage, microbatch in row:
        if kind is Kind.BW:
            yield from backward_steps(instance, virtual_stage, microbatch)
        else:
            yield kind, virtual_stage, microbatch


def _one_microbatch(instance: Instance, stage: int) -> Fraction:
    return sum((whole_memory(instance, v) for v in instance.virtual_stages_of(stage)), Fraction(0))


def at_unit_times(instance: Instance) -> Instance:
    """F = B = W = 1 and BW = 2 ticks, without communication: what the published blocks were made for."""
    times = {
        field: None if given is None else tuple(None if ticks is None else unit for ticks in given)
        for field, unit in (
            ("forward_ticks", 1),
            ("backward_ticks", 1),
            ("weight_ticks", 1),
            ("fused_backward_ticks", 2),
        )
        for given in (getattr(instance, field),)
    }
    return instance.model_copy(update={**times, "comm_ticks": 0})


def packed_block(graph: TaskGraph, block: Block, rounds: int) -> Packed | None:
    """The block repeated and packed, from both ends ``rounds`` times; ``None`` where it does not fit the cap."""
    order = repeated(graph, block)
    packing = Packing(graph, order)
    starts = packing.forward(order)
    return None if starts is None else (packing, packing.justified(starts, rounds))


def repeated(graph: TaskGraph, block: Block) -> list[int]:
    """The tasks of all microbatches by their time in the repeated block; of each choice the first option."""
    times = block_times(graph, block)
    return sorted(times, key=lambda i: (times[i], i))


def block_times(graph: TaskGraph, block: Block) -> dict[int, float]:
    """When each task starts in the repeated block, in ticks; of each choice the first option."""
    instance = graph.instance
    gradient, weight = _backward_ticks(instance)
    mean = sum((*instance.forward_ticks, *gradient, *weight)) / (3 * instance.virtual_stages)
    loads = [
        sum(instance.forward_ticks[v] + gradient[v] + weight[v] for v in instance.virtual_stages_of(stage))
        for stage in range(instance.stages)
    ]
    period = block.period * max(loads)
    forwards, gradients = _times(instance, block, mean, gradient)
    times: dict[int, float] = {}
    for i, task in enumerate(graph.tasks):
        v = task.virtual_stage
        if v is None or task.microbatch is None or (task.choice is not None and task.option != 0):
            continue
        time = forwards[v] if task.kind is Kind.F else gradients[v]
        if task.kind is Kind.R:
            time -= task.duration_ticks
        if task.kind is Kind.W:
            time += gradient[v] + block.weight * period
        before, within = divmod(task.microbatch, block.group)
        times[i] = time + (before * block.group + within * instance.stages / instance.virtual_stages) * period
    return times


def _backward_ticks(instance: Instance) -> tuple[list[int], list[int]]:
    """Times of the op that answers the gradient, and of the W after it, by virtual stage."""
    if instance.backward_ticks is None or instance.weight_ticks is None:
        return [ticks or 0 for ticks in instance.fused_backward_ticks or ()], [0] * instance.virtual_stages
    return [ticks or 0 for ticks in instance.backward_ticks], list(instance.weight_ticks)


def _times(instance: Instance, block: Block, mean: float, gradient: list[int]) -> tuple[list[float], list[float]]:
    """Start of F and of the gradient op of the first microbatch, by virtual stage."""
    p, last = instance.stages, instance.virtual_stages - 1
    turn = last // p
    forwards, gradients = [0.0], [0.0] * (last + 1)
    for v in range(1, last + 1):
        wait = block.slope(v // p, v % p) if v % p else block.rests[v // p - 1]
        forwards.append(forwards[-1] + instance.forward_ticks[v - 1] + instance.lag_ticks(v - 1, v) + wait * mean)
    gradients[last] = forwards[last] + instance.forward_ticks[last] + block.rests[turn] * mean
    for v in range(last - 1, -1, -1):
        wait = block.slope(2 * turn + 1 - v // p, (v + 1) % p) if (v + 1) % p else block.rests[2 * turn - v // p]
        gradients[v] = gradients[v + 1] + gradient[v + 1] + instance.lag_ticks(v + 1, v) + wait * mean
    return forwards, gradients
