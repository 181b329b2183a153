"""Moves of the next microbatch down the stages, against those that come up, and the states that they lead to.

A state says what has been decided once the forwards of so many microbatches are placed on all stages: which B run
before the last of them, and the least times that follow. All its times count from the next possible start of an F.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from zbopt.bounds.crossings.pipe import Pipe


class Rising(NamedTuple):
    """Describe a microbatch whose B has yet to run on stages ``stage`` to 0, on ``stage`` not before ``ready``."""

    stage: int
    ready: int


class State(NamedTuple):
    """Hold all that the future depends on.

    Attributes:
        free: By stage, when its next op may start at the earliest.
        waiting: Microbatches that wait for W on stage 0 after their B there.
        rising: Those whose B has yet to run on stage 0, in order.
    """

    free: tuple[int, ...]
    waiting: int
    rising: tuple[Rising, ...]


@dataclass(frozen=True, slots=True)
class Moves:
    """Apply the rules of one pipeline to states."""

    pipe: Pipe

    def first(self) -> tuple[int, State]:
        """Return the time and the state after the first microbatch."""
        pipe, time, free = self.pipe, 0, []
        for forward, lag in zip(pipe.forward, pipe.down, strict=True):
            free.append(time + forward)
            time += forward + lag
        return self.settled(State(tuple(free), 0, (Rising(len(free) - 1, free[-1]),)))

    def climbs(self, state: State) -> list[list[int]]:
        """Return the least start of each B to come if no further F comes first, by rising microbatch and stage.

        On stage 0 it is the gradient's arrival.
        """
        backward, up = self.pipe.backward, self.pipe.up
        last = list(state.free)
        climbs = []
        for stage, ready in state.rising:
            climb = [0] * (stage + 1)
            time = ready
            for s in range(stage, 0, -1):
                if last[s] > time:
                    time = last[s]
                climb[s] = time
                time += backward[s]
                last[s] = time
                time += up[s - 1]
            climb[0] = time
            climbs.append(climb)
        return climbs

    def successors(self, state: State) -> Iterator[State]:
        """Yield every state worth having after the next microbatch; its times count from the origin of ``state``."""
        climbs = self.climbs(state)
        for (waiting, gone), time in self._before_next(state, climbs).items():
            start = [time]
            yield from self._down(state, climbs, waiting, 1, time, gone, start, [gone])

    def _before_next(self, state: State, climbs: list[list[int]]) -> dict[tuple[int, int], int]:
        """Return the least start of the next F on stage 0, by how many W wait then and how many B ran before it."""
        pipe, found = self.pipe, dict[tuple[int, int], int]()
        forward, backward, weight = pipe.forward[0], pipe.backward[0], pipe.weight[0]
        open_ = [(state.free[0], state.waiting, 0)]
        while open_:
            time, waiting, gone = open_.pop()
            fits = pipe.fits(len(climbs) - gone, waiting)
            if fits and found.get((waiting, gone), time) >= time:
                found[waiting, gone] = time
            if waiting:
                open_.append((time + weight, waiting - 1, gone))
            if gone < len(climbs):
                arrival = climbs[gone][0]
                # What fits in before the B arrives is put in by another branch, and costs nothing there.
                if not (fits and arrival >= time + forward) and not (waiting and arrival >= time + weight):
                    open_.append((max(time, arrival) + backward, waiting + (pipe.waiting > 0), gone + 1))
        return found

    def _down(
        self,
        state: State,
        climbs: list[list[int]],
        waiting: int,
        stage: int,
        above: int,
        gone: int,
        starts: list[int],
        before: list[int],
    ) -> Iterator[State]:
        """Place the F on ``stage`` and below, where ``gone`` microbatches ran their B before it on the stage above.

        Args:
            state: The state before.
            climbs: Its ``climbs``.
            waiting: W that wait on stage 0 when the F starts there.
            stage: Where to place the F next.
            above: Its start on the stage above.
            gone: Rising microbatches whose B goes before it on the stage above.
            starts: Its starts so far, by stage.
            before: The number of B before it so far, by stage.
        """
        pipe = self.pipe
        if stage == len(pipe.forward):
            yield self._after(state, climbs, waiting, starts, before)
            return
        forward, backward = pipe.forward[stage], pipe.backward[stage]
        time = max(above + pipe.forward[stage - 1] + pipe.down[stage - 1], state.free[stage])
        for climb in climbs[:gone]:
            if stage < len(climb) and climb[stage] + backward > time:
                time = climb[stage] + backward
        # Each further B that goes before the F is a choice, up to one that comes after the F has ended.
        while True:
            # A B that ends before the F could start costs nothing: it is no choice.
            while gone < len(climbs) and (stage >= len(climbs[gone]) or climbs[gone][stage] + backward <= time):
                gone += 1
            yield from self._down(state, climbs, waiting, stage + 1, time, gone, [*starts, time], [*before, gone])
            if gone == len(climbs) or climbs[gone][stage] >= time + forward:
                return
            time = climbs[gone][stage] + backward
            gone += 1

    def _after(
        self, state: State, climbs: list[list[int]], waiting: int, starts: list[int], before: list[int]
    ) -> State:
        """Return the state once the F is placed on all stages, after ``before`` of the rising B on each."""
        pipe, rising = self.pipe, []
        for j in range(before[0], len(climbs)):
            stage = len(climbs[j]) - 1
            next_stage = stage
            while before[next_stage] > j:
                next_stage -= 1
            if next_stage == stage:
                rising.append(state.rising[j])
            else:
                done = next_stage + 1
                rising.append(Rising(next_stage, climbs[j][done] + pipe.backward[done] + pipe.up[next_stage]))
        free = tuple(start + forward for start, forward in zip(starts, pipe.forward, strict=True))
        rising.append(Rising(len(free) - 1, free[-1]))
        return State(free, waiting, tuple(rising))

    def settled(self, state: State) -> tuple[int, State]:
        """Return the time and a state of equal future, with all done that costs nothing, and times as late as may be.

        A W costs nothing, or a B below stage 0, that ends before any other op of its stage can start.
        """
        pipe, climbs = self.pipe, self.climbs(state)
        free, waiting, arrival = list(state.free), state.waiting, climbs[0][0]
        while waiting and not pipe.fits(len(climbs), waiting) and free[0] + pipe.weight[0] <= arrival:
            free[0] += pipe.weight[0]
            waiting -= 1
        next_forward = [self._next_start(free[0], waiting, len(climbs), arrival)]
        for s in range(1, len(free)):
            next_forward.append(max(next_forward[-1] + pipe.forward[s - 1] + pipe.down[s - 1], free[s]))
        rising, next_rise = self._risen(climbs, free, next_forward)
        if not waiting:
            free[0] = min(next_forward[0], max(free[0], arrival))
        for s in range(1, len(free)):
            rise = next_rise.get(s)
            free[s] = next_forward[s] if rise is None or rise > next_forward[s] else rise
        base = next_forward[0]
        return base, State(
            tuple(time - base for time in free), waiting, tuple(Rising(s, ready - base) for s, ready in rising)
        )

    def _risen(
        self, climbs: list[list[int]], free: list[int], next_forward: list[int]
    ) -> tuple[list[Rising], dict[int, int]]:
        """Run every B below stage 0 that delays no F, and put off ``free`` by it.

        Returns:
            The rising microbatches after that, and the least start of the next B on each stage that has one.
        """
        rising, next_rise, blocked = [], dict[int, int](), 0
        for climb in climbs:
            stage = len(climb) - 1
            while stage > blocked and climb[stage] + self.pipe.backward[stage] <= next_forward[stage]:
                free[stage] = climb[stage] + self.pipe.backward[stage]
                stage -= 1
            # Microbatches go in order: none passes one that waits further down.
            blocked = max(blocked, stage)
            for s in range(1, stage + 1):
                next_rise.setdefault(s, climb[s])
            rising.append(Rising(stage, climb[stage]))
        return rising, next_rise

    def _next_start(self, free: int, waiting: int, in_flight: int, arrival: int) -> int:
        """Return a time before which no F of stage 0 can start; ``arrival`` is that of the next B."""
        pipe = self.pipe
        if pipe.fits(in_flight, waiting):
            return free
        gone = max(free, arrival) + pipe.backward[0]
        if waiting:
            return min(free + pipe.weight[0], gone)
        if pipe.waiting and not pipe.fits(in_flight - 1, 1):
            return gone + min(pipe.weight[0], pipe.backward[0])
        return gone

    def least_end(self, state: State) -> int:
        """Return the least value of a step that ends with the microbatches of ``state``, head and tails included."""
        pipe, climbs = self.pipe, self.climbs(state)
        time, waiting, ends = state.free[0], state.waiting, []
        last_gradient = time
        for climb in climbs:
            # Two ends, each by what is best for it alone: all work, for which a stage never waits, and the last B.
            last_gradient = max(last_gradient, climb[0]) + pipe.backward[0]
            while waiting and time < climb[0]:
                time += pipe.weight[0]
                waiting -= 1
            time = max(time, climb[0]) + pipe.backward[0]
            waiting += pipe.waiting > 0
            if pipe.whole:
                ends += [climb[s] + pipe.backward[s] + pipe.weight[s] for s in range(1, len(climb))]
        time += waiting * pipe.weight[0] if pipe.waiting else pipe.weight[0]
        return pipe.head + max(time + pipe.after_weight, last_gradient + pipe.after_gradient, *ends)
