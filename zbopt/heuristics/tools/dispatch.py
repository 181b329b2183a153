"""List scheduling by simulation: whenever a stage is free, a rule picks its next op among those that could start.

It works on every placement and every set of routes, and never locks up. Microbatches of a route pass in order; the k-th
of each route are older than all that follow. Where a stage holds several virtual stages, a forward is admitted only if
all microbatches up to the youngest on the stage, those that have yet to come included, can still be finished one after
the other, the oldest first. So the oldest of all can always move, and a cap that holds one microbatch is enough.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from zbopt.graph.memory import ActivationPolicy
from zbopt.heuristics.tools.build import OrderedOp
from zbopt.heuristics.tools.costs import Costs
from zbopt.heuristics.tools.patience import check_time
from zbopt.heuristics.tools.rule import Rule
from zbopt.problem.instance import Barrier, Kind, Objective

_PICKS_A_CHECK = 256
"""Picks of an op between two questions whether time is over: about a millisecond."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Hold the orders that a rule gave, and their times as simulated.

    Attributes:
        orders: For each stage, its ops.
        times: For each stage, when each of its ops starts and ends, in ticks.
        value: Value of the instance's objective, in ticks.
        idle: By stage, ticks between its first start and its last end in which it does nothing.
    """

    orders: list[list[OrderedOp]]
    times: list[list[tuple[int, int]]]
    value: int
    idle: tuple[int, ...]


def dispatch(costs: Costs, rule: Rule) -> Dispatched:
    """Simulate ``rule`` on an instance.

    Raises:
        OutOfTimeError: The limit of the context was reached.
    """
    found = _Simulation(costs, rule, None).run()
    assert found is not None, "without a limit on the value a simulation runs to its end"
    return found


def dispatch_within(costs: Costs, rule: Rule, most: int) -> Dispatched | None:
    """Simulate ``rule`` on an instance; ``None``: the value is above ``most``, found out as soon as that is sure.

    Raises:
        OutOfTimeError: The limit of the context was reached.
    """
    found = _Simulation(costs, rule, most).run()
    return None if found is None or found.value > most else found


def _lists(count: int) -> list[Any]:
    """Return so many empty lists."""
    return [[] for _ in range(count)]


class _Simulation:
    """Hold the state of a simulation by virtual stage (counts, arrivals) and by stage (free from, live, idle).

    Its loops run for each op of each rule, and there are hundreds of rules: what never changes is looked up once.
    """

    def __init__(self, costs: Costs, rule: Rule, most: int | None) -> None:
        instance = costs.instance
        self.costs, self.rule, self.instance = costs, rule, instance
        count, stages, m = instance.virtual_stages, instance.stages, instance.microbatches
        self.stage_of, self.on_stage = instance.stage_of, costs.on_stage
        self.sequence = costs.sequences[rule.sequence]
        self._look_up(count)
        self.in_flight, self.may_idle = rule.in_flight or (m,) * count, rule.may_idle or (0,) * stages
        self.idle_left = None if most is None else [most - load for load in costs.loads(rule.sequence, rule.fuse)]
        self.forwards, self.backwards, self.weights = [0] * count, [0] * count, [0] * count
        self.sizes: list[list[int]] = _lists(count)
        self.inputs: list[list[int]] = _lists(count)
        self.gradients: list[list[int]] = _lists(count)
        self.free_from, self.live, self.idle = [0] * stages, [0] * stages, [0] * stages
        self.after_backward = [False] * stages
        self.most_idle = 0
        self.is_above = False
        self.orders: list[list[OrderedOp]] = _lists(stages)
        self.times: list[list[tuple[int, int]]] = _lists(stages)
        self.first_start: list[int | None] = [None] * stages
        ready = instance.input_ready_ticks or (0,) * m
        first = [v for v in range(count) if self.previous_of[v] is None]
        for v in first:
            self.inputs[v] = [ready[j] for j in self.sequence[v]]
        self.wake = sorted({(time, self.stage_of[v]) for v in first for time in self.inputs[v]})
        self.random = Random(rule.seed)

    def _look_up(self, count: int) -> None:
        """Look up what does not change: neighbours of the virtual stages, their ops, and the caps of the stages."""
        costs, rule, instance = self.costs, self.rule, self.instance
        self.next_of = [instance.next_of(v) for v in range(count)]
        self.previous_of = [instance.previous_of(v) for v in range(count)]
        answers = [costs.backward(v, rule.fuse) for v in range(count)]
        self.backward_kind = [kind for kind, _ in answers]
        self.kept = [kept for _, kept in answers]
        self.splits = [kind is Kind.B for kind in self.backward_kind]
        self.forward_ticks, self.backward_ticks, self.weight_ticks = costs.durations(rule.sequence, rule.fuse)
        spare = zip(costs.cap, costs.whole, rule.spare or (0,) * instance.stages, strict=True)
        self.cap = [max(whole, cap - amount) for cap, whole, amount in spare]

    def run(self) -> Dispatched | None:
        """Run all ops; ``None``: the value is sure to be above the limit."""
        picks, wake, free_from = 0, self.wake, self.free_from
        while wake:
            picks += 1
            if picks % _PICKS_A_CHECK == 0:
                check_time()
            now, stage = heapq.heappop(wake)
            if free_from[stage] <= now:
                self._pick(stage, now)
                if self.is_above:
                    return None
        assert all(map(operator.eq, self.backwards, map(len, self.sequence))), "no order may lock up"
        return Dispatched(self.orders, self.times, self._value(), tuple(self.idle))

    def _pick(self, stage: int, now: int) -> None:
        """Start the next op of a free stage, or leave it idle until the next arrival wakes it."""
        backward = self._ready_backward(stage, now)
        if backward is not None and not self.rule.surprise and not self._has_forward_turn(stage):
            self._start_backward(stage, backward, now)
            return
        forward, fits = self._ready_forward(stage, now)
        if forward is not None and backward is not None and self._forward_first(stage):
            if fits:
                self._start_forward(stage, forward, now)
            else:
                self._start_weight(stage, now)
        elif backward is not None:
            self._start_backward(stage, backward, now)
        elif forward is not None and fits:
            self._start_forward(stage, forward, now)
        else:
            weight = self._weight_waits(stage)
            if weight is not None and self._fills(stage, weight, now):
                self._run_weight(stage, weight, now)

    def _ready_backward(self, stage: int, now: int) -> int | None:
        """Return the virtual stage whose backward could start now, of several the one whose turn it is."""
        best, best_key, group = None, (0, 0), self.rule.group
        for v in self.on_stage[stage]:
            done, arrivals = self.backwards[v], self.gradients[v]
            if done < len(arrivals) and arrivals[done] <= now and (best is None or (done // group, -v) < best_key):
                best, best_key = v, (done // group, -v)
        return best

    def _ready_forward(self, stage: int, now: int) -> tuple[int | None, bool]:
        """Return the virtual stage whose forward could start now or after a W, and whether memory has room now."""
        best, best_key, best_fits, group = None, (0, 0), False, self.rule.group
        for v in self.on_stage[stage]:
            done, arrivals = self.forwards[v], self.inputs[v]
            if done >= len(arrivals) or arrivals[done] > now or done - self.backwards[v] >= self.in_flight[v]:
                continue
            if best is not None and (done // group, v) >= best_key:
                continue
            fits = self._admits(stage, v)
            if fits or self._weight_waits(stage) is not None:
                best, best_key, best_fits = v, (done // group, v), fits
        if best is not None and self.rule.older_first != "never" and self._holds_up_older(stage, best, now):
            return None, False
        return best, best_fits

    def _next_arrival(self, stage: int, now: int) -> int | None:
        """Return when the next input is known to come, for forwards only if memory has room; ``None``: not known."""
        soonest = None
        for v in self.on_stage[stage]:
            done, arrivals = self.backwards[v], self.gradients[v]
            if done < len(arrivals) and arrivals[done] > now and (soonest is None or arrivals[done] < soonest):
                soonest = arrivals[done]
            ahead, arrivals = self.forwards[v], self.inputs[v]
            if ahead >= len(arrivals) or ahead - done >= self.in_flight[v] or arrivals[ahead] <= now:
                continue
            if (soonest is None or arrivals[ahead] < soonest) and self._admits(stage, v):
                soonest = arrivals[ahead]
        return soonest

    def _holds_up_older(self, stage: int, virtual_stage: int, now: int) -> bool:
        """Return whether a forward that begins now would still run when that of an older microbatch arrives."""
        on_stage = self.on_stage[stage]
        warm = self.rule.older_first == "warm-up" and not any(self.backwards[v] for v in on_stage)
        if not warm and self.rule.older_first != "always":
            return False
        place = self.forwards[virtual_stage]
        end = now + self.forward_ticks[virtual_stage][place]
        for v in on_stage:
            done = self.forwards[v]
            may_come = done < min(place, len(self.inputs[v]), self.backwards[v] + self.in_flight[v])
            if may_come and now < self.inputs[v][done] < end:
                return True
        return False

    def _has_forward_turn(self, stage: int) -> bool:
        return self.rule.alternate and self.after_backward[stage]

    def _forward_first(self, stage: int) -> bool:
        """Return whether the forward goes first where a backward and a forward could start."""
        first = self._has_forward_turn(stage)
        if self.rule.surprise and self.random.random() < self.rule.surprise:
            return not first
        return first

    def _admits(self, stage: int, virtual_stage: int, size: int | None = None) -> bool:
        """Return whether memory has room for a forward, and all microbatches on the stage can be finished after it.

        Args:
            stage: The stage.
            virtual_stage: Virtual stage of the forward.
            size: Memory that it takes; ``None``: the least that it may.
        """
        size = self.costs.left[virtual_stage] if size is None else size
        free = self.cap[stage] - self.live[stage] - size
        if free < 0 or free >= self.costs.whole[stage] or len(self.on_stage[stage]) == 1:
            return free >= 0
        return self._can_finish(stage, virtual_stage, size, free)

    def _can_finish(self, stage: int, virtual_stage: int, size: int, free: int) -> bool:
        """Return whether microbatches can be finished one by one after a forward of ``size`` that leaves ``free``."""
        on_stage, least, whole = self.on_stage[stage], self.costs.left, self.costs.whole[stage]
        forwards = {v: self.forwards[v] for v in on_stage}
        forwards[virtual_stage] += 1
        oldest = min([(self.weights if self.splits[v] else self.backwards)[v] for v in on_stage])
        for place in range(oldest, max(forwards.values())):
            for route in self.costs.routes_on[stage]:
                if place >= len(self.sequence[route[0]]):
                    continue
                needed = released = 0
                for v in route:
                    if place < forwards[v]:
                        released += self._holds(v, place, size)
                    else:
                        needed += least[v]
                if needed > free:
                    return False
                free += released
                if free >= whole:
                    return True
        return True

    def _holds(self, virtual_stage: int, place: int, size: int) -> int:
        """Return the memory of the microbatch at a place: its forward has run, or is about to and takes ``size``."""
        if place >= self.backwards[virtual_stage]:
            sizes = self.sizes[virtual_stage]
            return sizes[place] if place < len(sizes) else size
        waits = self.splits[virtual_stage] and place >= self.weights[virtual_stage]
        return self.kept[virtual_stage] if waits else 0

    def _takes(self, stage: int, virtual_stage: int) -> int:
        """Return the memory that the next forward holds until its backward: less where it drops its activation."""
        whole, least = self.costs.activation[virtual_stage], self.costs.left[virtual_stage]
        if least == whole or self.costs.must_drop[virtual_stage] or self.rule.drop == "always":
            return least
        return whole if self._admits(stage, virtual_stage, whole) else least

    def _weight_waits(self, stage: int) -> int | None:
        """Return the virtual stage whose W is next on a stage; ``None``: no W waits."""
        best, best_key = None, (0, 0)
        for v in self.costs.on_stage[stage]:
            done = self.weights[v]
            if self.splits[v] and done < self.backwards[v]:
                key = (done // self.rule.group, -v)
                if best is None or key < best_key:
                    best, best_key = v, key
        return best

    def _fills(self, stage: int, weight: int, now: int) -> bool:
        """Return whether the W of a virtual stage may start now although an input may come before its end."""
        if not self.rule.least_fill:
            return True
        soonest = self._next_arrival(stage, now)
        ticks = self.weight_ticks[weight][self.weights[weight]]
        if soonest is None or soonest - now >= ticks or soonest - now >= self.rule.least_fill * ticks:
            return True
        wait = soonest - self.free_from[stage] if self.orders[stage] else 0
        return self.rule.share_idle and self.idle[stage] + wait > max(self.most_idle, self.may_idle[stage])

    def _start_forward(self, stage: int, v: int, now: int) -> None:
        place = self.forwards[v]
        end = self._run(stage, (Kind.F, v, self.sequence[v][place]), now, self.forward_ticks[v][place])
        size = self._takes(stage, v)
        self.forwards[v] += 1
        self.live[stage] += size
        self.sizes[v].append(size)
        self.after_backward[stage] = False
        after = self.next_of[v]
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
        end = self._run_backward(stage, v, now)
        self.backwards[v] += 1
        self.live[stage] -= self.costs.activation[v] - self.kept[v]
        self.after_backward[stage] = True
        self._send_gradient(v, end)

    def _lacks_room(self, stage: int, amount: int) -> bool:
        """Return whether so much more would not fit, the reserve included, until a W has run."""
        return self.live[stage] + amount > self.costs.cap[stage] + self.costs.reserve[stage]

    def _send_gradient(self, v: int, end: int) -> None:
        before = self.previous_of[v]
        if before is not None:
            self._deliver(self.gradients[before], v, before, end)

    def _start_restored(self, stage: int, v: int, now: int) -> None:
        """Run R where activations are recomputed, the backward, and its W at once, after all W that still wait."""
        while self.splits[v] and self.weights[v] < self.backwards[v]:
            now = self._run_weight(stage, v, now)
        while self._lacks_room(stage, self.costs.reserve[stage]):
            waits = self._weight_waits(stage)
            assert waits is not None, "what no W holds leaves the reserve alone"
            now = self._run_weight(stage, waits, now)
        if self.costs.policy[v] is ActivationPolicy.RECOMPUTE:
            microbatch = self.sequence[v][self.backwards[v]]
            ticks = self.costs.ticks(v, microbatch).recompute
            assert ticks is not None, "what is recomputed has a time for it"
            now = self._run(stage, (Kind.R, v, microbatch), now, ticks)
        end = self._run_backward(stage, v, now)
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
        place = self.weights[v]
        end = self._run(stage, (Kind.W, v, self.sequence[v][place]), now, self.weight_ticks[v][place])
        self.weights[v] += 1
        self.live[stage] -= self.kept[v]
        return end

    def _run_backward(self, stage: int, v: int, now: int) -> int:
        place = self.backwards[v]
        op = self.backward_kind[v], v, self.sequence[v][place]
        return self._run(stage, op, now, self.backward_ticks[v][place])

    def _run(self, stage: int, op: OrderedOp, now: int, ticks: int) -> int:
        """Run an op, and return its end."""
        if self.first_start[stage] is None:
            self.first_start[stage] = now
            if self.idle_left is not None and self.instance.objective is Objective.MAKESPAN:
                self.idle_left[stage] -= now
        elif now > self.free_from[stage]:
            idle = self.idle[stage] = self.idle[stage] + now - self.free_from[stage]
            if idle > self.most_idle:
                self.most_idle = idle
        if self.idle_left is not None and self.idle[stage] > self.idle_left[stage]:
            self.is_above = True
        end = self.free_from[stage] = now + ticks
        self.orders[stage].append(op)
        self.times[stage].append((now, end))
        heapq.heappush(self.wake, (end, stage))
        return end

    def _deliver(self, arrivals: list[int], from_virtual: int, to_virtual: int, end: int) -> None:
        arrival = end + self.costs.lag(from_virtual, to_virtual)
        arrivals.append(arrival)
        heapq.heappush(self.wake, (arrival, self.stage_of[to_virtual]))

    def _value(self) -> int:
        """Return the value of the instance's objective, optimizer steps included."""
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
