"""A repeating kernel: the ops of a few microbatches in cyclic order on each stage, and the least period of that order.

The period is the largest mean of a circuit: work and lags around it over the periods that it spans (Howard's policy
iteration, as for timed event graphs: Cochet-Terrasson et al. 1998). A move puts one op elsewhere on its stage.
Potentials say whether a period stays possible; a move raises them only where it must, so that most moves touch few ops.
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
class KernelState:
    """Hold the orders and times of a ``Kernel``, to go back to."""

    period: float
    at: list[float]
    circuit: list[int]
    next: list[int]
    before: list[int]
    periods: list[int]
    live: list[int]


class Kernel:
    """Hold cyclic orders of ``count`` microbatches a period; node ``task * count + microbatch`` is a task of ``one``.

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
        for i in nodes:
            task, r = divmod(i, count)
            self.outputs[i] = [(j * count + r, self.ticks[i] + lag) for j, lag in one.successors[task]]
            self.inputs[i] = [(j * count + r, self.ticks[j * count + r] + lag) for j, lag in one.predecessors[task]]
        self.taken, self.released, self.live = [0] * len(nodes), [0] * len(nodes), [0] * len(nodes)
        self.caps = one.caps or (0,) * one.instance.stages
        self.at = [starts[i] for i in nodes]
        self.next, self.before, self.periods = [0] * len(nodes), [0] * len(nodes), [0] * len(nodes)
        self._arrange(one)
        self.circuit: list[int] = []

    def _arrange(self, one: TaskGraph) -> None:
        """Set the cyclic order of the starts on each stage, and the memory that is live at each op."""
        count, cycle = self.count, [int(at // self.period) for at in self.at]
        place = [0] * len(cycle)
        for tasks in one.resources:
            nodes = [i * count + r for i in tasks for r in range(count)]
            nodes.sort(key=lambda i: self.at[i] - cycle[i] * self.period)
            for n, i in enumerate(nodes):
                after = nodes[(n + 1) % len(nodes)]
                place[i], self.next[i], self.before[after] = n, after, i
                self.periods[i] = cycle[i] - cycle[after] + (n + 1 == len(nodes))
        for residence in one.residences:
            for r in range(count):
                first, last = residence.first * count + r, residence.last * count + r
                self.taken[first] += residence.amount
                self.released[last] += residence.amount
                for i in self._around(first):
                    copies = cycle[last] - cycle[first] - (place[first] > place[i]) + (place[last] >= place[i])
                    self.live[i] += residence.amount * copies

    def _around(self, node: int) -> Iterator[int]:
        """Yield the nodes of a stage, from ``node`` on."""
        yield node
        other = self.next[node]
        while other != node:
            yield other
            other = self.next[other]

    def fits(self) -> bool:
        """Return whether memory suffices."""
        return all(not taken or self.live[i] <= self.caps[self.stage[i]] for i, taken in enumerate(self.taken))

    def move(self, node: int, steps: int) -> int:
        """Move ``node`` so many steps later, or where below 0 earlier, as far as memory and its class allow.

        Times are not looked at.

        Returns:
            The steps that it went, below 0 if earlier.
        """
        went = 0
        while went < steps and self._swap(node, self.next[node]):
            went += 1
        while went > steps and self._swap(self.before[node], node):
            went -= 1
        return went

    def _swap(self, one: int, other: int) -> bool:
        """Swap ``one`` and ``other``, which follows it, and return whether memory and their classes allow that."""
        if one // self.count == other // self.count:
            return False
        more, less = self.released[one] - self.taken[one], self.taken[other] - self.released[other]
        cap, live = self.caps[self.stage[one]], self.live
        if (self.taken[other] and live[other] + more > cap) or (self.taken[one] and live[one] + less > cap):
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
        """Move ``node`` if the period becomes at most ``longer`` ticks longer, and return whether it moved.

        Where the longest circuit stays and the period is still possible, the period stays.
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
        """Return starts at ``period`` after a move of ``node``; ``None``: the least period is longer.

        Only circuits through ``node`` can be longer than before: a move makes no others.
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
        """Find the least period with its starts and circuit; return ``False`` where the order is a deadlock."""
        arcs = [self._arcs(i) for i in range(len(self.at))]
        at, period, last = self.at, self.period, -1.0
        chosen = [max(into, key=lambda arc: at[arc[0]] + arc[1] - arc[2] * period) for into in arcs]
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
        """Return the arcs into ``node``: from all that it waits for."""
        previous = self.before[node]
        arcs: list[Arc] = [(previous, self.ticks[previous], self.periods[previous])]
        return arcs + [(i, wait, 0) for i, wait in self.inputs[node]]

    def state(self) -> KernelState:
        """Return what ``restore`` brings back."""
        return KernelState(
            self.period, self.at, self.circuit, self.next[:], self.before[:], self.periods[:], self.live[:]
        )

    def restore(self, state: KernelState) -> None:
        """Go back to an earlier state."""
        self.period, self.at, self.circuit = state.period, state.at, state.circuit
        self.next, self.before = state.next[:], state.before[:]
        self.periods, self.live = state.periods[:], state.live[:]


def _improved(chosen: list[Arc], arcs: list[list[Arc]], at: list[float], period: float) -> bool:
    """Choose for each node the arc that it waits for longest, and return whether any was chosen anew."""
    better = False
    for i, into in enumerate(arcs):
        before, ticks, periods = chosen[i]
        most = at[before] + ticks - periods * period + _TINY
        for arc in into:
            if (value := at[arc[0]] + arc[1] - arc[2] * period) > most:
                chosen[i], most, better = arc, value, True
    return better


def _longest(chosen: list[Arc]) -> tuple[float, list[int]] | None:
    """Return mean and nodes, the last first, of the longest circuit of the chosen arcs.

    ``None``: a circuit spans no period, which is a deadlock.
    """
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
    """Return potentials along the chosen arcs from the circuit on."""
    values: list[float | None] = [None] * len(chosen)
    values[circuit[0]] = 0.0
    for first in (*reversed(circuit), *range(len(chosen))):
        path, i, on_path = [], first, set()
        while values[i] is None:
            if i in on_path:
                values[i] = _NEVER
                break
            path.append(i)
            on_path.add(i)
            i = chosen[i][0]
        for i in reversed(path):
            if values[i] is None:
                before, ticks, periods = chosen[i]
                values[i] = (values[before] or 0.0) + ticks - periods * period
    return [value or 0.0 for value in values]
