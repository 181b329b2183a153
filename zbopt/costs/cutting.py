"""Cutting the parts of a linear pipeline into the slices of another placement: the same model on the same devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

from zbopt.costs.times import tick_name, tick_ns
from zbopt.problem.facts import Axis, CutRule, Facts, Unit, facts_by_field, fields_in_use
from zbopt.problem.instance import Instance
from zbopt.problem.routes import TIMES, MicrobatchTimes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement to try: its name, stages of its virtual stages, and slices that a stage's part is cut into."""

    name: str
    stage_of: tuple[int, ...]
    slices: int


@dataclass(slots=True)
class _Slicing:
    """Cut one instance. ``finer`` ticks are one of its ticks; ``added`` is the most that rounding added, in these."""

    instance: Instance
    candidate: Candidate
    finer: int
    added: Fraction = field(default=Fraction(0))

    def part(self, virtual_stage: int) -> int:
        """Return the part of the model that a virtual stage is a slice of."""
        return virtual_stage // self.candidate.slices % self.instance.stages

    def spread(self, values: Any) -> list[Any]:
        """Give each slice the value of its part."""
        return [values[self.part(v)] for v in range(len(self.candidate.stage_of))]

    def ticks(self, given: Any, slices: int) -> Any:
        """Return a time, or lists of them, in new ticks, divided by ``slices`` and rounded up."""
        if isinstance(given, tuple):
            return tuple(self.ticks(one, slices) for one in given)
        if isinstance(given, MicrobatchTimes):
            return self.times_of_some(given)
        if given is None:
            return None
        exact = Fraction(given * self.finer, slices)
        self.added = max(self.added, ceil(exact) - exact)
        return ceil(exact)

    def times_of_some(self, group: MicrobatchTimes) -> dict[str, Any]:
        """Return the times of single microbatches after the cut, each cut as the instance's own field is."""
        own = {name: given for name in TIMES if (given := getattr(group, name)) is not None}
        facts = dict(facts_by_field(Instance))
        return {"microbatches": group.microbatches} | {name: self.value(facts[name], own[name]) for name in own}

    def rate(self, given: Any) -> Any:
        """Return an amount a tick, or lists of them, for new ticks."""
        return tuple(self.rate(one) for one in given) if isinstance(given, tuple) else given / self.finer

    def gathered(self, amounts: tuple[Fraction, ...]) -> list[Fraction]:
        """Return what each stage holds of the parts whose slices it has."""
        found = [Fraction(0)] * self.instance.stages
        for v, stage in enumerate(self.candidate.stage_of):
            found[stage] += amounts[self.part(v)] / self.candidate.slices
        return found

    def value(self, facts: Facts, given: Any) -> Any:
        """Return the value of a field after the cut, as its facts have it."""
        if facts.cut is CutRule.GATHERED:
            return self.gathered(given)
        slices = self.candidate.slices if facts.cut is CutRule.DIVIDED else 1
        if facts.unit is Unit.TICKS:
            given = self.ticks(given, slices)
        elif facts.unit is Unit.MEMORY_PER_TICK:
            given = self.rate(given)
        elif facts.cut is CutRule.DIVIDED:
            given = [amount / slices for amount in given]
        return self.spread(given) if facts.axis is Axis.VIRTUAL_STAGE else given

    def fields(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields after the cut."""
        yield "stage_of", self.candidate.stage_of
        for name, facts in facts_by_field(Instance):
            given = getattr(self.instance, name)
            if facts.cut is not CutRule.REFUSED and given is not None:
                yield name, self.value(facts, given)


def cut_fields(instance: Instance, candidate: Candidate, finer: int) -> Mapping[str, Any]:
    """Return the fields of ``instance`` with its parts cut as ``candidate`` has them.

    Args:
        instance: A linear pipeline, one that ``require_cuttable`` takes.
        candidate: The placement.
        finer: How many of the new ticks are one of the old.
    """
    slicing = _Slicing(instance, candidate, finer)
    fields = instance.model_dump(exclude_none=True) | dict(slicing.fields())
    fields["rounding_ticks"] = slicing.added + instance.rounding_ticks * finer / candidate.slices
    if finer > 1 and instance.tick != "unit":
        fields["tick"] = tick_name(tick_ns(instance.tick) / finer)
    return fields


def require_cuttable(instance: Instance, cutter: str) -> None:
    """Refuse what cannot be cut.

    Args:
        instance: What is to be cut.
        cutter: The flag or function that cuts, for the error.

    Raises:
        ValueError: A stage holds no part or several, an op is missing, or a field in use cannot be cut.
    """
    if not instance.is_linear:
        raise ValueError(
            f"stage_of: {cutter} cuts the parts of a linear pipeline, one virtual stage a stage and one route; "
            "leave stage_of and routes out"
        )
    in_use = fields_in_use(instance)
    for name, facts in facts_by_field(Instance):
        if name in in_use and facts.cut is CutRule.REFUSED:
            what = "the op around them" if name == "collectives" else "it"
            raise ValueError(f"{name}: {cutter} cannot cut {what}; solve a file of each placement")
    for name in ("backward_ticks", "fused_backward_ticks"):
        if None in (getattr(instance, name) or ()):
            raise ValueError(
                f"{name}[0] is null: with {cutter} later slices of the first stage have a B; give its time, or "
                "one placement and a time for each virtual stage"
            )


def finest(instance: Instance, parts: int) -> int:
    """Return how many new ticks one tick becomes, so that a share of ``parts`` is whole ticks where possible."""
    if instance.tick == "unit":
        return parts
    exact = (tick_ns(instance.tick) / parts).denominator == 1
    return parts if exact and instance.rounding_ticks * parts < 1 else 1
