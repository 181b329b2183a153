"""The ops of a step by number, and the times that an order of all ops gives them: what every move of an op reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from zbopt.graph import TaskGraph
from zbopt.problem.instance import Barrier

StageOrders = list[list[int]]
"""For each stage its ops, in order."""


class StepOps:
    """Number the ops that run anew. All lists are by op.

    Args:
        graph: Task graph of one step without choices, joins between ops of microbatches, or links.
        tasks: Its tasks that run.

    Attributes:
        ticks: Time of each op.
        stage: Stage of each op.
        op_class: A number for its kind and virtual stage; ops of one class keep their order.
        inputs: (op, ticks from its start to the earliest start of this one).
        outputs: (op, ticks from the start of this one to its earliest start).
        taken: Memory that the stage loses at its start.
        released: Memory that the stage gets back at its end.
        caps: Memory by stage.
        closing_ticks: By stage, time of what comes after all of its ops: barrier and optimizer step.
        is_joint: No optimizer step begins before all ops of all stages have ended.
    """

    def __init__(self, graph: TaskGraph, tasks: Sequence[int]) -> None:
        self.tasks = tuple(tasks)
        self.number = {i: n for n, i in enumerate(self.tasks)}
        ops = [graph.tasks[i] for i in self.tasks]
        classes = {key: n for n, key in enumerate(dict.fromkeys((op.kind, op.virtual_stage) for op in ops))}
        self.ticks = [op.duration_ticks for op in ops]
        self.stage = [op.stage for op in ops]
        self.op_class = [classes[op.kind, op.virtual_stage] for op in ops]
        self._connect(graph)
        self._measure_memory(graph)
        instance = graph.instance
        self.caps = graph.caps or (sum(self.taken),) * instance.stages
        steps = instance.optimizer_ticks
        self.closing_ticks = [0] * instance.stages if steps is None else [instance.barrier_ticks + t for t in steps]
        self.is_joint = instance.barrier is Barrier.GLOBAL

    def _connect(self, graph: TaskGraph) -> None:
        """Set inputs and outputs of each op."""
        number, ticks = self.number, self.ticks
        self.inputs: list[list[tuple[int, int]]] = [[] for _ in self.tasks]
        self.outputs: list[list[tuple[int, int]]] = [[] for _ in self.tasks]
        for n, i in enumerate(self.tasks):
            self.inputs[n] = [(number[j], ticks[number[j]] + lag) for j, lag in graph.predecessors[i] if j in number]
            self.outputs[n] = [(number[j], ticks[n] + lag) for j, lag in graph.successors[i] if j in number]

    def _measure_memory(self, graph: TaskGraph) -> None:
        """Set the memory that each op takes at its start and releases at its end."""
        number = self.number
        self.taken, self.released = [0] * len(self.tasks), [0] * len(self.tasks)
        for residence in graph.residences:
            if residence.first in number and residence.last in number:
                self.taken[number[residence.first]] += residence.amount
                self.released[number[residence.last]] += residence.amount

    def numbered(self, orders: Sequence[Sequence[int]]) -> StageOrders:
        """Return orders of tasks as orders of ops."""
        return [[self.number[i] for i in order] for order in orders]

    def timed(self, orders: StageOrders, clocks: Sequence[int] | None = None) -> Timed:
        """Return the times that an order on each stage gives.

        Args:
            orders: For each stage its ops.
            clocks: For each stage when it may begin, and from when on its time counts; ``None``: 0.

        Raises:
            AssertionError: It contradicts the precedences.
        """
        clocks = clocks or [0] * len(orders)
        latest = max(clocks)
        closing = [step + latest - clock for step, clock in zip(self.closing_ticks, clocks, strict=True)]
        closing = [max(closing)] * len(closing) if self.is_joint else closing
        before = [-1] * len(self.ticks)
        for order in orders:
            for one, other in pairwise(order):
                before[other] = one
        sequence = self._sequence(orders, before)
        head = self._heads(sequence, before, clocks)
        tail = self._tails(sequence, before, orders, closing)
        end = max((head[i] + tail[i] for i in sequence), default=latest)
        return Timed(orders, clocks, closing, head, tail, sequence, end)

    def _heads(self, sequence: Sequence[int], before: Sequence[int], clocks: Sequence[int]) -> list[int]:
        """Return the earliest start of each op."""
        head = [0] * len(self.ticks)
        for i in sequence:
            previous = before[i]
            start = head[previous] + self.ticks[previous] if previous >= 0 else clocks[self.stage[i]]
            head[i] = max(start, max((head[j] + wait for j, wait in self.inputs[i]), default=0))
        return head

    def _tails(
        self, sequence: Sequence[int], before: Sequence[int], orders: StageOrders, closing: Sequence[int]
    ) -> list[int]:
        """Return the longest time from the start of each op to the end of all."""
        tail = [0] * len(self.ticks)
        for order, ticks in zip(orders, closing, strict=True):
            if order:
                tail[order[-1]] = self.ticks[order[-1]] + ticks
        for i in reversed(sequence):
            tail[i] = max(tail[i], self.ticks[i], max((tail[j] + wait for j, wait in self.outputs[i]), default=0))
            previous = before[i]
            if previous >= 0:
                tail[previous] = self.ticks[previous] + tail[i]
        return tail

    def _sequence(self, orders: StageOrders, before: Sequence[int]) -> list[int]:
        """Return all ops, each after its inputs and after the op before it on its stage."""
        missing = [len(inputs) + (before[i] >= 0) for i, inputs in enumerate(self.inputs)]
        after = {previous: i for i, previous in enumerate(before) if previous >= 0}
        ready = [order[0] for order in orders if order and not missing[order[0]]]
        for i in ready:
            for j in (*(j for j, _ in self.outputs[i]), *([after[i]] if i in after else ())):
                missing[j] -= 1
                if not missing[j]:
                    ready.append(j)
        assert len(ready) == len(self.ticks), "the order contradicts the precedences"
        return ready


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """Hold an order on each stage with its times, in ticks.

    Attributes:
        orders: For each stage its ops.
        clocks: For each stage when its time begins to count.
        closing: For each stage the time from the end of its last op to the end of all: its optimizer step, and as much
            as its clock began before the last one that did.
        head: Earliest start of each op.
        tail: Longest time from there to the end of all.
        sequence: A topological order.
        end: The end of all, in that sense.
    """

    orders: StageOrders
    clocks: Sequence[int]
    closing: Sequence[int]
    head: list[int]
    tail: list[int]
    sequence: list[int]
    end: int

    @property
    def value(self) -> int:
        """Return the most that a stage takes by its own clock: the makespan where all clocks began at 0."""
        return self.end - max(self.clocks)
