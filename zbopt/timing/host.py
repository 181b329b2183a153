"""Precedences that keep memory within its cap where OUT and IN run beside the stages' compute.

An op of a stage's compute takes and gives back memory in the order of its stage. OUT and IN do so on the link to the
host: how an activation's OUT lies to the next F is not said by any order. These functions say it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from zbopt.graph import Key, Precedence, Residence, TaskGraph
from zbopt.problem.instance import Kind


def has_host(graph: TaskGraph) -> bool:
    """Whether memory is limited and some activation may be offloaded."""
    return graph.caps is not None and any(task.kind is Kind.OUT for task in graph.tasks)


def within_cap(graph: TaskGraph, orders: Sequence[Sequence[int]], running: Container[int]) -> TaskGraph:
    """``graph`` with precedences under which ``orders`` keep the cap, whatever the times.

    An op waits for the oldest OUT of its stage until there is room; an IN begins when the ops have ended before which
    there is none, at most one reload ahead of its need. Where no waiting is enough, memory exceeds its cap.

    Args:
        graph: The task graph.
        orders: For each stage, its ops in the order in which they run.
        running: The tasks that run, OUT and IN among them.
    """
    if not has_host(graph):
        return graph
    held: list[list[Residence]] = [[] for _ in orders]
    for residence in _present(graph, running):
        held[residence.stage].append(residence)
    hosts: list[list[int]] = [[] for _ in orders]
    for i, task in enumerate(graph.tasks):
        if task.kind in (Kind.OUT, Kind.IN) and i in running:
            hosts[task.stage].append(i)
    stages = (_Stage(graph, stage, row, held[stage], hosts[stage]) for stage, row in enumerate(orders))
    added = [edge for stage in stages for edge in stage.precedences()]
    return replace(graph, precedences=(*graph.precedences, *added))


@dataclass
class _Stage:
    """One stage in the order of its ops, with an OUT just after its F and an IN just before its backward, or earlier.

    ``residences`` are of what it holds, ``hosts`` are its OUT and IN. ``held[n]`` is live while the n-th op runs
    if every OUT ends with its F.
    """

    graph: TaskGraph
    stage: int
    row: Sequence[int]
    residences: Sequence[Residence]
    hosts: Sequence[int]
    takes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    gives: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        for r in self.residences:
            self.takes[r.first] += r.amount
            self.gives[r.last] += r.amount
        self.place = {task: n for n, task in enumerate(self.row)}
        self.out_after: dict[int, int] = {}
        self.in_before: dict[int, list[int]] = defaultdict(list)
        for i in self._beside(Kind.OUT):
            self.out_after[self.place[self._op(i, Kind.F)]] = i
        for i in sorted(self._beside(Kind.IN), key=self._need):
            self.in_before[self._need(i)].append(i)
        self.held = self._held()

    def _beside(self, kind: Kind) -> list[int]:
        return [i for i in self.hosts if self.graph.tasks[i].kind is kind]

    def _op(self, beside: int, *kinds: Kind) -> int:
        task = self.graph.tasks[beside]
        keys = (Key(kind, task.virtual_stage, task.microbatch, task.iteration) for kind in kinds)
        return next(i for key in keys if (i := self.graph.index.get(key)) in self.place and i is not None)

    def _need(self, i: int) -> int:
        """Place of the op that needs what IN brings back."""
        return self.place[self._op(i, Kind.BW, Kind.B, Kind.W)]

    def _held(self) -> list[int]:
        held, live = [], 0
        for n, op in enumerate(self.row):
            live += self.takes[op] + sum(self.takes[i] for i in self.in_before[n])
            held.append(live)
            live -= self.gives[op]
            if n in self.out_after:
                live -= self.gives[self.out_after[n]]
        return held

    def precedences(self) -> Iterator[Precedence]:
        begins = dict(self._begins())
        yield from (Precedence(self.row[n - 1], i, 0) for i, n in begins.items() if n > 0)
        yield from self._waits(begins)

    def _begins(self) -> Iterator[tuple[int, int]]:
        """(IN, place of the op with which it may begin)."""
        assert self.graph.caps is not None, "asked only where memory is limited"
        cap, tasks = self.graph.caps[self.stage], self.graph.tasks
        for need, loads in sorted(self.in_before.items()):
            for i in loads:
                n, ahead = need, 0
                first = self.place[self._op(i, Kind.F)] + 1
                while n > first and ahead < tasks[i].duration_ticks and self.held[n - 1] + self.takes[i] <= cap:
                    n -= 1
                    ahead += tasks[self.row[n]].duration_ticks
                    self.held[n] += self.takes[i]
                yield i, n

    def _waits(self, begins: Mapping[int, int]) -> Iterator[Precedence]:
        """What takes memory waits for the oldest OUT that have not been waited for, until there is room for all."""
        assert self.graph.caps is not None, "asked only where memory is limited"
        cap = self.graph.caps[self.stage]
        loads: dict[int, list[int]] = defaultdict(list)
        for i, n in begins.items():
            loads[n].append(i)
        pending: list[int] = []
        for n, op in enumerate(self.row):
            over = self.held[n] + sum(self.gives[i] for i in pending) - cap
            while over > 0 and pending:
                over -= self.gives[pending[0]]
                for after in (op, *loads[n]):
                    yield Precedence(pending[0], after, 0)
                pending.pop(0)
            if n in self.out_after:
                pending.append(self.out_after[n])


def _present(graph: TaskGraph, running: Container[int]) -> list[Residence]:
    taken = graph.taken(running)
    return [
        r
        for r in graph.residences
        if r.first in running and r.last in running and (r.when is None or taken[r.when[0]] == r.when[1])
    ]


def as_started(graph: TaskGraph, starts: Mapping[int, int]) -> TaskGraph:
    """``graph`` with precedences that keep what ``starts`` do with memory where OUT or IN take part in it.

    Whatever took memory keeps its turn among all that do on its stage, and stays behind all that had given it back.
    """
    if not has_host(graph):
        return graph
    present = _present(graph, starts)
    added: list[Precedence] = []
    for stage in {graph.tasks[i].stage for i in starts if graph.tasks[i].kind is Kind.OUT}:
        takers = sorted({r.first for r in present if r.stage == stage}, key=lambda i: (starts[i], i))
        givers = {r.last for r in present if r.stage == stage}
        # From start to start: an arc's lag counts from the end.
        added += (Precedence(a, b, -graph.tasks[a].duration_ticks) for a, b in pairwise(takers))
        times = [starts[i] for i in takers]
        for giver in givers:
            behind = bisect_left(times, starts[giver] + graph.tasks[giver].duration_ticks)
            if behind < len(takers):
                added.append(Precedence(giver, takers[behind], 0))
    return replace(graph, precedences=(*graph.precedences, *added))
