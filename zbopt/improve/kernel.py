"""A repeating kernel: the ops of a few microbatches in cyclic order on each stage, and the least period of that order.

The period is the largest mean of a circuit: work and lags around it over the periods that it spans (Howard's policy
iteration, as for timed event graphs: Cochet-Terrasson et al. 1998). A move puts one op elsewhere on its stage. Whether
a period stays possible is told by potentials, which a move only raises where it must, so that most moves touch few ops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zbopt.graph import TaskGraph

Arc = tuple[int, float, int]
"""(node, ticks from the start of one node to that of the other, periods in between)."""
_TINY = 1e-6
"""Ticks; less is rounding."""
_NEVER = -1e15
"""Potential of what hangs on a circuit that is not the longest."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The state of a ``Kernel``."""

    period: float
    at: list[float]
    circuit: list[int]
    next: list[int]
    before: list[int]
    periods: list[int]
    live: list[int]


class Kernel:
    """Cyclic orders of ``count`` microbatches a period; node ``task * count + microbatch`` is a task of ``one``.

    Args:
        one: Task graph of one microbatch, without choices, joins or links.
        count: Microbatches a period.
        starts: When each node starts in some repetition that may overlap.
        period: Of that repetition, in ticks.
    """

    def __init__(self, one: TaskGraph, count: int, starts: Mapping[int, float], period: float) -> None:
        nodes = range(len(one.tasks) * count)
        self.count, self.period = count, period
        self.stage = [one.tasks[i // count].stage for i in nodes]
        self.ticks = [one.tasks[i // count].duration_ticks for i in nodes]
        self.outputs: list[list[tuple[int, int]]] = [[] for _ in nodes]
        self.inputs: list[list[tuple[int, int]]] = [[] for _ in nodes]
        for edge in one.precedences:
            ticks = one.tasks[edge.before].duration_ticks + edge.lag_ticks
            for r in range(count):
                self.outputs[edge.before * count + r].append((edge.after * count + r, ticks))
                self.inputs[edge.after * count + r].append((edge.before * count + r, ticks))
        self.takes, self.gives, self.live = [0] * len(nodes), [0] * len(nodes), [0] * len(nodes)
        self.caps = one.caps or (0,) * one.instance.stages
        self.at = [starts[i] for i in nodes]
        self.next, self.before, self.periods = [0] * len(nodes), [0] * len(nodes), [0] * len(nodes)
        self._arrange(one)
        self.circuit: list[int] = []

    def _arrange(self, one: TaskGraph) -> None:
        """The cyclic order of the starts on each stage, and what is live at each op."""
        count, turn = self.count, [int(at // self.period) for at in self.at]
        place = [0] * len(turn)
        for row in one.resources:
            nodes = [i * count + r for i in row for r in range(count)]
            nodes.sort(key=lambda i: self.at[i] - turn[i] * self.period)
            for n, i in enumerate(nodes):
                after = nodes[(n + 1) % len(nodes)]
                place[i], self.next[i], self.before[after] = n, after, i
                self.periods[i] = turn[i] - turn[after] + (n + 1 == len(nodes))
        for held in one.residences:
            for r in range(count):
                first, last = held.first * count + r, held.last * count + r
                self.takes[first] += held.amount
                self.gives[last] += held.amount
                for i in self._around(first):
                    there = turn[last] - turn[first] - (place[first] > place[i]) + (place[last] >= place[i])
                    self.live[i] += held.amount * there

    def _around(self, node: int) -> Iterator[int]:
        """The nodes of a stage, from ``node`` on."""
        yield node
        other = self.next[node]
        while other != node:
            yield other
            other = self.next[other]

    def fits(self) -> bool:
        """Whether memory suffices."""
        return all(not takes or self.live[i] <= self.caps[self.stage[i]] for i, takes in enumerate(self.takes))

    def move(self, node: int, steps: int) -> int:
        """Move ``node`` so many steps later, or where below 0 earlier, as far as memory and its class allow.

        Returns the steps that it went; times are not looked at.
        """
        went = 0
        while went < steps and self._swap(node, self.next[node]):
            went += 1
        while went > steps and self._swap(self.before[node], node):
            went -= 1
        return went

    def _swap(self, one: int, other: int) -> bool:
        """Let ``other`` come before ``one``, which it follows; ``False`` where memory or its class forbids it."""
        if one // self.count == other // self.count:
            return False
        more, less = self.gives[one] - self.takes[one], self.takes[other] - self.gives[other]
        cap, live = self.caps[self.stage[one]], self.live
        if (self.takes[other] and live[other] + more > cap) or (self.takes[one] and live[one] + less > cap):
            return False
        live[other] += more
        live[one] += less
        first, last = self.before[one], self.next[other]
        periods, between = self.periods, self.periods[one]
        periods[first] += between
        periods[one] = between + periods[other]
        periods[other] = -between
        self.next[first], self.next[other], self.next[one] = other, one, last
        self.before[other], self.before[one], self.before[last] = first, other, one
        return True

    def try_move(self, node: int, steps: int, longer: float) -> bool:
        """Move ``node`` if the period becomes at most so much longer; whether it moved.

        Where the longest circuit stays and the period is possible, it is the period still.
        """
        stays = {node, self.before[node], self.next[node]}.isdisjoint(self.circuit)
        went = self.move(node, steps)
        if not went:
            return False
        at = self.potentials(node, self.period + longer)
        if at is None:
            self.move(node, -went)
            return False
        if stays and (as_short := self.potentials(node, self.period)) is not None:
            self.at = as_short
            return True
        self.at, self.period = at, self.period + longer
        return self.settle()

    def potentials(self, node: int, period: float) -> list[float] | None:
        """Starts at ``period`` after a move of ``node``; ``None``: its period is longer.

        Only circuits through ``node`` can be longer than before: they are the only ones that a move makes.
        """
        shift, length = period - self.period, self.period
        at = self.at[:] if not shift else [a + (a // length) * shift for a in self.at]
        ticks, after, periods, outputs = self.ticks, self.next, self.periods, self.outputs
        previous = self.before[node]
        at[node] = max(at[node], at[previous] + ticks[previous] - periods[previous] * period)
        queue = deque((node,))
        while queue:
            i = queue.popleft()
            start, j = at[i], after[i]
            least = start + ticks[i] - periods[i] * period
            if least > at[j] + _TINY:
                if j == node:
                    return None
                at[j] = least
                queue.append(j)
            for j, wait in outputs[i]:
                if start + wait > at[j] + _TINY:
                    if j == node:
                        return None
                    at[j] = start + wait
                    queue.append(j)
        return at

    def settle(self) -> bool:
        """Set ``at``, ``period`` and ``circuit`` to those of the least period; ``False`` where the order deadlocks."""
        arcs = [self._arcs(i) for i in range(len(self.at))]
        at, period, last = self.at, self.period, -1.0
        chosen = [max(row, key=lambda arc: at[arc[0]] + arc[1] - arc[2] * period) for row in arcs]
        while True:
            found = _longest(chosen)
            if found is None:
                return False
            period, circuit = found
            at = _values(chosen, circuit, period)
            if not _improved(chosen, arcs, at, period) or period < last:
                break
            last = period
        self.at, self.period, self.circuit = at, period, circuit
        return True

    def _arcs(self, node: int) -> list[Arc]:
        """What ``node`` waits for."""
        previous = self.before[node]
        arcs: list[Arc] = [(previous, self.ticks[previous], self.periods[previous])]
        return arcs + [(i, wait, 0) for i, wait in self.inputs[node]]

    def orders(self) -> Orders:
        """What ``restore`` brings back."""
        return Orders(self.period, self.at, self.circuit, self.next[:], self.before[:], self.periods[:], self.live[:])

    def restore(self, orders: Orders) -> None:
        """Go back to an earlier order."""
        self.period, self.at, self.circuit = orders.period, orders.at, orders.circuit
        self.next, self.before = orders.next[:], orders.before[:]
        self.periods, self.live = orders.periods[:], orders.live[:]


def _improved(chosen: list[Arc], arcs: list[list[Arc]], at: list[float], period: float) -> bool:
    """Choose for each node the arc that it waits for longest; whether any was chosen anew."""
    better = False
    for i, row in enumerate(arcs):
        before, ticks, periods = chosen[i]
        most = at[before] + ticks - periods * period + _TINY
        for arc in row:
            if (value := at[arc[0]] + arc[1] - arc[2] * period) > most:
                chosen[i], most, better = arc, value, True
    return better


def _longest(chosen: list[Arc]) -> tuple[float, list[int]] | None:
    """Mean and nodes of the longest circuit of the chosen arcs, the last first; ``None``: one spans no period."""
    seen = [-1] * len(chosen)
    best: tuple[float, list[int]] | None = None
    for first in range(len(chosen)):
        i = first
        while seen[i] < 0:
            seen[i] = first
            i = chosen[i][0]
        if seen[i] != first:
            continue
        nodes, ticks, periods = [i], chosen[i][1], chosen[i][2]
        while (j := chosen[nodes[-1]][0]) != i:
            nodes.append(j)
            ticks += chosen[j][1]
            periods += chosen[j][2]
        if periods <= 0:
            return None
        if best is None or ticks / periods > best[0]:
            best = ticks / periods, nodes
    return best


def _values(chosen: list[Arc], circuit: list[int], period: float) -> list[float]:
    """Potentials along the chosen arcs from the circuit on."""
    values: list[float | None] = [None] * len(chosen)
    values[circuit[0]] = 0.0
    for first in (*reversed(circuit), *range(len(chosen))):
        way, i, on_way = [], first, set()
        while values[i] is None:
            if i in on_way:
                values[i] = _NEVER
                break
            way.append(i)
            on_way.add(i)
            i = chosen[i][0]
        for i in reversed(way):
            if values[i] is None:
                before, ticks, periods = chosen[i]
                values[i] = (values[before] or 0.0) + ticks - periods * period
    return [value or 0.0 for value in values]
