"""Precedences that keep memory within its cap where OUT and IN run beside the stages' compute.

An op of a stage's compute takes and gives back memory in the order of its stage. OUT and IN do so on the link to the
host: no order says whether an activation's OUT ends before the next F starts. The precedences made here say it.
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
    """Return whether memory is limited and some activation may be offloaded."""
    return graph.caps is not None and any(task.kind is Kind.OUT for task in graph.tasks)


def within_cap(graph: TaskGraph, orders: Sequence[Sequence[int]], running: Container[int]) -> TaskGraph:
    """Return ``graph`` with precedences under which ``orders`` keep the cap, whatever the times.

    An op waits for the oldest OUT of its stage until there is room. An IN begins when those ops have ended before which
    there is no room, and at most as long ahead of its need as the reload takes. Where no waiting is enough, memory
    exceeds its cap.

    Args:
        graph: The task graph.
        orders: For each stage, its ops in the order in which they run.
        running: The tasks that run, OUT and IN among them.
    """
    if not has_host(graph):
        return graph
    residences: list[list[Residence]] = [[] for _ in orders]
    for residence in _present(graph, running):
        residences[residence.stage].append(residence)
    moves: list[list[int]] = [[] for _ in orders]
    for i, task in enumerate(graph.tasks):
        if task.kind in (Kind.OUT, Kind.IN) and i in running:
            moves[task.stage].append(i)
    stages = (_Stage(graph, stage, order, residences[stage], moves[stage]) for stage, order in enumerate(orders))
    added = [edge for stage in stages for edge in stage.precedences()]
    return replace(graph, precedences=(*graph.precedences, *added))


@dataclass
class _Stage:
    """Represent a stage in the order of its ops, with each OUT just after its F and each IN before its backward.

    Attributes:
        order: Its ops in the order in which they run.
        residences: What it holds, and between which of its tasks.
        moves: Its OUT and IN.
        takes: Memory that each task takes.
        gives: Memory that each task gives back.
        place: For each op its place in the order.
        out_after: For the place of an F, the OUT that follows it.
        in_before: For the place of a backward, the IN that it needs.
        live: For each place the memory that is live while its op runs, if every OUT ends with its F.
    """

    graph: TaskGraph
    stage: int
    order: Sequence[int]
    residences: Sequence[Residence]
    moves: Sequence[int]
    takes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    gives: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        for r in self.residences:
            self.takes[r.first] += r.amount
            self.gives[r.last] += r.amount
        self.place = {task: n for n, task in enumerate(self.order)}
        self.out_after: dict[int, int] = {}
        self.in_before: dict[int, list[int]] = defaultdict(list)
        for i in self._moves(Kind.OUT):
            self.out_after[self.place[self._op(i, Kind.F)]] = i
        for i in sorted(self._moves(Kind.IN), key=self._need):
            self.in_before[self._need(i)].append(i)
        self.live = self._live()

    def _moves(self, kind: Kind) -> list[int]:
        return [i for i in self.moves if self.graph.tasks[i].kind is kind]

    def _op(self, move: int, *kinds: Kind) -> int:
        """Return the op of one of ``kinds`` that runs for the same activation as an OUT or IN."""
        task = self.graph.tasks[move]
        keys = (Key(kind, task.virtual_stage, task.microbatch, task.iteration) for kind in kinds)
        return next(i for key in keys if (i := self.graph.index.get(key)) in self.place and i is not None)

    def _need(self, i: int) -> int:
        """Return the place of the op that needs what an IN brings back."""
        return self.place[self._op(i, Kind.BW, Kind.B, Kind.W)]

    def _live(self) -> list[int]:
        by_place, live = [], 0
        for n, op in enumerate(self.order):
            live += self.takes[op] + sum(self.takes[i] for i in self.in_before[n])
            by_place.append(live)
            live -= self.gives[op]
            if n in self.out_after:
                live -= self.gives[self.out_after[n]]
        return by_place

    def precedences(self) -> Iterator[Precedence]:
        """Yield precedences under which the stage keeps its cap, where any do."""
        begins = dict(self._begins())
        yield from (Precedence(self.order[n - 1], i, 0) for i, n in begins.items() if n > 0)
        yield from self._waits(begins)

    def _begins(self) -> Iterator[tuple[int, int]]:
        """Yield (IN, place of the op with which it may begin)."""
        assert self.graph.caps is not None, "asked only where memory is limited"
        cap, tasks = self.graph.caps[self.stage], self.graph.tasks
        for need, loads in sorted(self.in_before.items()):
            for i in loads:
                n, ahead = need, 0
                first = self.place[self._op(i, Kind.F)] + 1
                while n > first and ahead < tasks[i].duration_ticks and self.live[n - 1] + self.takes[i] <= cap:
                    n -= 1
                    ahead += tasks[self.order[n]].duration_ticks
                    self.live[n] += self.takes[i]
                yield i, n

    def _waits(self, begins: Mapping[int, int]) -> Iterator[Precedence]:
        """Yield precedences by which what takes memory waits for the oldest OUT, one by one, until there is room."""
        assert self.graph.caps is not None, "asked only where memory is limited"
        cap = self.graph.caps[self.stage]
        loads_at: dict[int, list[int]] = defaultdict(list)
        for i, n in begins.items():
            loads_at[n].append(i)
        pending: list[int] = []
        for n, op in enumerate(self.order):
            over = self.live[n] + sum(self.gives[i] for i in pending) - cap
            while over > 0 and pending:
                over -= self.gives[pending[0]]
                for after in (op, *loads_at[n]):
                    yield Precedence(pending[0], after, 0)
                pending.pop(0)
            if n in self.out_after:
                pending.append(self.out_after[n])


def _present(graph: TaskGraph, running: Container[int]) -> list[Residence]:
    """Return the residences that are there where the tasks of ``running`` run."""
    taken = graph.taken(running)
    return [
        r
        for r in graph.residences
        if r.first in running and r.last in running and (r.when is None or taken[r.when[0]] == r.when[1])
    ]


def as_started(graph: TaskGraph, starts: Mapping[int, int]) -> TaskGraph:
    """Return ``graph`` with precedences that keep memory as ``starts`` have it, where OUT or IN take part in it.

    Each task that takes memory keeps its turn among all that do on its stage, and stays behind all tasks that had given
    some back before it [D7].
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
