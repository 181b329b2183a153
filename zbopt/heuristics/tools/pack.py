"""Serial packing: each op in turn goes to the earliest place on its stage where time, inputs and memory let it run.

Unlike an order, which says what follows what, a packing may put an op into a gap that earlier ones have left. Done
from both ends in turn (``justify``) it never makes a schedule longer, and mostly makes it shorter: the
forward-backward improvement of project scheduling (Li and Willis 1992, Tormos and Lova 2001), here with memory that
is held from one op to another. It reads only the task graph, and so works on every placement and route.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zbopt.graph import TaskGraph
from zbopt.heuristics.tools.build import OrderedOp
from zbopt.heuristics.tools.patience import check, is_over
from zbopt.problem.instance import Objective
from zbopt.timing import earliest_starts

Starts = dict[int, int]
"""Start of each task that runs, in ticks."""


@dataclass(frozen=True, slots=True)
class Side:
    """What packing needs to know of the tasks, seen from the start of the step or, mirrored, from its end.

    All lists are by task. ``inputs`` are (task, ticks from its start to the earliest start of this one); ``takes`` and
    ``gives`` are the memory units that the stage loses at a task's start and gets back at its end; ``frees`` are those
    of the tasks waiting for this one alone that nothing waits for and that release memory.
    """

    duration: list[int]
    stage: list[int]
    inputs: list[list[tuple[int, int]]]
    takes: list[int]
    gives: list[int]
    frees: list[list[int]]


class Packing:
    """The tasks of one schedule of a graph, ready to be packed from either end.

    Args:
        graph: The task graph.
        order: The tasks that run, without optimizer steps, each after its inputs. Tasks of one kind and virtual
            stage keep the order that they have here.
    """

    def __init__(self, graph: TaskGraph, order: Sequence[int]) -> None:
        self.graph, self.order = graph, list(order)
        runs = set(self.order)
        taken, given = self._memory(runs)
        duration = [task.duration_ticks for task in graph.tasks]
        inputs: list[list[tuple[int, int]]] = [[] for _ in graph.tasks]
        outputs: list[list[tuple[int, int]]] = [[] for _ in graph.tasks]
        for before, after, lag in self._waits(runs):
            inputs[after].append((before, duration[before] + lag))
            outputs[before].append((after, duration[after] + lag))
        frees: list[list[int]] = [[] for _ in graph.tasks]
        for i in self.order:
            if given[i] and not outputs[i] and len(inputs[i]) == 1:
                frees[inputs[i][0][0]].append(i)
        previous: dict[object, int] = {}
        for i in self.order:
            key = graph.tasks[i].kind, graph.tasks[i].virtual_stage
            if key in previous:
                inputs[i].append((previous[key], duration[previous[key]]))
                outputs[previous[key]].append((i, duration[i]))
            previous[key] = i
        stage = [task.stage for task in graph.tasks]
        self.ahead = Side(duration, stage, inputs, taken, given, frees)
        self.back = Side(duration, stage, outputs, given, taken, [[]] * len(graph.tasks))
        self.caps = graph.caps or (sum(taken) + 1,) * graph.instance.stages
        self.offsets = self._offsets()

    def _waits(self, runs: Container[int]) -> Iterator[tuple[int, int, int]]:
        for edge in self.graph.precedences:
            if edge.before in runs and edge.after in runs:
                yield edge.before, edge.after, edge.lag_ticks

    def _memory(self, runs: Container[int]) -> tuple[list[int], list[int]]:
        """Memory that each task takes at its start, and that it gives back at its end."""
        options = self.graph.taken(runs)
        taken, given = [0] * len(self.graph.tasks), [0] * len(self.graph.tasks)
        for held in self.graph.residences:
            there = held.when is None or options[held.when[0]] == held.when[1]
            if there and held.first in runs and held.last in runs:
                taken[held.first] += held.amount
                given[held.last] += held.amount
        return taken, given

    def _offsets(self) -> list[int]:
        """By stage, when its clock starts: with all others, or for the largest span with its first possible start."""
        offsets = [0] * self.graph.instance.stages
        if self.graph.instance.objective is not Objective.MAX_STAGE_SPAN:
            return offsets
        heads: Starts = {}
        seen: set[int] = set()
        for i in self.order:
            heads[i] = max((heads[before] + wait for before, wait in self.ahead.inputs[i]), default=0)
            if self.ahead.stage[i] not in seen:
                seen.add(self.ahead.stage[i])
                offsets[self.ahead.stage[i]] = heads[i]
        return offsets

    def steps(self, starts: Mapping[int, int]) -> list[list[OrderedOp]]:
        """For each stage, its ops in the order of ``starts``."""
        rows: list[list[OrderedOp]] = [[] for _ in self.caps]
        for i in sorted(starts, key=lambda i: (starts[i], self.ahead.duration[i], i)):
            task = self.graph.tasks[i]
            assert task.virtual_stage is not None
            assert task.microbatch is not None
            rows[task.stage].append((task.kind, task.virtual_stage, task.microbatch))
        return rows

    def value(self, starts: Mapping[int, int]) -> int:
        """Largest over the stages of its last end by its own clock."""
        duration, stage = self.ahead.duration, self.ahead.stage
        return max(start + duration[i] - self.offsets[stage[i]] for i, start in starts.items())

    def forward(self, order: Iterable[int]) -> Starts | None:
        """Pack ``order`` from the start of the step; ``None`` where memory never has room for an op.

        Where memory is short, ops that nothing waits for go before their turn.

        Raises:
            OutOfTimeError: The limit of the context was reached before it began.
        """
        check()
        return self._again(order)

    def _again(self, order: Iterable[int]) -> Starts | None:
        return _pack(self.ahead, self.caps, order, [0] * len(self.caps))

    def justified(self, starts: Starts, rounds: int) -> Starts:
        """The best found by packing ``starts`` from the end, then from the start again, ``rounds`` times at most."""
        best, value = starts, self.value(starts)
        for _ in range(rounds):
            if is_over():
                break
            later = self._from_end(best, value)
            sooner = later and self._again(sorted(later, key=lambda i: (later[i], self.ahead.duration[i], i)))
            if not sooner:
                break
            found = self.value(sooner)
            if found > value or sooner == best:
                break
            best, value = sooner, found
        return best

    def _from_end(self, starts: Starts, value: int) -> Starts | None:
        """Pack towards each stage's last end at ``value`` by its own clock, the ops that end last first."""
        duration = self.ahead.duration
        latest = max(self.offsets) + value
        order = sorted(starts, key=lambda i: (-starts[i] - duration[i], -starts[i], -i))
        mirrored = _pack(self.back, self.caps, order, [latest - value - offset for offset in self.offsets])
        return mirrored and {i: latest - start - duration[i] for i, start in mirrored.items()}


class _Line:
    """One stage: its busy intervals, and its changes of memory in order of time."""

    __slots__ = ("changes", "ends", "level", "starts", "times")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.times: list[int] = []
        self.changes: list[int] = []
        self.level = 0

    def place(self, ready: int, ticks: int) -> int:
        """Occupy the earliest ``ticks`` free from ``ready`` on; their start."""
        starts, ends = self.starts, self.ends
        if not ends or ends[-1] <= ready:
            starts.append(ready)
            ends.append(ready + ticks)
            return ready
        position = bisect_right(ends, ready)
        while position < len(starts) and starts[position] - ready < ticks:
            ready = max(ready, ends[position])
            position += 1
        starts.insert(position, ready)
        ends.insert(position, ready + ticks)
        return ready

    def room_from(self, most: int, ready: int) -> int | None:
        """Earliest time from ``ready`` on after which at most ``most`` is held for good; ``None`` if never."""
        level, times, changes = self.level, self.times, self.changes
        if level > most:
            return None
        for position in range(len(times) - 1, -1, -1):
            if times[position] <= ready:
                return ready
            level -= changes[position]
            if level > most:
                return times[position]
        return ready

    def change(self, time: int, amount: int) -> None:
        """Hold ``amount`` more from ``time`` on. What is released at the same time is released before."""
        times = self.times
        self.level += amount
        if not times or times[-1] < time:
            times.append(time)
            self.changes.append(amount)
            return
        position = bisect_left(times, time) if amount < 0 else bisect_right(times, time)
        times.insert(position, time)
        self.changes.insert(position, amount)


def packed_order(graph: TaskGraph, rows: Sequence[Sequence[int]], rounds: int) -> tuple[Packing, Starts]:
    """An order of the tasks of each stage, packed from both ends ``rounds`` times at most."""
    earliest = earliest_starts(graph, rows)
    packing = Packing(graph, sorted(earliest, key=lambda i: (earliest[i], graph.tasks[i].duration_ticks, i)))
    return packing, packing.justified(earliest, rounds)


def _pack(side: Side, caps: Sequence[int], order: Iterable[int], release: Sequence[int]) -> Starts | None:
    """Starts of ``order`` put down one after another, each as early as it may; ``None`` where memory has no room."""
    table = _Table(side, caps, release)
    starts, takes = table.starts, side.takes
    for i in order:
        if i in starts:
            continue
        ready = table.ready_at(i)
        room = table.room_for(i, ready) if takes[i] else ready
        if room is None:
            return None
        table.put(i, room)
    return starts


class _Table:
    """What is put down so far.

    Args:
        side: The tasks, from the end that packing begins at.
        caps: By stage, the memory units that it has.
        release: By stage, when its clock starts.
    """

    __slots__ = ("caps", "lines", "release", "side", "starts", "waiting")

    def __init__(self, side: Side, caps: Sequence[int], release: Sequence[int]) -> None:
        self.side, self.caps, self.release = side, caps, release
        self.lines = [_Line() for _ in caps]
        self.waiting: list[list[tuple[int, int]]] = [[] for _ in caps]
        self.starts: Starts = {}

    def ready_at(self, i: int) -> int:
        """When the inputs of ``i`` are there."""
        starts, ready = self.starts, self.release[self.side.stage[i]]
        for before, wait in self.side.inputs[i]:
            if (arrival := starts[before] + wait) > ready:
                ready = arrival
        return ready

    def room_for(self, i: int, ready: int) -> int | None:
        """When memory has room for ``i`` for good; ops that nothing waits for go first where it is short."""
        stage = self.side.stage[i]
        line, queue, most = self.lines[stage], self.waiting[stage], self.caps[stage] - self.side.takes[i]
        room = line.room_from(most, ready)
        while queue and (room is None or room > ready):
            _, last = heapq.heappop(queue)
            if last not in self.starts:
                self.put(last, self.ready_at(last))
                room = line.room_from(most, ready)
        return room

    def put(self, i: int, ready: int) -> None:
        """Put ``i`` into the first gap from ``ready`` on."""
        side = self.side
        line, ticks = self.lines[side.stage[i]], side.duration[i]
        self.starts[i] = start = line.place(ready, ticks)
        if side.takes[i]:
            line.change(start, side.takes[i])
        if side.gives[i]:
            line.change(start + ticks, -side.gives[i])
        for last in side.frees[i]:
            heapq.heappush(self.waiting[side.stage[last]], (start, last))
