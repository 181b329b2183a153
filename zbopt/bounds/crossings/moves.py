"""How the next microbatch goes down against those that come up, and what is left to decide after it.

A state is what has been decided once the forwards of so many microbatches are placed on all stages: which B run before
the last of them, and the least times that follow. All times of a state count from the next possible start of an F.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from zbopt.bounds.crossings.pipe import Pipe


class Rising(NamedTuple):
    """A microbatch whose B has yet to run on stages ``stage`` to 0, on ``stage`` not before ``ready``."""

    stage: int
    ready: int


class State(NamedTuple):
    """What the future depends on.

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
    """The rules of one pipeline."""

    pipe: Pipe

    def first(self) -> tuple[int, State]:
        """The state after the first microbatch, and its time."""
        pipe, time, free = self.pipe, 0, []
        for forward, lag in zip(pipe.forward, pipe.down, strict=True):
            free.append(time + forward)
            time += forward + lag
        return self.settled(State(tuple(free), 0, (Rising(len(free) - 1, free[-1]),)))

    def climbs(self, state: State) -> list[list[int]]:
        """By rising microbatch and stage: least start of its B if no further F comes first; on stage 0, its arrival."""
        backward, up = self.pipe.backward, self.pipe.up
        last = list(state.free)
        rows = []
        for stage, ready in state.rising:
            row = [0] * (stage + 1)
            time = ready
            for s in range(stage, 0, -1):
                if last[s] > time:
                    time = last[s]
                row[s] = time
                time += backward[s]
                last[s] = time
                time += up[s - 1]
            row[0] = time
            rows.append(row)
        return rows

    def successors(self, state: State) -> Iterator[State]:
        """Every state worth having after the next microbatch, its times counted from where those of ``state`` are."""
        climbs = self.climbs(state)
        for (waiting, gone), time in self._before_next(state, climbs).items():
            start = [time]
            yield from self._down(state, climbs, waiting, 1, time, gone, start, [gone])

    def _before_next(self, state: State, climbs: list[list[int]]) -> dict[tuple[int, int], int]:
        """By (W waiting, B gone) on stage 0 before the next F: its least start."""
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
        """The F on ``stage`` and below: ``gone`` rising microbatches ran their B before it on the stage above."""
        pipe = self.pipe
        if stage == len(pipe.forward):
            yield self._after(state, climbs, waiting, starts, before)
            return
        forward, backward = pipe.forward[stage], pipe.backward[stage]
        time = max(above + pipe.forward[stage - 1] + pipe.down[stage - 1], state.free[stage])
        for row in climbs[:gone]:
            if stage < len(row) and row[stage] + backward > time:
                time = row[stage] + backward
        while True:
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
        """(time, state) of equal future, with all that costs nothing done, and times as late as they come to bear.

        Done is a W, or a B below stage 0, that ends before any other op of its stage can start.
        """
        pipe = self.pipe
        climbs = self.climbs(state)
        free = list(state.free)
        waiting = state.waiting
        arrival = climbs[0][0]
        while waiting and not pipe.fits(len(climbs), waiting) and free[0] + pipe.weight[0] <= arrival:
            free[0] += pipe.weight[0]
            waiting -= 1
        next_forward = [self._next_start(free[0], waiting, len(climbs), arrival)]
        for s in range(1, len(free)):
            next_forward.append(max(next_forward[-1] + pipe.forward[s - 1] + pipe.down[s - 1], free[s]))
        next_rise: list[int | None] = [None] * len(free)
        rising, blocked = [], 0
        for row in climbs:
            stage = len(row) - 1
            while stage > blocked and row[stage] + pipe.backward[stage] <= next_forward[stage]:
                free[stage] = row[stage] + pipe.backward[stage]
                stage -= 1
            blocked = max(blocked, stage)
            for s in range(1, stage + 1):
                if next_rise[s] is None:
                    next_rise[s] = row[s]
            rising.append((stage, row[stage]))
        if not waiting:
            free[0] = min(next_forward[0], max(free[0], arrival))
        for s in range(1, len(free)):
            rise = next_rise[s]
            free[s] = next_forward[s] if rise is None or rise > next_forward[s] else rise
        base = next_forward[0]
        return base, State(
            tuple(time - base for time in free), waiting, tuple(Rising(s, ready - base) for s, ready in rising)
        )

    def _next_start(self, free: int, waiting: int, in_flight: int, arrival: int) -> int:
        """No F of stage 0 can start before this; ``arrival`` is that of the next B."""
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
        """Least value of a step that ends with the microbatches of ``state``, head and tails included."""
        pipe, climbs = self.pipe, self.climbs(state)
        time, waiting, ends = state.free[0], state.waiting, []
        last_gradient = time
        for row in climbs:
            # Two ends, each by what is best for it alone: all work, for which a stage never waits, and the last B.
            last_gradient = max(last_gradient, row[0]) + pipe.backward[0]
            while waiting and time < row[0]:
                time += pipe.weight[0]
                waiting -= 1
            time = max(time, row[0]) + pipe.backward[0]
            waiting += pipe.waiting > 0
            if pipe.whole:
                ends += [row[s] + pipe.backward[s] + pipe.weight[s] for s in range(1, len(row))]
        time += waiting * pipe.weight[0] if pipe.waiting else pipe.weight[0]
        return pipe.head + max(time + pipe.after_weight, last_gradient + pipe.after_gradient, *ends)
