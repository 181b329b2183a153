"""Cutting the parts of a linear pipeline into the slices of another placement: the same model on the same devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

from zbopt.cli.placements import Candidate
from zbopt.costs.times import tick_name, tick_ns
from zbopt.problem.instance import Instance
from zbopt.problem.routes import TIMES

CUT_TICKS = (*TIMES, "offload_ticks", "reload_ticks", "reduction_ticks")
"""Times of a part of the model: each slice takes its share."""
WHOLE_TICKS = (
    *("comm_ticks", "node_comm_ticks", "comm_matrix"),
    *("loss_ticks", "barrier_ticks", "optimizer_ticks", "input_ready_ticks"),
)
"""Times that no slice shares."""
STAGE_TICKS = ("overlapped_ticks",)
"""Times of a part, whose lists are by stage in every placement."""
RATES = ("bandwidth", "node_bandwidth", "bandwidth_matrix")
"""Amounts a tick."""
CUT_AMOUNTS = ("activation", "gradient_state", "checkpoint", "offload_rest")
"""Memory of a part: each slice takes its share."""
SPREAD = ("weight_share", "boundary", "recompute", "offload")
"""What is of each slice as it is of its part: what a slice hands on is as large."""
HELD = ("parameters", "gradients", "optimizer_state")
"""Memory of the parts that a stage holds: of its slices' shares, and once for each replica."""


@dataclass(slots=True)
class _Cut:
    """One cut. ``finer`` ticks are one of the instance's; ``added`` is the most that rounding added, in new ticks."""

    instance: Instance
    candidate: Candidate
    finer: int
    added: Fraction = field(default=Fraction(0))

    def part(self, virtual_stage: int) -> int:
        """The part of the model that a virtual stage is a slice of."""
        return virtual_stage // self.candidate.slices % self.instance.stages

    def spread(self, values: Any) -> list[Any]:
        """Values of parts to the slices of each."""
        return [values[self.part(v)] for v in range(len(self.candidate.stage_of))]

    def ticks(self, given: Any, slices: int = 1) -> Any:
        """A time, or lists of them, in new ticks and rounded up."""
        if isinstance(given, tuple):
            return [self.ticks(one, slices) for one in given]
        if given is None:
            return None
        exact = Fraction(given * self.finer, slices)
        self.added = max(self.added, ceil(exact) - exact)
        return ceil(exact)

    def rate(self, given: Any) -> Any:
        """An amount a tick, or lists of them, for new ticks."""
        return [self.rate(one) for one in given] if isinstance(given, tuple) else given / self.finer

    def held(self, amounts: tuple[Fraction, ...]) -> list[Fraction]:
        """What each stage holds of the parts whose slices it has."""
        found = [Fraction(0)] * self.instance.stages
        for v, stage in enumerate(self.candidate.stage_of):
            found[stage] += amounts[self.part(v)] / self.candidate.slices
        return found

    def times(self, holder: Any) -> Iterator[tuple[str, Any]]:
        """The times of parts that an instance or some of its microbatches have."""
        for name in CUT_TICKS:
            if getattr(holder, name, None) is not None:
                yield name, self.spread(self.ticks(getattr(holder, name), self.candidate.slices))

    def fields(self) -> Iterator[tuple[str, Any]]:
        """The fields that are not those of the instance."""
        given = {name: getattr(self.instance, name) for name in Instance.model_fields}
        has = {name: value for name, value in given.items() if value is not None}
        slices = self.candidate.slices
        yield "stage_of", self.candidate.stage_of
        yield from self.times(self.instance)
        if self.instance.microbatch_times is not None:
            groups = self.instance.microbatch_times
            yield "microbatch_times", [{"microbatches": g.microbatches} | dict(self.times(g)) for g in groups]
        yield from ((name, self.ticks(has[name])) for name in WHOLE_TICKS if name in has)
        yield from ((name, self.ticks(has[name], slices)) for name in STAGE_TICKS if name in has)
        yield from ((name, self.rate(has[name])) for name in RATES if name in has)
        yield from ((name, [a / slices for a in self.spread(has[name])]) for name in CUT_AMOUNTS if name in has)
        yield from ((name, self.spread(has[name])) for name in SPREAD if name in has)
        yield from ((name, self.held(has[name])) for name in HELD if name in has)


def cut_fields(instance: Instance, candidate: Candidate, finer: int) -> Mapping[str, Any]:
    """The fields of ``instance`` with its parts cut as ``candidate`` has them.

    Args:
        instance: A linear pipeline, one that ``require_cuttable`` takes.
        candidate: The placement.
        finer: How many of the new ticks are one of the old.
    """
    cut = _Cut(instance, candidate, finer)
    fields = instance.model_dump(exclude_none=True) | dict(cut.fields())
    fields["rounding_ticks"] = cut.added + instance.rounding_ticks * finer / candidate.slices
    if finer > 1 and instance.tick != "unit":
        fields["tick"] = tick_name(tick_ns(instance.tick) / finer)
    return fields


def require_cuttable(instance: Instance) -> None:
    """Refuse what cannot be cut.

    Raises:
        ValueError: A stage holds no part or several, an op is missing, or a window lies inside an op.
    """
    if not instance.is_linear:
        raise ValueError(
            "stage_of: --placement auto cuts the parts of a linear pipeline, one virtual stage a stage and one route; "
            "leave stage_of and routes out, or leave --placement out"
        )
    if instance.collectives is not None:
        raise ValueError("collectives: --placement auto cannot cut the op around them; solve a file of each placement")
    for name in ("backward_ticks", "fused_backward_ticks"):
        if None in (getattr(instance, name) or ()):
            raise ValueError(
                f"{name}[0] is null: with --placement auto later slices of the first stage have a B; give its time, or "
                "one placement and a time for each virtual stage"
            )


def finest(instance: Instance, parts: int) -> int:
    """How many new ticks one tick becomes, so that a share of ``parts`` is whole ticks where that is possible."""
    if instance.tick == "unit":
        return parts
    exact = (tick_ns(instance.tick) / parts).denominator == 1
    return parts if exact and instance.rounding_ticks * parts < 1 else 1
