"""The next op of each state, in the order of starts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from zbopt.bounds.valley.kept import Integers, Kept
from zbopt.bounds.valley.layers import NEVER, Layer, done


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """How states of ``kept`` follow each other. Tables by place end with a row for microbatches not under way.

    Ops are numbered: the next one of each microbatch under way, the first of a new microbatch, a W of each full stage.

    Attributes:
        kept: The problem.
        lane: Number of the op's stage among the kept ones, twice, and one more for an F.
        harmless: Time of the op; ``NEVER`` where it is an F that takes memory of a full stage.
        full_of: By kept stage, its number among the full ones, or -1.
        weights: Time of W, by full stage.
        full_stages: Numbers of the full stages among the kept ones.
    """

    kept: Kept
    lane: Integers
    harmless: Integers
    full_of: Integers
    weights: Integers
    full_stages: Integers

    @classmethod
    def of(cls, kept: Kept) -> Moves:
        """The moves of ``kept``."""
        full_of = np.full(len(kept.stages), -1)
        full_stages = np.array([full.stage for full in kept.full])
        full_of[full_stages] = range(len(kept.full))
        takes = kept.forward & (full_of[kept.stage] >= 0)
        return cls(
            kept,
            lane=np.append(2 * kept.stage + kept.forward, 0),
            harmless=np.append(np.where(takes, NEVER, kept.ticks), NEVER),
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
        before = NEVER if all_ways else self._harmless_ends(layer, starts)
        ops, states = np.nonzero(starts < before)
        later = self._begin(layer.take(states), ops, starts[ops, states])
        return later.take(self._fits_later(later)) if self.kept.backward else later

    def _harmless_ends(self, layer: Layer, starts: Integers) -> Integers:
        """When the first op that takes no memory could end, by state."""
        slots = len(layer.place)
        ends = starts.copy()
        ends[:slots] += self.harmless[layer.place]
        ends[slots] += self.harmless[0]
        ends[slots + 1 :] += self.weights[:, None]
        first: Integers = np.minimum(ends.min(axis=0), NEVER)
        return first

    def _starts(self, layer: Layer) -> Integers:
        """By op and state its earliest start, ``NEVER`` where it may not be the next."""
        slots = len(layer.place)
        starts = np.full((slots + 1 + len(self.kept.full), layer.count), NEVER)
        lanes = self._lanes(layer)
        may = layer.place >= 0
        may[1:] &= layer.place[:-1] > layer.place[1:]
        at = self.lane[layer.place] * layer.count + np.arange(layer.count)
        starts[:slots] = np.where(may, np.maximum(layer.ready, lanes.take(at)), NEVER)
        new = (layer.begun < self.kept.microbatches) & (layer.place[-1] < 0)
        first = np.maximum(lanes[self.lane[0]], self.kept.head - layer.time)
        starts[slots] = np.where(new, first, NEVER)
        starts[slots + 1 :] = np.where(self._weights_left(layer), layer.busy[self.full_stages], NEVER)
        return starts

    def _weights_left(self, layer: Layer) -> NDArray[np.bool_]:
        """Whether a W may be begun, by full stage and state."""
        if not self.kept.backward:
            waits: NDArray[np.bool_] = layer.waiting > 0
            return waits
        begun = np.stack([done(full, layer) for full in self.kept.full])
        left: NDArray[np.bool_] = begun + layer.waiting < 2 * self.kept.microbatches
        return left

    def _lanes(self, layer: Layer) -> Integers:
        """When a B, and when an F, may begin on each kept stage, row by row; ``NEVER`` where none may.

        [C4] An F has to fit; going backward, a B has to have its W behind it.
        """
        lanes = layer.busy.repeat(2, axis=0)
        for number, full in enumerate(self.kept.full):
            others = layer.total(full.held)
            if self.kept.backward:
                others -= 1
                lanes[2 * full.stage][layer.waiting[number] == 0] = NEVER
            held = full.each * others + full.waiting * layer.waiting[number]
            lanes[2 * full.stage + 1][held > full.room] = NEVER
        return lanes

    def _fits_later(self, layer: Layer) -> NDArray[np.bool_]:
        """[C4] going backward: whether what is live now leaves room to the next F, the earlier ones of these."""
        fits = np.ones(layer.count, dtype=bool)
        for number, full in enumerate(self.kept.full):
            live, waiting = layer.total(full.held), layer.waiting[number]
            held = np.where(live > 0, full.each * (live - 1) + full.waiting * waiting, full.waiting * (waiting - 1))
            fits &= held <= full.room
        return fits

    def _begin(self, layer: Layer, ops: Integers, starts: Integers) -> Layer:
        """``layer`` with op ``ops[i]`` begun in state i, the ops in order; changes its arrays."""
        slots = len(layer.place)
        np.maximum(layer.ready - starts, 0, out=layer.ready)
        np.maximum(layer.busy - starts, 0, out=layer.busy)
        layer.time[:] += starts
        new_from, *weights_from = np.searchsorted(ops, range(slots, slots + 2 + len(self.kept.full)))
        for number, (begin, end) in enumerate(pairwise(weights_from)):
            layer.busy[self.full_stages[number], begin:end] = self.weights[number]
            layer.waiting[number, begin:end] += 1 if self.kept.backward else -1
        new = np.arange(new_from, weights_from[0])
        slot = ops[: weights_from[0]].copy()
        slot[new] = (layer.place[:, new] >= 0).sum(axis=0)
        layer.place[slot[new], new] = 0
        layer.begun[new] += 1
        self._go_on(layer, slot)
        return layer

    def _go_on(self, layer: Layer, slot: Integers) -> None:
        """In each of the first states the next op of the microbatch in ``slot`` is begun."""
        kept, states = self.kept, np.arange(len(slot))
        place = layer.place[slot, states]
        stage = kept.stage[place]
        layer.busy[stage, states] = kept.ticks[place]
        of_full = np.flatnonzero(~kept.forward[place] & (self.full_of[stage] >= 0))
        layer.waiting[self.full_of[stage[of_full]], of_full] += -1 if kept.backward else 1
        layer.place[slot, states] = place + 1
        layer.ready[slot, states] = kept.onward[place]
        last = len(kept.stage) - 1
        gone = np.flatnonzero(place == last)
        layer.place[:-1, gone] = layer.place[1:, gone]
        layer.ready[:-1, gone] = layer.ready[1:, gone]
        layer.place[-1, gone], layer.ready[-1, gone] = -1, 0
        over = gone[(layer.begun[gone] == kept.microbatches) & (layer.place[0, gone] < 0)]
        layer.ended[over] = layer.time[over] + kept.rest[last]
