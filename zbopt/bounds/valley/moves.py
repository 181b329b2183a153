"""The next op of each state, in the order of starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zbopt.bounds.valley.kept import Integers, Kept
from zbopt.bounds.valley.layers import NEVER, Layer


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """How states of ``kept`` follow each other. Tables by place end with a row for microbatches not under way.

    Ops are numbered: the next one of each microbatch under way, the first of a new microbatch, a W of each full stage.

    Attributes:
        kept: The problem.
        stage: Number of the op's stage among the kept ones.
        ticks: Time of the op.
        takes: Whether it is an F that takes memory of a full stage.
        full_of: By kept stage, its number among the full ones, or -1.
        weights: Time of W, by full stage.
        full_stages: Numbers of the full stages among the kept ones.
    """

    kept: Kept
    stage: Integers
    ticks: Integers
    takes: NDArray[np.bool_]
    full_of: Integers
    weights: Integers
    full_stages: Integers

    @classmethod
    def of(cls, kept: Kept) -> Moves:
        """The moves of ``kept``."""
        full_of = np.full(len(kept.stages), -1)
        full_stages = np.array([full.stage for full in kept.full])
        full_of[full_stages] = range(len(kept.full))
        return cls(
            kept,
            stage=np.append(kept.stage, 0),
            ticks=np.append(kept.ticks, 0),
            takes=np.append(kept.forward & (full_of[kept.stage] >= 0), False),
            full_of=full_of,
            weights=np.array([full.weight for full in kept.full]),
            full_stages=full_stages,
        )

    def after(self, layer: Layer, *, all_ways: bool) -> Layer:
        """All states that follow those of ``layer`` by one op, each as early as its stage and its input allow.

        No op that takes no memory is passed by if it could end before the start of the one that is begun; with
        ``all_ways`` it is.
        """
        starts = self._starts(layer)
        before = np.full(layer.count, NEVER) if all_ways else self._harmless_ends(layer, starts)
        states, ops = np.nonzero(starts < before[:, None])
        later = self._begin(layer.take(states), ops, starts[states, ops])
        return later.take(self._fits_later(later)) if self.kept.backward else later

    def _harmless_ends(self, layer: Layer, starts: Integers) -> Integers:
        """When the first op that takes no memory could end, by state."""
        slots = layer.place.shape[1]
        ticks, takes = self.ticks[layer.place], self.takes[layer.place]
        ends = np.empty_like(starts)
        ends[:, :slots] = np.where(takes, NEVER, starts[:, :slots] + ticks)
        ends[:, slots] = NEVER if self.takes[0] else starts[:, slots] + self.ticks[0]
        ends[:, slots + 1 :] = starts[:, slots + 1 :] + self.weights
        first: Integers = np.minimum(ends.min(axis=1), NEVER)
        return first

    def _starts(self, layer: Layer) -> Integers:
        """By state and op its earliest start, ``NEVER`` where it may not be the next."""
        slots = layer.place.shape[1]
        starts = np.full((layer.count, slots + 1 + len(self.kept.full)), NEVER)
        stage, rows = self.stage[layer.place], np.arange(layer.count)[:, None]
        forward_fits, backward_fits = self._fits(layer)
        may = layer.place >= 0
        may[:, 1:] &= layer.place[:, :-1] > layer.place[:, 1:]
        forward = np.append(self.kept.forward, False)[layer.place]
        may &= np.where(forward, forward_fits[rows, stage], backward_fits[rows, stage])
        starts[:, :slots] = np.where(may, np.maximum(layer.ready, layer.busy[rows, stage]), NEVER)
        first = self.stage[0]
        new = (layer.begun < self.kept.microbatches) & (layer.place[:, -1] < 0)
        new &= (forward_fits if self.kept.forward[0] else backward_fits)[:, first]
        starts[:, slots] = np.where(new, np.maximum(layer.busy[:, first], self.kept.head - layer.time), NEVER)
        starts[:, slots + 1 :] = np.where(self._weights_left(layer), layer.busy[:, self.full_stages], NEVER)
        return starts

    def _weights_left(self, layer: Layer) -> NDArray[np.bool_]:
        """Whether a W may be begun, by state and full stage."""
        if not self.kept.backward:
            waits: NDArray[np.bool_] = layer.waiting > 0
            return waits
        begun = [sum(layer.done(place) for place in full.gradients) for full in self.kept.full]
        left: NDArray[np.bool_] = np.stack(begun, axis=1) + layer.waiting < 2 * self.kept.microbatches
        return left

    def _fits(self, layer: Layer) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """[C4] Whether an F fits, and whether a B has its W behind it, by state and kept stage."""
        forward, backward = np.ones_like(layer.busy, dtype=bool), np.ones_like(layer.busy, dtype=bool)
        for number, full in enumerate(self.kept.full):
            others = full.held[layer.place + 1].sum(axis=1)
            if self.kept.backward:
                others -= 1
                backward[:, full.stage] = layer.waiting[:, number] > 0
            held = full.each * others + full.waiting * layer.waiting[:, number]
            forward[:, full.stage] = held <= full.room
        return forward, backward

    def _fits_later(self, layer: Layer) -> NDArray[np.bool_]:
        """[C4] going backward: whether what is live now leaves room to the next F, the earlier ones of these."""
        fits = np.ones(layer.count, dtype=bool)
        for number, full in enumerate(self.kept.full):
            live, waiting = full.held[layer.place + 1].sum(axis=1), layer.waiting[:, number]
            held = np.where(live > 0, full.each * (live - 1) + full.waiting * waiting, full.waiting * (waiting - 1))
            fits &= held <= full.room
        return fits

    def _begin(self, layer: Layer, ops: Integers, starts: Integers) -> Layer:
        """``layer`` with op ``ops[i]`` begun in state i; changes its arrays."""
        slots = layer.place.shape[1]
        layer = replace(
            layer,
            ready=np.maximum(layer.ready - starts[:, None], 0),
            busy=np.maximum(layer.busy - starts[:, None], 0),
            time=layer.time + starts,
        )
        weight = np.nonzero(ops > slots)[0]
        which = ops[weight] - slots - 1
        layer.busy[weight, self.full_stages[which]] = self.weights[which]
        layer.waiting[weight, which] += 1 if self.kept.backward else -1
        new = np.nonzero(ops == slots)[0]
        slot = ops.copy()
        slot[new] = (layer.place[new] >= 0).sum(axis=1)
        layer.place[new, slot[new]] = 0
        layer.begun[new] += 1
        self._go_on(layer, np.nonzero(ops <= slots)[0], slot)
        return layer

    def _go_on(self, layer: Layer, states: Integers, slot: Integers) -> None:
        """In ``states`` the next op of the microbatch in ``slot`` is begun."""
        slot = slot[states]
        place = layer.place[states, slot]
        stage = self.stage[place]
        layer.busy[states, stage] = self.ticks[place]
        of_full = ~self.kept.forward[place] & (self.full_of[stage] >= 0)
        layer.waiting[states[of_full], self.full_of[stage[of_full]]] += -1 if self.kept.backward else 1
        layer.place[states, slot] = place + 1
        layer.ready[states, slot] = self.kept.onward[place]
        last = len(self.kept.stage) - 1
        gone = states[place == last]
        layer.place[gone, :-1] = layer.place[gone, 1:]
        layer.ready[gone, :-1] = layer.ready[gone, 1:]
        layer.place[gone, -1], layer.ready[gone, -1] = -1, 0
        over = gone[(layer.begun[gone] == self.kept.microbatches) & (layer.place[gone, 0] < 0)]
        layer.ended[over] = layer.time[over] + self.kept.rest[last]
