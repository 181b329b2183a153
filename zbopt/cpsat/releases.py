"""[D5] A memory cap as orders of ops (models/formulation.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from zbopt.graph import Residence, TaskGraph
from zbopt.problem.instance import Kind

_BACKWARD = (Kind.B, Kind.W, Kind.BW)


@dataclass(frozen=True, slots=True)
class Releases:
    """[D5] Hold the cap of a stage with one virtual stage, as releases that each forward has to wait for.

    With ops in microbatch order, x activations whole and y in all are live at the start of a forward, x <= y. There is
    room for the new one exactly if ``x * by_input + y * by_weight`` is at most ``room``: a staircase in (x, y).
    ``inputs`` (B) is empty where nothing is released before ``weights`` (W, or BW).
    """

    forwards: tuple[int, ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    by_input: int
    by_weight: int
    room: int

    @classmethod
    def of(cls, graph: TaskGraph, residences: Sequence[Residence], cap: int) -> Self | None:
        """Return the releases of one stage; ``None`` where its cap cannot be stated by them.

        That is where several virtual stages or a choice share its memory, where anything but an F takes memory, or
        anything but a backward gives it back.
        """
        if not _from_forward_to_backward(graph, residences) or _is_shared(graph, residences):
            return None
        groups: dict[Kind, list[Residence]] = defaultdict(list)
        for residence in sorted(residences, key=lambda r: graph.tasks[r.first].turn):
            groups[graph.tasks[residence.last].kind].append(residence)
        *earlier, last = (groups[kind] for kind in (Kind.B, Kind.W, Kind.BW) if kind in groups)
        by_input = earlier[0][0].amount if earlier else 0
        return cls(
            tuple(r.first for r in last),
            tuple(r.last for released in earlier for r in released),
            tuple(r.last for r in last),
            by_input,
            last[0].amount,
            cap - by_input - last[0].amount,
        )

    def before(self, n: int) -> Iterator[tuple[int, ...]]:
        """Yield for the n-th forward tuples of ops of which at least one has to end before it starts."""
        for whole in range(n + 1 if self.inputs else 1):
            most = (self.room - whole * self.by_input) // self.by_weight
            inputs = self.inputs[n - whole : n - whole + 1] if whole else ()
            if most < whole:
                # Not even these alone fit: fewer must be whole.
                yield inputs
                return
            if most < n:
                yield (*inputs, self.weights[n - most - 1])


def _from_forward_to_backward(graph: TaskGraph, residences: Sequence[Residence]) -> bool:
    """Return whether only F take memory, and only B, W and BW give it back."""
    return all(graph.tasks[r.first].kind is Kind.F and graph.tasks[r.last].kind in _BACKWARD for r in residences)


def _is_shared(graph: TaskGraph, residences: Sequence[Residence]) -> bool:
    """Return whether several virtual stages, or the options of a choice, share the memory."""
    several = len({graph.tasks[r.first].virtual_stage for r in residences}) > 1
    return several or any(graph.tasks[r.last].choice is not None for r in residences)
