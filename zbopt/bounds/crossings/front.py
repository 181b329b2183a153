"""Fronts: the states after each microbatch for which no other state of the same microbatch stands in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from zbopt.bounds.crossings.moves import Moves, State
from zbopt.bounds.crossings.pipe import Pipe

_MOST_STATES = 12_000
"""States of a layer before any is left out; to compare more takes longer than it is worth. Not measured; chosen."""

Layer = dict[State, int]
"""States after one and the same microbatch, and their times in ticks."""

_NEVER = -(2**40)
"""Ready time of a microbatch that has gone on: no time is earlier."""


@dataclass
class Front:
    """Hold the best states of ``pipe``, layer by layer: they tell what a step takes at least.

    ``grow`` adds layers until they repeat. ``layers[i]`` belongs to i + 1 microbatches; ``came_from`` is the state
    before, for every state but those of the first layer.
    """

    pipe: Pipe
    layers: list[Layer] = field(default_factory=list)
    came_from: list[dict[State, State]] = field(default_factory=list)
    repeats: tuple[int, int] | None = None
    expanded: int = 0
    _moves: Moves = field(init=False)
    _seen: dict[frozenset[tuple[State, int]], int] = field(default_factory=dict)
    _next: dict[State, list[tuple[State, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._moves = Moves(self.pipe)
        time, state = self._moves.first()
        self.layers.append({state: time})
        self.came_from.append({})

    def grow(self, microbatches: int, stop: Callable[[], bool]) -> bool:
        """Add layers up to ``microbatches``, or until they repeat; return whether that was before ``stop()``."""
        while len(self.layers) < microbatches and self.repeats is None:
            layer: Layer = {}
            origin: dict[State, State] = {}
            for state, time in self.layers[-1].items():
                if stop() or len(layer) > _MOST_STATES:
                    return False
                for after, later in self._after(state):
                    if layer.get(after, time + later) >= time + later:
                        layer[after] = time + later
                        origin[after] = state
            best = undominated(self._moves, layer, stop)
            self.layers.append(best)
            self.came_from.append({state: origin[state] for state in best})
            self._notice_repetition()
        return True

    def _after(self, state: State) -> list[tuple[State, int]]:
        """Return the states after the next microbatch, each with its least time; remembered, since layers repeat."""
        found = self._next.get(state)
        if found is None:
            best: Layer = {}
            for raw in self._moves.successors(state):
                time, after = self._moves.settled(raw)
                if best.get(after, time) >= time:
                    best[after] = time
            found = self._next[state] = list(best.items())
            self.expanded += 1
        return found

    def _notice_repetition(self) -> None:
        """Set ``repeats`` if the last layer is an earlier one some time later."""
        layer = self.layers[-1]
        base = min(layer.values())
        mark = frozenset((state, time - base) for state, time in layer.items())
        earlier = self._seen.setdefault(mark, len(self.layers) - 1)
        if earlier < len(self.layers) - 1:
            self.repeats = earlier, len(self.layers) - 1

    def next_start(self, layer: int) -> int:
        """Return a time before which no F can start after ``layer + 1`` others."""
        return min(self.layers[layer].values())

    def least(self, microbatches: int) -> int:
        """Return the least value of a step of ``microbatches``, for which the layers grown so far are enough."""
        layer, later = self.layer_of(microbatches)
        return later + min(time + self._moves.least_end(state) for state, time in self.layers[layer].items())

    def layer_of(self, microbatches: int) -> tuple[int, int]:
        """Return the layer of ``microbatches``, and what to add to its times: it may be one that repeats.

        Raises:
            ValueError: There are not enough layers yet.
        """
        layer = microbatches - 1
        if layer < len(self.layers):
            return layer, 0
        if self.repeats is None:
            raise ValueError(f"{len(self.layers)} layers say nothing of {microbatches} microbatches; let them grow")
        first, again = self.repeats
        rounds, rest = divmod(layer - first, again - first)
        return first + rest, rounds * (self.next_start(again) - self.next_start(first))

    def path(self, microbatches: int) -> list[tuple[State, State]]:
        """Return the states of a best step of so many microbatches, each before and after it was settled."""
        layer, _ = self.layer_of(microbatches)
        last = min(self.layers[layer], key=lambda state: self.layers[layer][state] + self._moves.least_end(state))
        states = [last]
        for n in range(microbatches - 1, 0, -1):
            states.append(self.came_from[self._origin(n)][states[-1]])
        states.reverse()
        return [(states[0], states[0]), *((self._raw(*pair), pair[1]) for pair in pairwise(states))]

    def _origin(self, layer: int) -> int:
        """Return the layer that tells where the states of ``layer`` come from."""
        if layer < len(self.layers):
            return layer
        assert self.repeats is not None
        first, again = self.repeats
        return first + 1 + (layer - first - 1) % (again - first)

    def _raw(self, state: State, after: State) -> State:
        """Return the best successor of ``state`` that settles to ``after``."""
        times = [(self._moves.settled(raw), raw) for raw in self._moves.successors(state)]
        return min((time, raw) for (time, settled), raw in times if settled == after)[1]


def undominated(moves: Moves, layer: Layer, stop: Callable[[], bool]) -> Layer:
    """Return ``layer`` without the states that another one can follow op by op, at the same times or earlier.

    Once ``stop()`` is true it compares no more, and leaves the rest in.
    """
    states = list(layer)
    if len(states) < 2:
        return layer
    states = _pareto(states, layer)
    table = _Table(moves.pipe, states, [layer[state] for state in states], [moves.climbs(state) for state in states])
    alive = np.ones(len(states), dtype=bool)
    for one in table.promising():
        if stop():
            break
        if alive[one]:
            others = np.flatnonzero(alive)
            alive[table.no_later(one, others[others != one])] = False
    return {state: layer[state] for state, is_alive in zip(states, alive, strict=True) if is_alive}


def _pareto(states: Sequence[State], layer: Layer) -> list[State]:
    """Keep of states that have decided the same those that no other is as early as in everything."""
    alike: dict[tuple[int, ...], list[State]] = {}
    for state in states:
        alike.setdefault((state.waiting, *(stage for stage, _ in state.rising)), []).append(state)
    early = []
    for group in alike.values():
        times = np.array([(*state.free, *(ready for _, ready in state.rising)) for state in group])
        times += np.array([layer[state] for state in group])[:, None]
        order = np.argsort(times.sum(axis=1), kind="stable")
        best: list[int] = []
        for n in order:
            if not best or not (times[best] <= times[n]).all(axis=1).any():
                best.append(int(n))
        early += [group[n] for n in best]
    return early


class _Table:
    """Hold states of one layer as arrays; rising microbatches are aligned at the last, absent ones have stage -1."""

    def __init__(
        self, pipe: Pipe, states: Sequence[State], times: Sequence[int], climbs: Sequence[list[list[int]]]
    ) -> None:
        self.pipe = pipe
        self.backward = np.array(pipe.backward)
        count, stages = len(states), len(pipe.forward)
        most = max(len(state.rising) for state in states)
        at = np.array(times)
        self.free = np.array([state.free for state in states]) + at[:, None]
        self.left = np.array([state.waiting + len(state.rising) for state in states])
        self.stage = np.full((count, most), -1)
        self.ready = np.full((count, most, stages + 1), _NEVER)
        for n, of_state in enumerate(climbs):
            for j, climb in enumerate(of_state, most - len(of_state)):
                self.stage[n, j] = len(climb) - 1
                self.ready[n, j, 1 : len(climb) + 1] = climb
        self.ready += np.where(self.ready > _NEVER, at[:, None, None], 0)

    def promising(self) -> NDArray[np.intp]:
        """Return all states, those first that are likely to be as good as many others."""
        early = self.free.sum(axis=1) + np.maximum(self.ready, 0).sum(axis=(1, 2))
        return np.argsort(early, kind="stable")

    def no_later(self, one: int, others: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of ``others`` that can be followed from ``one``.

        It does first what they have done and it has not ("states left out").
        """
        reached = np.minimum(self.stage[one], self.stage[others])
        each = np.arange(reached.shape[1])
        in_time = self.ready[one, each, reached + 1] <= self.ready[others[:, None], each, reached + 1]
        good = (in_time | (reached < 0)).all(axis=1)
        others, reached = others[good], reached[good]
        if not len(others):
            return others
        free = np.repeat(self.free[one][None], len(others), axis=0)
        stages = np.arange(free.shape[1])
        for j in np.flatnonzero(self.stage[one] >= 0):
            start = self.ready[one, j, 1:]
            does = (stages > reached[:, j, None]) & (stages <= self.stage[one, j])
            does[:, 0] = False
            free = np.where(does, np.maximum(free, start + self.backward), free)
            first = reached[:, j] < 0
            free[first, 0] = np.maximum(free[first, 0], start[0]) + self.backward[0]
        if self.pipe.waiting:
            free[:, 0] += np.maximum(0, self.left[one] - self.left[others]) * self.pipe.weight[0]
        followed: NDArray[np.intp] = others[(free <= self.free[others]).all(axis=1)]
        return followed
