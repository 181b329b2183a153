"""Building blocks: one microbatch's ops at given times, repeated once a period.

Pipeline Parallelism with Controllable Memory (Qi et al. 2024, arXiv 2405.15362) makes a schedule of such a block:
how long the block holds activations decides how much memory the schedule needs. A block here has a slope for each leg
of a microbatch's route, which passes all stages once, and rests between the legs. In V placement forwards go down and
up and gradients down and up, which makes four legs; round robin, forwards go down v times and gradients up v times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from zbopt.graph import TaskGraph, expand
from zbopt.graph.memory import static_memory, whole_memory
from zbopt.heuristics.tools.build import (
    CannotFitError,
    NotApplicableError,
    OrderedOp,
    fitted_schedule,
    require_one_route,
    require_plain_step,
    whole_backward,
)
from zbopt.heuristics.tools.pack import ROUNDS, Packing, Starts, packed_order
from zbopt.heuristics.tools.patience import OutOfTimeError, check_time
from zbopt.problem.instance import Instance, Kind, placement_of
from zbopt.problem.schedule import Schedule

Packed = tuple[Packing, Starts]
"""A packed schedule: the packing, and the starts that it found."""


@dataclass(frozen=True, slots=True)
class Block:
    """Hold the waits of one microbatch, in shares of the mean op, beyond what its ops and transfers take themselves.

    Attributes:
        slopes: Wait between neighbouring stages on each leg: those of forwards, then those of gradients.
        rests: Wait between one leg and the next.
        period: Time between two microbatches, as a multiple of the largest load of a stage.
        weight: Wait of W after its B, in periods.
        group: Microbatches that follow one another at once, each in that share of a period that one leg has; the next
            group then waits for the periods of all of them. 1: no groups.
        bend: Up to this position of a leg, forwards wait as gradients do behind it, and gradients as forwards do.
    """

    slopes: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    rests: tuple[float, ...] = (0.0, 0.0, 0.0)
    period: float = 1
    weight: float = 0
    group: int = 1
    bend: int = 0

    def slope(self, leg: int, position: int) -> float:
        """Return the wait between the virtual stages ``position`` - 1 and ``position`` of a leg."""
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
    """Return the best of ``blocks`` that need at most ``whole`` microbatches of memory, packed from both ends.

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
    graph = expand(limited)
    found = [packed_order(graph, published)] if published else []
    found += _packed_at_both_times(graph, blocks)
    if not found:
        raise NotApplicableError(f"{name}: its blocks hold more than {whole} microbatches at these times; take v-auto")
    packing, starts = min(found, key=lambda one: one[0].value(one[1]))
    orders = [list(_as_given(instance, order)) for order in packing.orders(starts)]
    return fitted_schedule(name, instance, orders, gradient_after_weight=in_one_piece)


def memory_of(instance: Instance, whole: int) -> list[Fraction]:
    """Return the memory of each stage that holds ``whole`` microbatches in all its virtual stages, and static state."""
    kept = min(whole, instance.microbatches)
    return [static_memory(instance, s) + kept * _one_microbatch(instance, s) for s in range(instance.stages)]


class BlockPacker:
    """Pack blocks at an instance's own times and at unit times, whose order is then kept, as that of published blocks.

    Args:
        graph: The task graph of the instance.
        rounds: Packings from both ends, at most.
    """

    def __init__(self, graph: TaskGraph, rounds: int = ROUNDS) -> None:
        unit = at_unit_times(graph.instance)
        self.graph, self.rounds = graph, rounds
        self.unit = None if unit == graph.instance else expand(unit)

    def own(self, block: Block) -> Packed | None:
        """Pack the block at the instance's own times; ``None``: it does not fit the cap."""
        return packed_block(self.graph, block, self.rounds)

    def as_published(self, block: Block) -> Packed | None:
        """Pack the order of the block at unit times; ``None``: it does not fit, or the instance has these times."""
        packed = None if self.unit is None else packed_block(self.unit, block, self.rounds)
        if packed is None:
            return None
        return packed_order(self.graph, packed[0].orders(packed[1]), self.rounds)

    def both(self, block: Block) -> Iterator[Packed]:
        """Yield the block packed at its own times, then at unit times, where it fits."""
        yield from filter(None, (pack(block) for pack in (self.own, self.as_published)))


def _packed_at_both_times(graph: TaskGraph, blocks: Sequence[Block]) -> list[Packed]:
    """Return each block packed at the instance's own times, then each at unit times."""
    found: list[Packed | None] = []
    with suppress(OutOfTimeError):
        packer = BlockPacker(graph)
        for pack in (packer.own, packer.as_published):
            found += map(pack, blocks)
    if not found:
        check_time()
    return list(filter(None, found))


def _fused(instance: Instance) -> Instance:
    """Return the instance with BW alone, which takes as long as B and W where the instance has no BW."""
    fused = instance.fused_backward_ticks or (None,) * instance.virtual_stages
    gradient, weight = _backward_ticks(instance)
    ticks = tuple(g + w if f is None else f for f, g, w in zip(fused, gradient, weight, strict=True))
    return instance.model_copy(update={"fused_backward_ticks": ticks, "backward_ticks": None, "weight_ticks": None})


def _as_given(instance: Instance, order: Iterable[OrderedOp]) -> Iterator[OrderedOp]:
    """Yield ``order``, with B and W in the place of each BW that the instance does not have."""
    for kind, virtual_stage, microbatch in order:
        if kind is Kind.BW:
            yield from whole_backward(instance, virtual_stage, microbatch)
        else:
            yield kind, virtual_stage, microbatch


def _one_microbatch(instance: Instance, stage: int) -> Fraction:
    return sum((whole_memory(instance, v) for v in instance.virtual_stages_of(stage)), Fraction(0))


def at_unit_times(instance: Instance) -> Instance:
    """Return the instance with F = B = W = 1 and BW = 2 ticks and no communication, as published blocks assume."""
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
    """Repeat a block and pack it from both ends ``rounds`` times at most; ``None``: it does not fit the cap."""
    order = repeated(graph, block)
    packing = Packing(graph, order)
    starts = packing.forward(order)
    return None if starts is None else (packing, packing.justified(starts, rounds))


def repeated(graph: TaskGraph, block: Block) -> list[int]:
    """Return the tasks of all microbatches by their time in the repeated block; of each choice the first option."""
    times = block_times(graph, block)
    return sorted(times, key=lambda i: (times[i], i))


def block_times(graph: TaskGraph, block: Block) -> dict[int, float]:
    """Return when each task starts in the repeated block, in ticks; of each choice the first option."""
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
    """Return the ticks of the op that answers the gradient, and of the W after it, by virtual stage."""
    if instance.backward_ticks is None or instance.weight_ticks is None:
        return [ticks or 0 for ticks in instance.fused_backward_ticks or ()], [0] * instance.virtual_stages
    return [ticks or 0 for ticks in instance.backward_ticks], list(instance.weight_ticks)


def _times(instance: Instance, block: Block, mean: float, gradient: list[int]) -> tuple[list[float], list[float]]:
    """Return the start of F and of the gradient op of the first microbatch, by virtual stage."""
    p, last = instance.stages, instance.virtual_stages - 1
    legs = last // p
    forwards, gradients = [0.0], [0.0] * (last + 1)
    for v in range(1, last + 1):
        wait = block.slope(v // p, v % p) if v % p else block.rests[v // p - 1]
        forwards.append(forwards[-1] + instance.forward_ticks[v - 1] + instance.lag_ticks(v - 1, v) + wait * mean)
    gradients[last] = forwards[last] + instance.forward_ticks[last] + block.rests[legs] * mean
    for v in range(last - 1, -1, -1):
        wait = block.slope(2 * legs + 1 - v // p, (v + 1) % p) if (v + 1) % p else block.rests[2 * legs - v // p]
        gradients[v] = gradients[v + 1] + gradient[v + 1] + instance.lag_ticks(v + 1, v) + wait * mean
    return forwards, gradients
