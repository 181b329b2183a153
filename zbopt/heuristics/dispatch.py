"""List scheduling by simulation: whenever a stage is free, a rule picks its next op among those that could start.

It works on every placement and every set of routes, and never locks up. Microbatches of a route pass in order; the k-th
of each route are older than all that follow. Where a stage holds several virtual stages, a forward is admitted only if
all microbatches up to the youngest on the stage, those that have yet to come included, can still be finished one after
the other, the oldest first; so the oldest of all can always move, and cap for one microbatch is enough.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from zbopt.heuristics.build import Step
from zbopt.heuristics.costs import Costs
from zbopt.heuristics.patience import check
from zbopt.instance import Barrier, Kind, Objective, OpTicks
from zbopt.memory import Way

_STEPS_A_CHECK = 256


@dataclass(frozen=True, slots=True)
class Rule:
    """How a free stage picks its next op: a backward before a forward before a W, but for what is said here.

    Attributes:
        in_flight: By virtual stage, most microbatches between the start of F and the start of B; ``None``: no limit.
        alternate: After a backward a forward goes first, and a W makes room for it.
        least_fill: A W may delay an op that is known to arrive if the gap before that is at least this share of W.
        share_idle: A W delays it too where waiting would make the stage the most idle of all so far.
        may_idle: By stage, ticks that it may be idle before ``share_idle`` counts it as the most idle; ``None``: 0.
        older_first: A forward waits where it would hold up that of an older microbatch which is known to arrive: never,
            until the stage's first backward, or always.
        fuse: Take BW wherever the instance leaves the choice.
        drop: Where the instance leaves the choice, drop activations never, always, or only when there is no room.
        group: Microbatches that pass a virtual stage before the next one of the same stage has its turn.
        sequence: Which of ``Costs.sequences`` the microbatches of each route pass in.
        surprise: Share of the choices between a backward and a forward that go the other way, by ``seed``.
        seed: Of the surprises.
    """

    in_flight: tuple[int, ...] | None = None
    alternate: bool = True
    least_fill: float = 0.0
    share_idle: bool = False
    may_idle: tuple[int, ...] | None = None
    older_first: Literal["never", "warm-up", "always"] = "never"
    fuse: bool = False
    drop: Literal["never", "always", "no-room"] = "never"
    group: int = 1
    sequence: int = 0
    surprise: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The orders that a rule gave, and what comes of them when each op starts as simulated.

    Attributes:
        orders: For each stage, its steps.
        value: Of the instance's objective, in ticks.
        idle: By stage, ticks between its first start and its last end in which it does nothing.
    """

    orders: list[list[Step]]
    value: int
    idle: tuple[int, ...]


def dispatch(costs: Costs, rule: Rule) -> Dispatched:
    """Simulate ``rule`` on an instance.

    Raises:
        OutOfTimeError: The limit of the context was reached.
    """
    return _Simulation(costs, rule).run()


class _Simulation:
    """State by virtual stage (counts, arrivals) and by stage (free from, live, idle)."""

    def __init__(self, costs: Costs, rule: Rule) -> None:
        instance = costs.instance
        self.costs, self.rule, self.instance = costs, rule, instance
        count, stages, m = instance.virtual_stages, instance.stages, instance.microbatches
        self.stage_of = instance.stage_of
        self.sequence = costs.sequences[rule.sequence]
        answers = [costs.backward(v, rule.fuse) for v in range(count)]
        self.backward_kind = [kind for kind, _ in answers]
        self.kept = [kept for _, kept in answers]
        self.splits = [kind is Kind.B for kind in self.backward_kind]
        firsts = [instance.ticks_of(v, self.sequence[v][0]) for v in range(count)]
        self.ticks = None if instance.microbatch_times is not None else firsts
        self.in_flight = rule.in_flight or (m,) * count
        self.forwards, self.backwards, self.weights = [0] * count, [0] * count, [0] * count
        self.sizes: list[list[int]] = [[] for _ in range(count)]
        self.inputs: list[list[int]] = [[] for _ in range(count)]
        self.gradients: list[list[int]] = [[] for _ in range(count)]
        ready = instance.input_ready_ticks or (0,) * m
        first = [v for v in range(count) if instance.previous_of(v) is None]
        for v in first:
            self.inputs[v] = [ready[j] for j in self.sequence[v]]
        self.free_from, self.live, self.idle = [0] * stages, [0] * stages, [0] * stages
        self.after_backward = [False] * stages
        self.most_idle = 0
        self.may_idle = rule.may_idle or (0,) * stages
        self.rows: list[list[Step]] = [[] for _ in range(stages)]
        self.first_start: list[int | None] = [None] * stages
        self.wake = sorted({(time, self.stage_of[v]) for v in first for time in self.inputs[v]})
        self.random = Random(rule.seed)

    def run(self) -> Dispatched:
        steps = 0
        while self.wake:
            steps += 1
            if steps % _STEPS_A_CHECK == 0:
                check()
            now, stage = heapq.heappop(self.wake)
            if self.free_from[stage] <= now:
                self._pick(stage, now)
        assert all(map(operator.eq, self.backwards, map(len, self.sequence))), "no order may lock up"
        return Dispatched(self.rows, self._value(), tuple(self.idle))

    def _pick(self, stage: int, now: int) -> None:
        """Start the next op of a free stage, or leave it idle until the next arrival wakes it."""
        backward, forward, soonest = self._candidates(stage, now)
        if forward is not None and self._forward_first(stage, backward is not None):
            if self._admits(stage, forward):
                self._start_forward(stage, forward, now)
            else:
                self._start_weight(stage, now)
        elif backward is not None:
            self._start_backward(stage, backward, now)
        elif forward is not None and self._admits(stage, forward):
            self._start_forward(stage, forward, now)
        elif self._weight_waits(stage) is not None and self._fills(stage, now, soonest):
            self._start_weight(stage, now)

    def _candidates(self, stage: int, now: int) -> tuple[int | None, int | None, int | None]:
        """Virtual stages whose backward and whose forward could start now, and when the next input is known to come.

        A forward counts if memory has room, or a W could make it.
        """
        backward = forward = soonest = None
        group = self.rule.group
        backward_key = forward_key = (0, 0)
        makes_room = self._weight_waits(stage) is not None
        for v in self.costs.on_stage[stage]:
            done = self.backwards[v]
            if done < len(self.gradients[v]):
                arrival = self.gradients[v][done]
                if arrival > now:
                    soonest = arrival if soonest is None else min(soonest, arrival)
                elif backward is None or (done // group, -v) < backward_key:
                    backward, backward_key = v, (done // group, -v)
            done = self.forwards[v]
            if done < len(self.inputs[v]) and done - self.backwards[v] < self.in_flight[v]:
                arrival = self.inputs[v][done]
                fits = self._admits(stage, v)
                if arrival > now:
                    if fits:
                        soonest = arrival if soonest is None else min(soonest, arrival)
                elif (fits or makes_room) and (forward is None or (done // group, v) < forward_key):
                    forward, forward_key = v, (done // group, v)
        if forward is not None and self._holds_up_older(stage, forward, now):
            forward = None
        return backward, forward, soonest

    def _holds_up_older(self, stage: int, virtual_stage: int, now: int) -> bool:
        """A forward that begins now would still run when that of an older microbatch arrives."""
        held_here = self.costs.on_stage[stage]
        warm = self.rule.older_first == "warm-up" and not any(self.backwards[v] for v in held_here)
        if not warm and self.rule.older_first != "always":
            return False
        place = self.forwards[virtual_stage]
        end = now + self._ticks(virtual_stage, place).forward
        waiting = [
            v
            for v in held_here
            if self.forwards[v] < min(place, len(self.inputs[v]), self.backwards[v] + self.in_flight[v])
        ]
        return any(now < self.inputs[v][self.forwards[v]] < end for v in waiting)

    def _forward_first(self, stage: int, backward_ready: bool) -> bool:
        if not backward_ready:
            return False
        first = self.rule.alternate and self.after_backward[stage]
        if self.rule.surprise and self.random.random() < self.rule.surprise:
            return not first
        return first

    def _admits(self, stage: int, virtual_stage: int, size: int | None = None) -> bool:
        """Memory has room for a forward, and all microbatches on the stage can be finished after it.

        Args:
            stage: Where.
            virtual_stage: Of the forward.
            size: What it takes; ``None``: the least that it may.
        """
        least = self.costs.left
        size = least[virtual_stage] if size is None else size
        free = self.costs.cap[stage] - self.live[stage] - size
        held_here = self.costs.on_stage[stage]
        whole = self.costs.whole[stage]
        if free < 0 or free >= whole or len(held_here) == 1:
            return free >= 0
        forwards = {v: self.forwards[v] for v in held_here}
        forwards[virtual_stage] += 1
        oldest = min(self._released(v) for v in held_here)
        for place in range(oldest, max(forwards.values())):
            for way in self.costs.routes_on[stage]:
                if place >= len(self.sequence[way[0]]):
                    continue
                has = [v for v in way if place < forwards[v]]
                if sum(least[v] for v in way if v not in has) > free:
                    return False
                free += sum(self._holds(v, place, size) for v in has)
                if free >= whole:
                    return True
        return True

    def _released(self, virtual_stage: int) -> int:
        """Number of microbatches that hold nothing more on a virtual stage."""
        return self.weights[virtual_stage] if self.splits[virtual_stage] else self.backwards[virtual_stage]

    def _holds(self, virtual_stage: int, place: int, size: int) -> int:
        """Memory of the microbatch at a place: its forward has run, or is about to and takes ``size``."""
        if place >= self.backwards[virtual_stage]:
            sizes = self.sizes[virtual_stage]
            return sizes[place] if place < len(sizes) else size
        return self.kept[virtual_stage] if place >= self._released(virtual_stage) else 0

    def _ticks(self, virtual_stage: int, place: int) -> OpTicks:
        """Times of the microbatch at a place of the sequence."""
        if self.ticks is not None:
            return self.ticks[virtual_stage]
        return self.costs.ticks(virtual_stage, self.sequence[virtual_stage][place])

    def _takes(self, stage: int, virtual_stage: int) -> int:
        """What the next forward holds until its backward: all of it, or what is left where it drops its activation."""
        whole, least = self.costs.activation[virtual_stage], self.costs.left[virtual_stage]
        if least == whole or self.costs.must_drop[virtual_stage] or self.rule.drop == "always":
            return least
        return whole if self._admits(stage, virtual_stage, whole) else least

    def _weight_waits(self, stage: int) -> int | None:
        """The virtual stage whose W is next on a stage; ``None``: no W waits."""
        best, best_key = None, (0, 0)
        for v in self.costs.on_stage[stage]:
            done = self.weights[v]
            if self.splits[v] and done < self.backwards[v]:
                key = (done // self.rule.group, -v)
                if best is None or key < best_key:
                    best, best_key = v, key
        return best

    def _fills(self, stage: int, now: int, soonest: int | None) -> bool:
        """A W may start now although an input comes at ``soonest``."""
        weight = self._weight_waits(stage)
        assert weight is not None
        ticks = self._ticks(weight, self.weights[weight]).weight or 0
        if soonest is None or soonest - now >= ticks or soonest - now >= self.rule.least_fill * ticks:
            return True
        wait = soonest - self.free_from[stage] if self.rows[stage] else 0
        return self.rule.share_idle and self.idle[stage] + wait > max(self.most_idle, self.may_idle[stage])

    def _start_forward(self, stage: int, v: int, now: int) -> None:
        end = self._run(stage, Kind.F, v, self.forwards[v], now)
        size = self._takes(stage, v)
        self.forwards[v] += 1
        self.live[stage] += size
        self.sizes[v].append(size)
        self.after_backward[stage] = False
        after = self.instance.next_of(v)
        if after is None:
            self._deliver(self.gradients[v], v, v, end)
        else:
            self._deliver(self.inputs[after], v, after, end)

    def _start_backward(self, stage: int, v: int, now: int) -> None:
        if self.sizes[v][self.backwards[v]] < self.costs.activation[v] or self.costs.must_drop[v]:
            self._start_restored(stage, v, now)
            return
        if self._lacks_room(stage, self.costs.added[v]):
            self._start_weight(stage, now)
            return
        end = self._run(stage, self.backward_kind[v], v, self.backwards[v], now)
        self.backwards[v] += 1
        self.live[stage] -= self.costs.activation[v] - self.kept[v]
        self.after_backward[stage] = True
        self._send_gradient(v, end)

    def _lacks_room(self, stage: int, amount: int) -> bool:
        """So much more would not fit, the reserve included, until a W has run."""
        return self.live[stage] + amount > self.costs.cap[stage] + self.costs.reserve[stage]

    def _send_gradient(self, v: int, end: int) -> None:
        before = self.instance.previous_of(v)
        if before is not None:
            self._deliver(self.gradients[before], v, before, end)

    def _start_restored(self, stage: int, v: int, now: int) -> None:
        """R where that is the way, the backward, and W at once; W that still wait go first, to keep their order."""
        while self.splits[v] and self.weights[v] < self.backwards[v]:
            now = self._run_weight(stage, v, now)
        while self._lacks_room(stage, self.costs.reserve[stage]):
            waits = self._weight_waits(stage)
            assert waits is not None, "what no W holds leaves the reserve alone"
            now = self._run_weight(stage, waits, now)
        if self.costs.way[v] is Way.RECOMPUTE:
            now = self._run(stage, Kind.R, v, self.backwards[v], now)
        end = self._run(stage, self.backward_kind[v], v, self.backwards[v], now)
        self.live[stage] -= self.sizes[v][self.backwards[v]] - self.kept[v]
        self.backwards[v] += 1
        self.after_backward[stage] = True
        self._send_gradient(v, end)
        if self.splits[v]:
            self._run_weight(stage, v, end)

    def _start_weight(self, stage: int, now: int) -> None:
        v = self._weight_waits(stage)
        assert v is not None
        self._run_weight(stage, v, now)

    def _run_weight(self, stage: int, v: int, now: int) -> int:
        end = self._run(stage, Kind.W, v, self.weights[v], now)
        self.weights[v] += 1
        self.live[stage] -= self.kept[v]
        return end

    def _run(self, stage: int, kind: Kind, v: int, place: int, now: int) -> int:
        """Run an op of the microbatch at a place of the sequence; its end."""
        ticks = self._ticks(v, place).of(kind)
        assert ticks is not None, "the instance has times for the ops that it has"
        return self._occupy(stage, (kind, v, self.sequence[v][place]), now, ticks)

    def _occupy(self, stage: int, step: Step, now: int, ticks: int) -> int:
        if self.first_start[stage] is None:
            self.first_start[stage] = now
        else:
            self.idle[stage] += now - self.free_from[stage]
            self.most_idle = max(self.most_idle, self.idle[stage])
        self.rows[stage].append(step)
        self.free_from[stage] = now + ticks
        heapq.heappush(self.wake, (now + ticks, stage))
        return now + ticks

    def _deliver(self, arrivals: list[int], from_virtual: int, to_virtual: int, end: int) -> None:
        arrival = end + self.costs.lag(from_virtual, to_virtual)
        arrivals.append(arrival)
        heapq.heappush(self.wake, (arrival, self.stage_of[to_virtual]))

    def _value(self) -> int:
        """The instance's objective, optimizer steps included."""
        instance, ends = self.instance, self.free_from
        if instance.barrier is Barrier.GLOBAL:
            ends = [max(ends)] * len(ends)
        ends = [end + ticks for end, ticks in zip(ends, instance.optimizer_ticks or [0] * len(ends), strict=True)]
        if instance.objective is Objective.MAKESPAN:
            # The end of one iteration says too little of several: every further one takes a stage's span more.
            return max(ends) + (instance.iterations - 1) * self._largest_span(ends)
        return self._largest_span(ends)

    def _largest_span(self, ends: Sequence[int]) -> int:
        return max(end - (start or 0) for end, start in zip(ends, self.first_start, strict=True))
