"""Schedules of long steps by way of short ones whose middle repeats [D6] (models/formulation.md).

The model does not grow with the number of microbatches. A schedule that is found becomes one of the whole step; that
none is found says nothing of the whole step, so nothing here proves a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from zbopt.bounds import lower_bound
from zbopt.bounds.relax import whole
from zbopt.cpsat.cuts import cuts_of
from zbopt.cpsat.formulation import Formulation, Rules
from zbopt.graph import Key, TaskGraph, expand
from zbopt.graph.memory import with_microbatches
from zbopt.problem.instance import Instance, Kind
from zbopt.timing.repeat import in_flight

_ENDS = (Kind.W, Kind.BW, Kind.G, Kind.O)
"""Kinds that nothing but an optimizer follows: the last end of a step is one of theirs."""

_MEASURED_STRIDES = 8
"""Strides over which the growth of the bound is averaged into the least period.

More make the period exacter, where the bound grows unevenly. Not measured; chosen.
"""


@dataclass(frozen=True)
class Shape:
    """Hold a short step whose microbatches ``first`` to ``last`` repeat every ``stride``.

    The long step has ``inserted`` strides more.
    ``least_period`` is the least time that ``stride`` microbatches can take in the long run, in ticks.
    """

    graph: TaskGraph
    first: int
    last: int
    stride: int
    inserted: int
    least_period: int


def repeating_shape(instance: Instance, rounds: int = 1) -> Shape | None:
    """Return the short step by which ``instance`` may repeat; ``None`` where none can be given.

    That is where it has too few microbatches or several virtual stages a stage, or where [D6] does not understand it.
    Where memory holds fewer microbatches than there are stages, they go in groups that fill it: the stride is a group.

    Args:
        instance: The long step.
        rounds: How often memory is filled before the run, and after it.
    """
    if not instance.is_linear or "D6" not in cuts_of(instance):
        return None
    held = in_flight(instance)
    stride = held if held < instance.stages else 1
    least = (2 * rounds + 1) * held + stride
    if instance.microbatches < least:
        return None
    inserted = (instance.microbatches - least) // stride
    short = instance.microbatches - inserted * stride
    longer = with_microbatches(instance, instance.microbatches + _MEASURED_STRIDES * stride)
    period = (lower_bound(longer).value - lower_bound(instance).value) // _MEASURED_STRIDES
    graph = expand(with_microbatches(instance, short))
    return Shape(graph, rounds * held, short - rounds * held - 1, stride, inserted, max(1, period))


class PeriodicFormulation(Formulation):
    """Ask for a schedule of a short step which makes one of the long step that takes at most ``horizon`` ticks."""

    def __init__(self, shape: Shape, horizon: int) -> None:
        self.shape = shape
        short_horizon = horizon - shape.inserted * shape.least_period
        super().__init__(whole(shape.graph), short_horizon, minimise=False, rules=Rules(one_order=True))
        slack = max(0, short_horizon - lower_bound(shape.graph.instance).value)
        longest = shape.least_period + (slack // shape.inserted if shape.inserted else slack)
        self.period = self.model.new_int_var(shape.least_period, longest, "period")
        self._run_repeats()
        self._long_step_fits(horizon)

    def _run_repeats(self) -> None:
        """[D6] Make each op of the repeating middle a translate of the one a stride before."""
        for (kind, where, microbatch, _), task in self.graph.index.items():
            if microbatch is None or not self.shape.first <= microbatch <= self.shape.last - self.shape.stride:
                continue
            later = self.graph.index[Key(kind, where, microbatch + self.shape.stride)]
            self.model.add(self.start[later] == self.start[task] + self.period)
        for (where, microbatch, _), choice in self.graph.policy_of.items():
            if self.shape.first <= microbatch <= self.shape.last - self.shape.stride:
                later = self.graph.policy_of[where, microbatch + self.shape.stride, 0]
                for literal, same in zip(self.option[choice], self.option[later], strict=True):
                    self.model.add(literal == same)

    def _long_step_fits(self, horizon: int) -> None:
        """[O1] Keep the last end within the horizon, with the strides put in that were left out."""
        for i, task in enumerate(self.graph.tasks):
            if task.kind in _ENDS:
                constraint = self.model.add(self._end(i) + self.shape.inserted * self.period <= horizon)
                if literals := self._presence(i):
                    constraint.only_enforce_if(literals)
