"""What moves of ops need to know of a step: its ops by number, and the times that an order of all gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from zbopt.graph import TaskGraph
from zbopt.problem.instance import Barrier

Rows = list[list[int]]
"""For each stage its ops, in order."""


class StepOps:
    """The ops that run, numbered anew. All lists are by op.

    Args:
        graph: Task graph of one step without choices, joins between ops of microbatches, or links.
        tasks: Its tasks that run.

    Attributes:
        ticks: Time of each op.
        stage: Its stage.
        sort: A number for its kind and virtual stage; ops of one sort keep their order.
        inputs: (op, ticks from its start to the earliest start of this one).
        outputs: (op, ticks from the start of this one to its earliest start).
        takes: Memory that the stage loses at its start.
        gives: Memory that the stage gets back at its end.
        caps: Memory by stage.
        steps: By stage, time of what comes after all of its ops: the optimizer step.
        is_joint: No step begins before all ops of all stages have ended.
    """

    def __init__(self, graph: TaskGraph, tasks: Sequence[int]) -> None:
        self.tasks = tuple(tasks)
        self.number = number = {i: n for n, i in enumerate(self.tasks)}
        ops = [graph.tasks[i] for i in self.tasks]
        sorts = {key: n for n, key in enumerate(dict.fromkeys((op.kind, op.virtual_stage) for op in ops))}
        self.ticks = [op.duration_ticks for op in ops]
        self.stage = [op.stage for op in ops]
        self.sort = [sorts[op.kind, op.virtual_stage] for op in ops]
        self.inputs: list[list[tuple[int, int]]] = [[] for _ in ops]
        self.outputs: list[list[tuple[int, int]]] = [[] for _ in ops]
        for edge in graph.precedences:
            if edge.before in number and edge.after in number:
                before, after = number[edge.before], number[edge.after]
                wait = self.ticks[before] + edge.lag_ticks
                self.inputs[after].append((before, wait))
                self.outputs[before].append((after, wait))
        self.takes, self.gives = [0] * len(ops), [0] * len(ops)
        for held in graph.residences:
            if held.first in number and held.last in number:
                self.takes[number[held.first]] += held.amount
                self.gives[number[held.last]] += held.amount
        instance = graph.instance
        self.caps = graph.caps or (sum(self.takes),) * instance.stages
        ticks = instance.optimizer_ticks
        self.steps = [0] * instance.stages if ticks is None else [instance.barrier_ticks + each for each in ticks]
        self.is_joint = instance.barrier is Barrier.GLOBAL

    def numbered(self, rows: Sequence[Sequence[int]]) -> Rows:
        """An order of tasks as one of ops."""
        return [[self.number[i] for i in row] for row in rows]

    def timed(self, rows: Rows, clocks: Sequence[int] | None = None) -> Timed:
        """The times that an order gives.

        Args:
            rows: The order.
            clocks: For each stage when it may begin, and from when on its time counts; ``None``: 0.

        Raises:
            AssertionError: It contradicts the precedences.
        """
        clocks = clocks or [0] * len(rows)
        latest = max(clocks)
        left = [step + latest - clock for step, clock in zip(self.steps, clocks, strict=True)]
        left = [max(left)] * len(left) if self.is_joint else left
        head, tail, before = [0] * len(self.ticks), [0] * len(self.ticks), [-1] * len(self.ticks)
        for row in rows:
            for one, other in pairwise(row):
                before[other] = one
        order = self._order(rows, before)
        for i in order:
            previous = before[i]
            start = head[previous] + self.ticks[previous] if previous >= 0 else clocks[self.stage[i]]
            head[i] = max(start, max((head[j] + wait for j, wait in self.inputs[i]), default=0))
        for row, ticks in zip(rows, left, strict=True):
            if row:
                tail[row[-1]] = self.ticks[row[-1]] + ticks
        for i in reversed(order):
            tail[i] = max(tail[i], self.ticks[i], max((tail[j] + wait for j, wait in self.outputs[i]), default=0))
            previous = before[i]
            if previous >= 0:
                tail[previous] = self.ticks[previous] + tail[i]
        end = max((head[i] + tail[i] for i in order), default=latest)
        return Timed(rows, clocks, left, head, tail, order, end)

    def _order(self, rows: Rows, before: Sequence[int]) -> list[int]:
        """Each op after its inputs and the one before it on its stage."""
        missing = [len(inputs) + (before[i] >= 0) for i, inputs in enumerate(self.inputs)]
        after = {previous: i for i, previous in enumerate(before) if previous >= 0}
        ready = [row[0] for row in rows if row and not missing[row[0]]]
        for i in ready:
            for j in (*(j for j, _ in self.outputs[i]), *([after[i]] if i in after else ())):
                missing[j] -= 1
                if not missing[j]:
                    ready.append(j)
        assert len(ready) == len(self.ticks), "the order contradicts the precedences"
        return ready


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """An order with its times, in ticks.

    Attributes:
        rows: The order.
        clocks: For each stage when its time begins to count.
        left: For each stage the time from the end of its last op to the end of all: its step, and what its clock began
            before the last one that did.
        head: Earliest start of each op.
        tail: Longest time from there to the end of all.
        order: A topological order.
        end: The end of all, in that sense.
    """

    rows: Rows
    clocks: Sequence[int]
    left: Sequence[int]
    head: list[int]
    tail: list[int]
    order: list[int]
    end: int

    @property
    def value(self) -> int:
        """The most that a stage takes by its own clock: the makespan where all began at 0."""
        return self.end - max(self.clocks)
