"""Asks for schedules of long steps by way of short ones whose middle repeats [D6] (models/formulation.md).

The model does not grow with the number of microbatches. A schedule that is found goes for the whole step; that none is
found says nothing of the whole step, so nothing here proves a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from zbopt.bounds import lower_bound
from zbopt.bounds.relax import whole
from zbopt.cpsat.formulation import Formulation, Rules
from zbopt.graph import Key, TaskGraph, expand
from zbopt.graph.memory import with_microbatches
from zbopt.problem.instance import Instance, Kind
from zbopt.timing.repeat import in_flight

_ENDS = (Kind.W, Kind.BW, Kind.G, Kind.O)
"""Kinds that nothing but an optimizer follows: the last end of a step is one of theirs."""


@dataclass(frozen=True)
class Shape:
    """A short step: its microbatches ``first`` to ``last`` repeat every ``stride``; ``inserted`` strides are left out.

    ``least_period`` is the least time that ``stride`` microbatches can take in the long run, in ticks.
    """

    graph: TaskGraph
    first: int
    last: int
    stride: int
    inserted: int
    least_period: int


def shape(instance: Instance, rounds: int = 1) -> Shape | None:
    """How ``instance`` may repeat; ``None`` where it has too few microbatches, or several virtual stages a stage.

    Memory for fewer microbatches than stages makes them go in groups that fill it: the group is the stride.

    Args:
        instance: The long step.
        rounds: How often memory is filled before the run, and after it.
    """
    if not instance.is_simple:
        return None
    held = in_flight(instance)
    stride = held if held < instance.stages else 1
    least = (2 * rounds + 1) * held + stride
    if not (instance.is_linear and instance.alike) or instance.microbatches < least:
        return None
    inserted = (instance.microbatches - least) // stride
    short = instance.microbatches - inserted * stride
    longer = with_microbatches(instance, instance.microbatches + 8 * stride)
    period = (lower_bound(longer).value - lower_bound(instance).value) // 8
    graph = expand(with_microbatches(instance, short))
    return Shape(graph, rounds * held, short - rounds * held - 1, stride, inserted, max(1, period))


class PeriodicFormulation(Formulation):
    """Asks for a short step whose long step takes at most ``horizon`` ticks."""

    def __init__(self, of: Shape, horizon: int) -> None:
        self.of = of
        short_horizon = horizon - of.inserted * of.least_period
        super().__init__(whole(of.graph), short_horizon, minimise=False, rules=Rules(one_order=True))
        slack = max(0, short_horizon - lower_bound(of.graph.instance).value)
        longest = of.least_period + (slack // of.inserted if of.inserted else slack)
        self.period = self.model.new_int_var(of.least_period, longest, "period")
        self._run_repeats()
        self._long_step_fits(horizon)

    def _run_repeats(self) -> None:
        """[D6] Each op of the run is a translate of the one a stride before."""
        for (kind, where, microbatch, _), task in self.graph.index.items():
            if microbatch is None or not self.of.first <= microbatch <= self.of.last - self.of.stride:
                continue
            later = self.graph.index[Key(kind, where, microbatch + self.of.stride)]
            self.model.add(self.start[later] == self.start[task] + self.period)
        for (where, microbatch, _), choice in self.graph.policy_of.items():
            if self.of.first <= microbatch <= self.of.last - self.of.stride:
                later = self.graph.policy_of[where, microbatch + self.of.stride, 0]
                for literal, same in zip(self.option[choice], self.option[later], strict=True):
                    self.model.add(literal == same)

    def _long_step_fits(self, horizon: int) -> None:
        """[O1] The last end, with the strides put in that were left out, stays within the horizon."""
        for i, task in enumerate(self.graph.tasks):
            if task.kind in _ENDS:
                constraint = self.model.add(self._end(i) + self.of.inserted * self.period <= horizon)
                if literals := self._presence(i):
                    constraint.only_enforce_if(literals)
