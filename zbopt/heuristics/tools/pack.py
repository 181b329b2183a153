"""Serial packing: each op in turn goes to the earliest place on its stage where time, inputs and memory let it run.

Unlike an order, which says what follows what, a packing may put an op into a gap that earlier ones have left. Done
from both ends in turn (``Packing.justified``) it never makes a schedule longer, and mostly makes it shorter: the
forward-backward improvement of project scheduling (Li and Willis 1992, Tormos and Lova 2001), here with memory that
is held from one op to another. It reads only the task graph, and so works on every placement and route.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from zbopt.graph import Key, TaskGraph
from zbopt.heuristics.tools.build import OrderedOp
from zbopt.heuristics.tools.patience import check_time, is_over
from zbopt.problem.instance import Objective
from zbopt.timing import earliest_starts

Starts = dict[int, int]
"""Start of each task that runs, in ticks."""

_Waits = list[list[tuple[int, int]]]
"""For each task, (task, ticks from the start of one to the earliest start of the other)."""

ROUNDS = 8
"""Packings from both ends of an order that is returned; most stop changing after three. Not measured in bench/."""


@dataclass(frozen=True, slots=True)
class Direction:
    """Hold what packing reads of the tasks, seen from the start of the step or, mirrored, from its end.

    All lists are by task.

    Attributes:
        duration: Ticks that the task takes.
        stage: Stage that it runs on.
        inputs: (task, ticks from its start to the earliest start of this one).
        taken: Memory units that the stage loses at its start.
        released: Memory units that the stage gets back at its end.
        releasing: Tasks that wait for this one alone, that release memory, and that no task waits for.
    """

    duration: list[int]
    stage: list[int]
    inputs: list[list[tuple[int, int]]]
    taken: list[int]
    released: list[int]
    releasing: list[list[int]]


class Packing:
    """Pack the tasks of one schedule of a graph from either end.

    Args:
        graph: The task graph.
        order: The tasks that run, without optimizer steps, each after its inputs. Tasks of one kind and virtual
            stage keep the order that they have here.
    """

    def __init__(self, graph: TaskGraph, order: Sequence[int]) -> None:
        self.graph, self.order = graph, list(order)
        runs = set(self.order)
        taken, released = self._memory(runs)
        duration, stage = [task.duration_ticks for task in graph.tasks], [task.stage for task in graph.tasks]
        inputs, outputs = self._waits(runs, duration)
        releasing: list[list[int]] = [[] for _ in graph.tasks]
        for i in self.order:
            if released[i] and not outputs[i] and len(inputs[i]) == 1:
                releasing[inputs[i][0][0]].append(i)
        self._keep_class_order(inputs, outputs, duration)
        self.from_start = Direction(duration, stage, inputs, taken, released, releasing)
        self.from_end = Direction(duration, stage, outputs, released, taken, [[]] * len(graph.tasks))
        self.caps = graph.caps or (sum(taken) + 1,) * graph.instance.stages
        self.offsets = self._offsets()

    def _waits(self, runs: Container[int], duration: Sequence[int]) -> tuple[_Waits, _Waits]:
        """Return inputs and outputs of each task that runs, by the precedences of the graph."""
        inputs: _Waits = [[] for _ in self.graph.tasks]
        outputs: _Waits = [[] for _ in self.graph.tasks]
        for i in self.order:
            before, after = self.graph.predecessors[i], self.graph.successors[i]
            inputs[i] = [(j, duration[j] + lag) for j, lag in before if j in runs]
            outputs[i] = [(j, duration[j] + lag) for j, lag in after if j in runs]
        return inputs, outputs

    def _keep_class_order(self, inputs: _Waits, outputs: _Waits, duration: Sequence[int]) -> None:
        """Let each task also wait for the one of its kind and virtual stage that is before it in ``order``."""
        previous: dict[object, int] = {}
        for i in self.order:
            key = self.graph.tasks[i].kind, self.graph.tasks[i].virtual_stage
            if key in previous:
                inputs[i].append((previous[key], duration[previous[key]]))
                outputs[previous[key]].append((i, duration[i]))
            previous[key] = i

    def _memory(self, runs: Container[int]) -> tuple[list[int], list[int]]:
        """Return the memory that each task takes at its start, and that it releases at its end."""
        options = self.graph.taken(runs)
        taken, released = [0] * len(self.graph.tasks), [0] * len(self.graph.tasks)
        for residence in self.graph.residences:
            exists = residence.when is None or options[residence.when[0]] == residence.when[1]
            if exists and residence.first in runs and residence.last in runs:
                taken[residence.first] += residence.amount
                released[residence.last] += residence.amount
        return taken, released

    def _offsets(self) -> list[int]:
        """Return by stage when its clock starts: at 0, or for the largest span at the first possible start of an op."""
        offsets = [0] * self.graph.instance.stages
        if self.graph.instance.objective is not Objective.MAX_STAGE_SPAN:
            return offsets
        heads: Starts = {}
        seen: set[int] = set()
        for i in self.order:
            heads[i] = max((heads[before] + wait for before, wait in self.from_start.inputs[i]), default=0)
            if self.from_start.stage[i] not in seen:
                seen.add(self.from_start.stage[i])
                offsets[self.from_start.stage[i]] = heads[i]
        return offsets

    def orders(self, starts: Mapping[int, int]) -> list[list[OrderedOp]]:
        """Return for each stage its ops in the order of ``starts``."""
        return ops_by_stage(self.graph, sorted(starts, key=lambda i: (starts[i], self.from_start.duration[i], i)))

    def value(self, starts: Mapping[int, int]) -> int:
        """Return the last end of a stage by its own clock, the largest of all stages."""
        duration, stage = self.from_start.duration, self.from_start.stage
        return max(start + duration[i] - self.offsets[stage[i]] for i, start in starts.items())

    def forward(self, order: Iterable[int]) -> Starts | None:
        """Pack ``order`` from the start of the step; ``None`` where memory never has room for an op.

        Where memory is short, ops that nothing waits for go before their turn.

        Raises:
            OutOfTimeError: The limit of the context was reached before it began.
        """
        check_time()
        return self._packed(order)

    def _packed(self, order: Iterable[int]) -> Starts | None:
        return _pack(self.from_start, self.caps, order, [0] * len(self.caps))

    def justified(self, starts: Starts, rounds: int) -> Starts:
        """Pack ``starts`` from the end, then from the start again, ``rounds`` times at most, and return the best."""
        best, value = starts, self.value(starts)
        for _ in range(rounds):
            if is_over():
                break
            later = self._packed_from_end(best, value)
            sooner = later and self._packed(sorted(later, key=lambda i: (later[i], self.from_start.duration[i], i)))
            if not sooner:
                break
            found = self.value(sooner)
            if found > value or sooner == best:
                break
            best, value = sooner, found
        return best

    def _packed_from_end(self, starts: Starts, value: int) -> Starts | None:
        """Pack towards each stage's last end at ``value`` by its own clock, the ops that end last first.

        ``None``: memory never has room for an op.
        """
        duration = self.from_start.duration
        latest = max(self.offsets) + value
        order = sorted(starts, key=lambda i: (-starts[i] - duration[i], -starts[i], -i))
        mirrored = _pack(self.from_end, self.caps, order, [latest - value - offset for offset in self.offsets])
        return mirrored and {i: latest - start - duration[i] for i, start in mirrored.items()}


class _Timeline:
    """Hold the busy intervals of one stage, and its changes of memory in order of time."""

    __slots__ = ("changes", "ends", "level", "starts", "times")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.times: list[int] = []
        self.changes: list[int] = []
        self.level = 0

    def place(self, ready: int, ticks: int) -> int:
        """Occupy the earliest ``ticks`` that are free from ``ready`` on, and return their start."""
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
        """Return the earliest time from ``ready`` on after which at most ``most`` is held for good; ``None``: never."""
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


def ops_by_stage(graph: TaskGraph, tasks: Iterable[int]) -> list[list[OrderedOp]]:
    """Return for each stage its ops of microbatches in the order of ``tasks``."""
    orders: list[list[OrderedOp]] = [[] for _ in range(graph.instance.stages)]
    for i in tasks:
        task = graph.tasks[i]
        assert task.virtual_stage is not None
        assert task.microbatch is not None
        orders[task.stage].append((task.kind, task.virtual_stage, task.microbatch))
    return orders


def packed_order(
    graph: TaskGraph, orders: Sequence[Sequence[OrderedOp]], rounds: int = ROUNDS
) -> tuple[Packing, Starts]:
    """Pack an order of the ops of each stage, which fits the cap, from both ends ``rounds`` times at most."""
    earliest = earliest_starts(graph, [[graph.index[Key(*op)] for op in order] for order in orders])
    packing = Packing(graph, sorted(earliest, key=lambda i: (earliest[i], graph.tasks[i].duration_ticks, i)))
    return packing, packing.justified(earliest, rounds)


def _pack(direction: Direction, caps: Sequence[int], order: Iterable[int], release: Sequence[int]) -> Starts | None:
    """Put down ``order`` task by task, each as early as it may start; ``None`` where memory has no room."""
    schedule = _PartialSchedule(direction, caps, release)
    starts, taken = schedule.starts, direction.taken
    for i in order:
        if i in starts:
            continue
        ready = schedule.ready_at(i)
        room = schedule.room_for(i, ready) if taken[i] else ready
        if room is None:
            return None
        schedule.put(i, room)
    return starts


class _PartialSchedule:
    """Hold the tasks that are put down so far.

    Args:
        direction: The tasks, from the end that packing begins at.
        caps: By stage, the memory units that it has.
        release: By stage, when its clock starts.
    """

    __slots__ = ("caps", "direction", "release", "starts", "timelines", "waiting")

    def __init__(self, direction: Direction, caps: Sequence[int], release: Sequence[int]) -> None:
        self.direction, self.caps, self.release = direction, caps, release
        self.timelines = [_Timeline() for _ in caps]
        self.waiting: list[list[tuple[int, int]]] = [[] for _ in caps]
        self.starts: Starts = {}

    def ready_at(self, i: int) -> int:
        """Return when the inputs of ``i`` are there."""
        starts, ready = self.starts, self.release[self.direction.stage[i]]
        for before, wait in self.direction.inputs[i]:
            if (arrival := starts[before] + wait) > ready:
                ready = arrival
        return ready

    def room_for(self, i: int, ready: int) -> int | None:
        """Return when memory has room for ``i`` for good; ``None``: never.

        Where it is short, ops that nothing waits for go first.
        """
        stage = self.direction.stage[i]
        line, queue, most = self.timelines[stage], self.waiting[stage], self.caps[stage] - self.direction.taken[i]
        room = line.room_from(most, ready)
        while queue and (room is None or room > ready):
            _, last = heapq.heappop(queue)
            if last not in self.starts:
                self.put(last, self.ready_at(last))
                room = line.room_from(most, ready)
        return room

    def put(self, i: int, ready: int) -> None:
        """Put ``i`` into the first gap from ``ready`` on."""
        direction = self.direction
        line, ticks = self.timelines[direction.stage[i]], direction.duration[i]
        self.starts[i] = start = line.place(ready, ticks)
        if direction.taken[i]:
            line.change(start, direction.taken[i])
        if direction.released[i]:
            line.change(start + ticks, -direction.released[i])
        for last in direction.releasing[i]:
            heapq.heappush(self.waiting[direction.stage[last]], (start, last))
