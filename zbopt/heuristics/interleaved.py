"""Megatron-LM's interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, section 2.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from zbopt.heuristics.tools.build import (
    NotApplicableError,
    OrderedOp,
    fitted_schedule,
    require_one_route,
    whole_backward,
)
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule


def interleaved(instance: Instance, group: int | None = None) -> Schedule:
    """Build interleaved 1F1B: groups of p, or of ``group``, microbatches pass each of a stage's virtual stages in turn.

    Where the size of a group does not divide m, the rest is spread over the groups, the first ones larger. With
    ``group`` the rest is a group of its own if it has p microbatches; Megatron-LM refuses smaller rests.

    With v virtual stages a stage, at uniform times without communication it takes (m v + p - 1)(F + BW), times of one
    virtual stage. With groups of g that divide m, stage s holds 2(p - s - 1) + (v - 1)g + 1 activations of a virtual
    stage, for any m.

    Args:
        instance: The problem.
        group: Megatron-LM's microbatch group size per virtual pipeline stage; ``None``: p, evenly larger.

    Raises:
        NotApplicableError: The placement is not round robin with two or more virtual stages a stage, or ``group`` is
            not p to m.
        CannotFitError: A stage's cap is below the activations that its warm-up holds.
    """
    require_round_robin("interleaved", instance)
    forwards, backwards = passes(instance, _groups(instance, group))
    orders = [order_of(instance, stage, forwards, backwards, whole_backward) for stage in range(instance.stages)]
    return fitted_schedule("interleaved", instance, orders, gradient_after_weight=True)


def order_of(
    instance: Instance,
    stage: int,
    forwards: Pass,
    backwards: Pass,
    backward: Callable[[Instance, int, int], Sequence[OrderedOp]],
) -> list[OrderedOp]:
    """Return a stage's warm-up, then forward and backward in turn; ``backward`` returns the ops of one backward."""
    order: list[OrderedOp] = []
    first = warmup(instance, stage, forwards)
    for position in range(len(forwards) + first):
        if position < len(forwards):
            slot, microbatch = forwards[position]
            order.append((Kind.F, slot * instance.stages + stage, microbatch))
        if position >= first:
            slot, microbatch = backwards[position - first]
            order += backward(instance, slot * instance.stages + stage, microbatch)
    return order


def require_round_robin(name: str, instance: Instance) -> None:
    """Raise ``NotApplicableError`` where the placement is not round robin with several virtual stages a stage."""
    require_one_route(name, instance)
    p, v = instance.stages, instance.virtual_stages // instance.stages
    if v < 2 or instance.stage_of != tuple(range(p)) * v:
        raise NotApplicableError(
            f"{name}: the placement is not round robin with two or more virtual stages a stage; "
            "give placement interleaved with virtual >= 2, or take 1f1b or list"
        )


Pass = list[tuple[int, int]]
"""(slot, microbatch): the virtual stages of a stage in turn, for each group of microbatches."""


def passes(instance: Instance, groups: Sequence[range]) -> tuple[Pass, Pass]:
    """Return a stage's forwards, and its backwards, in order."""
    slots = range(instance.virtual_stages // instance.stages)
    return _passes(groups, slots), _passes(groups, slots[::-1])


def warmup(instance: Instance, stage: int, forwards: Pass) -> int:
    """Count the forwards of ``stage`` before its first backward.

    They are those of the first group but for the last slot, and two for each stage behind this one.
    """
    last_slot = instance.virtual_stages // instance.stages - 1
    before = next(position for position, (slot, _) in enumerate(forwards) if slot == last_slot)
    return min(len(forwards), 2 * (instance.stages - stage - 1) + before)


def even_groups(p: int, m: int) -> list[range]:
    """Return groups of p microbatches or more, the larger first; all in one where there are fewer than p.

    A group of fewer than p would make the order wait for itself.
    """
    count = max(1, m // p)
    return _ranges([m // count + (group < m % count) for group in range(count)])


def _groups(instance: Instance, group: int | None) -> list[range]:
    p, m = instance.stages, instance.microbatches
    if group is None:
        return even_groups(p, m)
    if not min(p, m) <= group <= m:
        raise NotApplicableError(
            f"interleaved: groups of {group} microbatches; give {p} to {m}: a smaller group waits for itself"
        )
    count, rest = divmod(m, group)
    if rest >= p:
        return _ranges([group] * count + [rest])
    return _ranges([group + rest // count + (one < rest % count) for one in range(count)])


def _ranges(sizes: Sequence[int]) -> list[range]:
    ends = [sum(sizes[:group]) for group in range(len(sizes) + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


def _passes(groups: Sequence[range], slots: range) -> Pass:
    return [(slot, microbatch) for group in groups for slot in slots for microbatch in group]
