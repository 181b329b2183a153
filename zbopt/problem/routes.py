"""Routes of microbatches over virtual stages, and microbatches whose ops take times of their own."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import wraps
from itertools import accumulate, pairwise
from typing import Annotated, Any, NamedTuple, TypeVar, TypeVarTuple

from pydantic import BaseModel, ConfigDict, Field

from zbopt.problem.facts import Axis, CutRule, Facts, Unit
from zbopt.problem.kinds import Kind
from zbopt.problem.numbers import MAX_MICROBATCHES, Ticks, is_none
from zbopt.problem.size import SizeFields

_A = TypeVar("_A")
_T = TypeVar("_T")
_Others = TypeVarTuple("_Others")
_MOST_REMEMBERED = 256


def remembered(function: Callable[[_A, *_Others], _T]) -> Callable[[_A, *_Others], _T]:
    """Wrap ``function`` so that it keeps its last answers, by the identity of its first argument.

    An instance asks at every op; to hash a list of all microbatches each time took most of a heuristic's time.
    """
    known: dict[tuple[object, ...], tuple[object, _T]] = {}

    @wraps(function)
    def ask(what: _A, /, *others: *_Others) -> _T:
        key = (id(what), *others)
        found = known.get(key)
        if found is not None and found[0] is what:
            return found[1]
        if len(known) >= _MOST_REMEMBERED:
            known.clear()
        answer = function(what, *others)
        known[key] = (what, answer)
        return answer

    return ask


_Index = Annotated[int, Field(ge=0, strict=True)]


class Route(BaseModel):
    """Represent a sequence of virtual stages, and how many microbatches pass it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    virtual_stages: tuple[_Index, ...] = Field(min_length=1, description="In forward order: increasing.")
    microbatches: int = Field(
        ge=1,
        le=MAX_MICROBATCHES,
        strict=True,
        description="How many pass here; numbered after those of the route before.",
    )


class MicrobatchTimes(BaseModel):
    """Hold the times of some microbatches, by virtual stage; those left out are as the instance says.

    A field beside ``microbatches`` is also one of the instance, which its times replace.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    microbatches: tuple[_Index, ...] = Field(min_length=1, description="Whose times these are.")
    forward_ticks: tuple[Ticks, ...]
    backward_ticks: tuple[Ticks | None, ...] | None = None
    weight_ticks: tuple[Ticks, ...] | None = None
    fused_backward_ticks: tuple[Ticks | None, ...] | None = None
    recompute_ticks: tuple[Ticks, ...] | None = None


TIMES = tuple(name for name in MicrobatchTimes.model_fields if name != "microbatches")
"""Fields of an instance of which single microbatches may have their own."""


_KINDS = (Kind.F, Kind.B, Kind.W, Kind.BW, Kind.R)


class OpTicks(NamedTuple):
    """Hold the times of the ops of one microbatch on one virtual stage; ``None``: it has no such op."""

    forward: int
    backward: int | None
    weight: int | None
    fused: int | None
    recompute: int | None

    def of(self, kind: Kind) -> int | None:
        """Return the time of one kind of op."""
        return self[_KINDS.index(kind)]

    def gradient(self) -> int:
        """Return the least time from the arriving gradient to that of the input: B, or BW where it may run instead."""
        return min((ticks for ticks in (self.backward, self.fused) if ticks is not None), default=0)

    def backward_work(self) -> int:
        """Return the least time that the whole backward takes: B and W, W alone, or BW."""
        split = None if self.weight is None else (self.backward or 0) + self.weight
        return min(ticks for ticks in (split, self.fused) if ticks is not None)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Hold, by virtual stage, the one before and after it on its route (``None``: an end), and what passes it."""

    before: tuple[int | None, ...]
    after: tuple[int | None, ...]
    passing: tuple[range, ...]


@remembered
def neighbours(routes: tuple[Route, ...] | None, virtual_stages: int, microbatches: int) -> Neighbours:
    """Return the neighbours of each virtual stage on ``routes``; ``None`` is one route for all."""
    before: list[int | None] = [None] * virtual_stages
    after: list[int | None] = [None] * virtual_stages
    passing = [range(microbatches)] * virtual_stages
    given = [(tuple(range(virtual_stages)), microbatches)]
    if routes is not None:
        given = [(route.virtual_stages, route.microbatches) for route in routes]
    first = 0
    for on_route, count in given:
        for v, following in pairwise(on_route):
            after[v], before[following] = following, v
        for v in on_route:
            passing[v] = range(first, first + count)
        first += count
    return Neighbours(tuple(before), tuple(after), tuple(passing))


@remembered
def own_times(groups: tuple[MicrobatchTimes, ...] | None) -> dict[int, MicrobatchTimes]:
    """Return the times of each microbatch that has some of its own."""
    return {microbatch: group for group in groups or () for microbatch in group.microbatches}


def bidirectional(stages: int, microbatches: int) -> tuple[Route, ...]:
    """Return two routes of ``stages`` virtual stages, each with half the microbatches, one more on the first."""
    down, up = tuple(range(stages)), tuple(range(stages, 2 * stages))
    half = microbatches // 2
    return (Route(virtual_stages=down, microbatches=microbatches - half), Route(virtual_stages=up, microbatches=half))


def route_fault(routes: Sequence[Route], virtual_stages: int, microbatches: int) -> str | None:
    """Return what is wrong with ``routes``; ``None``: each virtual stage and each microbatch is on exactly one."""
    seen = [v for route in routes for v in route.virtual_stages]
    for r, route in enumerate(routes):
        if list(route.virtual_stages) != sorted(set(route.virtual_stages)):
            return f"routes[{r}] is not in forward order; number virtual stages so that each route's numbers increase"
    wrong = next((v for v in seen if v >= virtual_stages), None)
    if wrong is not None:
        return f"routes: {wrong} is no virtual stage; virtual stages are 0 to {virtual_stages - 1}"
    twice = next((v for v in seen if seen.count(v) > 1), None)
    if twice is not None:
        return f"routes: virtual stage {twice} is on two routes; give each route replicas of its own"
    unseen = sorted(set(range(virtual_stages)) - set(seen))
    if unseen:
        return f"routes: virtual stage {unseen[0]} is on no route; add it to one, or leave it out of stage_of"
    total = sum(route.microbatches for route in routes)
    if total != microbatches:
        return f"routes carry {total} microbatches in all, the step has {microbatches}; make the two equal"
    return None


def classes(
    routes: tuple[Route, ...] | None, groups: tuple[MicrobatchTimes, ...] | None, microbatches: int
) -> tuple[tuple[int, ...], ...]:
    """Return the microbatches of a step, those together that pass the same virtual stages and take the same times."""
    own = own_times(groups)
    ends = [microbatches] if routes is None else list(accumulate(route.microbatches for route in routes))
    found: dict[object, list[int]] = {}
    for j in range(microbatches):
        times = own[j].model_copy(update={"microbatches": ()}) if j in own else None
        found.setdefault((bisect_right(ends, j), times), []).append(j)
    return tuple(map(tuple, found.values()))


def default_shares(stage_of: Sequence[int], routes: Any) -> tuple[Fraction, ...]:
    """Return the default activations: each its share of what one microbatch holds on its stage.

    Args:
        stage_of: Stage of each virtual stage.
        routes: Routes as given, checked or not; whatever is none is left out.
    """
    route_of: dict[int, int] = {}
    for number_of_route, route in enumerate(routes if isinstance(routes, (list, tuple)) else ()):
        on_route = route.get("virtual_stages") if isinstance(route, dict) else getattr(route, "virtual_stages", ())
        if isinstance(on_route, (list, tuple)):
            route_of |= {v: number_of_route for v in on_route if isinstance(v, int)}
    keys = [(stage, route_of.get(v, 0)) for v, stage in enumerate(stage_of)]
    sharing = Counter(keys)
    return tuple(Fraction(1, sharing[key]) for key in keys)


def filled_times(group: Any, data: dict[str, Any], virtual_stages: int) -> Any:
    """Return times of single microbatches as given, with scalars spread and what they leave out filled in."""
    if not isinstance(group, dict):
        return group
    group = {field: value for field, value in group.items() if value is not None}
    filled = {field: data[field] for field in TIMES if data.get(field) is not None} | group
    if "recompute_ticks" not in group and data.get("recompute_ticks") == data.get("forward_ticks"):
        filled["recompute_ticks"] = filled.get("forward_ticks")
    return {f: (v,) * virtual_stages if f in TIMES and isinstance(v, int) else v for f, v in filled.items()}


class RouteFields(SizeFields):
    """Declare the fields that tell microbatches apart: the virtual stages that they pass, and times of their own."""

    routes: Annotated[tuple[Route, ...] | None, Facts(Axis.NONE, Unit.NONE)] = Field(
        None,
        exclude_if=is_none,
        description="Where microbatches pass different virtual stages (two directions, each with replicas of its own): "
        "each virtual stage is on one route. null: all pass all virtual stages.",
    )
    microbatch_times: Annotated[
        tuple[MicrobatchTimes, ...] | None, Facts(Axis.NONE, Unit.TICKS, cut=CutRule.DIVIDED, scales=True)
    ] = Field(
        None,
        exclude_if=is_none,
        description="Times of microbatches whose ops take other times than the others'; each microbatch at most once.",
    )

    def check_placement(self) -> None:
        """Refuse a placement or routes that do not hold together.

        Raises:
            ValueError: A stage does not exist or holds nothing, or a route is at fault.
        """
        for virtual_stage, stage in enumerate(self.stage_of):
            if not 0 <= stage < self.stages:
                raise ValueError(f"stage_of[{virtual_stage}] = {stage} is no stage; stages are 0 to {self.stages - 1}")
        fault = None if self.routes is None else route_fault(self.routes, self.virtual_stages, self.microbatches)
        if fault is not None:
            raise ValueError(fault)
        idle = sorted(set(range(self.stages)) - set(self.stage_of))
        if idle:
            raise ValueError(f"stage {idle[0]} holds no virtual stage; give each stage at least one in stage_of")

    @property
    def is_linear(self) -> bool:
        """Return whether there is one route over one virtual stage a stage, in order."""
        return self.routes is None and self.stage_of == tuple(range(self.stages))

    def virtual_stages_of(self, stage: int) -> tuple[int, ...]:
        """Return the virtual stages that ``stage`` holds, in forward order."""
        return tuple(v for v, held_by in enumerate(self.stage_of) if held_by == stage)

    @property
    def alike(self) -> bool:
        """Return whether all microbatches pass the same virtual stages and take the same times."""
        return self.routes is None and self.microbatch_times is None

    @property
    def replicas(self) -> int:
        """Return how many times the stages together hold the model's parameters: once for each route."""
        return 1 if self.routes is None else len(self.routes)

    def previous_of(self, virtual_stage: int) -> int | None:
        """Return the virtual stage before this one on its route; ``None``: it is the first."""
        return self._neighbours.before[virtual_stage]

    def next_of(self, virtual_stage: int) -> int | None:
        """Return the virtual stage after this one on its route; ``None``: it is the last."""
        return self._neighbours.after[virtual_stage]

    def goes_to(self, kind: Kind, virtual_stage: int) -> int | None:
        """Return the virtual stage to which an F or SEND_F, else a gradient, hands on; ``None``: the route ends."""
        return (self.next_of if kind in (Kind.F, Kind.SEND_F) else self.previous_of)(virtual_stage)

    def microbatches_of(self, virtual_stage: int) -> range:
        """Return the microbatches that pass a virtual stage."""
        return self._neighbours.passing[virtual_stage]

    @property
    def _neighbours(self) -> Neighbours:
        return neighbours(self.routes, self.virtual_stages, self.microbatches)

    def passes(self) -> Iterator[tuple[int, int]]:
        """Yield every virtual stage with every microbatch that passes it."""
        return ((v, microbatch) for v in range(self.virtual_stages) for microbatch in self.microbatches_of(v))

    def classes(self) -> tuple[tuple[int, ...], ...]:
        """Return the microbatches, those together that pass the same virtual stages and take the same times."""
        return classes(self.routes, self.microbatch_times, self.microbatches)
