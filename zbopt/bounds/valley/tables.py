"""Least times from the ops that are left on a stage to the end of all, from a problem that keeps less."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from zbopt.bounds.valley.kept import Integers, Kept
from zbopt.bounds.valley.layers import NEVER, Layer, done


@dataclass
class Tables:
    """What a run of ``kept`` finds: by stage and number of its ops begun of each kind, when the last of them can end.

    Attributes:
        kept: The problem.
        least: By stage, its ops begun as one number, sorted, and the least time for each.
        found: The same from each layer, not sorted.
    """

    kept: Kept
    least: dict[int, tuple[Integers, Integers]] = field(default_factory=dict)
    found: dict[int, list[tuple[Integers, Integers]]] = field(default_factory=dict)

    def take(self, layer: Layer) -> None:
        """Take what the states of a layer tell."""
        for number, stage in enumerate(self.kept.stages):
            weights = any(full.stage == number for full in self.kept.full)
            key, time = _begun(self.kept, layer, number, weights=weights), layer.time + layer.busy[number]
            self.found.setdefault(stage, []).append(_least(key, time))

    def close(self) -> None:
        """Put the layers together."""
        for stage, found in self.found.items():
            self.least[stage] = _least(np.concatenate([k for k, _ in found]), np.concatenate([t for _, t in found]))
        self.found.clear()

    def least_ends(self, kept: Kept, layer: Layer) -> Integers:
        """No step within the horizon that goes on from a state of ``kept``, in the other direction, ends earlier."""
        ends = np.zeros(layer.count, dtype=np.int64)
        for number, stage in enumerate(kept.stages):
            weights = any(self.kept.stages[full.stage] == stage for full in self.kept.full)
            if stage not in self.least or (weights and all(full.stage != number for full in kept.full)):
                continue
            keys, times = self.least[stage]
            left = _most(kept, weights=weights) - _begun(kept, layer, number, weights=weights)
            at = np.searchsorted(keys, left).clip(max=len(keys) - 1)
            # What no step does that ends within the horizon was not found.
            times = np.where(keys[at] == left, layer.time + layer.busy[number] + times[at], NEVER)
            ends = np.maximum(ends, np.where(left > 0, times, 0))
        return ends


def _least(key: Integers, time: Integers) -> tuple[Integers, Integers]:
    order = np.lexsort((time, key))
    key, time = key[order], time[order]
    first = np.append(True, key[1:] != key[:-1])
    return key[first], time[first]


def _digits(kept: Kept) -> list[int]:
    """Weights of F, F, B, B and W of a stage in the number that stands for how many were begun."""
    return [(2 * kept.microbatches + 1) ** power for power in range(5)]


def _most(kept: Kept, *, weights: bool) -> int:
    """The number of a stage that has done everything."""
    counts = [kept.microbatches] * 4 + [2 * kept.microbatches if weights else 0]
    return sum(digit * count for digit, count in zip(_digits(kept), counts, strict=True))


def _begun(kept: Kept, layer: Layer, number: int, *, weights: bool) -> Integers:
    """Ops begun on kept stage ``number`` as one number, the same in both directions."""
    digits = _digits(kept)
    places = [int(place) for place in np.flatnonzero(kept.stage == number)]
    if kept.backward:
        places.reverse()
    not_begun = np.zeros(len(kept.stage) + 1, dtype=np.int64)
    for digit, place in zip(digits, places, strict=False):
        not_begun[: place + 1] += digit
    key: Integers = layer.begun * sum(digits[:4]) - layer.total(not_begun)
    if weights:
        full = next(full for full in kept.full if full.stage == number)
        waiting = layer.waiting[kept.full.index(full)]
        gradients = done(full, layer)
        key += digits[4] * (gradients + waiting if kept.backward else gradients - waiting)
    return key
