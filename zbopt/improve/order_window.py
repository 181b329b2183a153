"""A window of time of a step, in which one op moves at a time and the end of the step is known after each move.

Each op keeps its earliest start and the longest time from there to the end of all. A move changes arcs of a few ops
that lie next to each other in a topological order, and no path that leaves these ops has changed behind them. So the
longest path through them is exact as soon as they have new starts, and only a move that is kept changes times before
and behind (heads and tails of job shops: Taillard 1994; topological orders that change: Pearce and Kelly 2007). Outside
of the window orders stay: what lies before it gives least starts, what lies behind it times to the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise

from zbopt.improve.step_ops import StageOrders, StepOps, Timed


class OrderWindow:
    """Change the order of the ops of ``timed`` that start from ``begin`` on and before ``stop``, numbered anew.

    For each stage two further numbers stand for what lies before its first op and behind its last one.

    Attributes:
        ops: The ops of the window, in numbers of the step.
        count: How many there are.
        end: The end of the whole step as its times have it, in ticks.
        before: The op before each on its stage.
    """

    def __init__(self, step: StepOps, timed: Timed, begin: float, stop: float) -> None:
        self.ops = [i for i in timed.sequence if begin <= timed.head[i] < stop]
        self.ops.sort(key=timed.head.__getitem__)
        self.count = len(self.ops)
        number = {i: n for n, i in enumerate(self.ops)}
        self.ticks = [step.ticks[i] for i in self.ops] + [0] * (2 * len(timed.orders))
        self.stage, self.op_class = [step.stage[i] for i in self.ops], [step.op_class[i] for i in self.ops]
        self.taken, self.released = [step.taken[i] for i in self.ops], [step.released[i] for i in self.ops]
        self.caps = step.caps
        self._connect(step, number)
        self._bound(step, timed, number)
        self.head = [timed.head[i] for i in self.ops] + [0] * (2 * len(timed.orders))
        self.tail = [timed.tail[i] for i in self.ops] + [0] * (2 * len(timed.orders))
        self.order = list(range(self.count))
        self.place = [*self.order, *[self.count] * (2 * len(timed.orders))]
        self._arrange(step, timed, number, begin, stop)
        self.elsewhere = _longest_beside(step, timed, begin, stop)
        self.end = max(self.elsewhere, self._longest())

    def _connect(self, step: StepOps, number: dict[int, int]) -> None:
        """Set inputs and outputs inside the window."""
        self.inputs = [[(number[j], wait) for j, wait in step.inputs[i] if j in number] for i in self.ops]
        self.outputs = [[(number[j], wait) for j, wait in step.outputs[i] if j in number] for i in self.ops]
        self.sources = [frozenset(i for i, _ in inputs) for inputs in self.inputs]
        self.targets = [frozenset(i for i, _ in outputs) for outputs in self.outputs]

    def _bound(self, step: StepOps, timed: Timed, number: dict[int, int]) -> None:
        """Set the times that inputs and outputs outside of the window ask for."""
        self.least = [_longest_outside(step.inputs[i], timed.head, number) for i in self.ops]
        self.rest = [_longest_outside(step.outputs[i], timed.tail, number) for i in self.ops]
        self.leaving = [i for i, rest in enumerate(self.rest) if rest]

    def _arrange(self, step: StepOps, timed: Timed, number: dict[int, int], begin: float, stop_at: float) -> None:
        """Set the order on each stage, with what lies before and behind, and the memory held at each op."""
        self.before, self.after, self.live = [0] * len(self.ticks), [0] * len(self.ticks), [0] * self.count
        self.spans: list[tuple[int, int]] = []
        for stage, order in enumerate(timed.orders):
            first, stop = (bisect_left(order, time, key=timed.head.__getitem__) for time in (begin, stop_at))
            self.spans.append((first, stop))
            source, sink = self.count + 2 * stage, self.count + 2 * stage + 1
            for one, other in pairwise((source, *(number[i] for i in order[first:stop]), sink)):
                self.after[one], self.before[other] = other, one
            previous = order[first - 1] if first > 0 else None
            self.head[source] = timed.clocks[stage] if previous is None else timed.head[previous] + step.ticks[previous]
            self.tail[sink] = timed.tail[order[stop]] if stop < len(order) else timed.closing[stage]
            held = 0
            for i in order[:stop]:
                if i in number:
                    self.live[number[i]] = held + step.taken[i]
                held += step.taken[i] - step.released[i]

    def orders(self) -> StageOrders:
        """Return the orders inside, in numbers of the window."""
        orders: StageOrders = []
        for stage in range(len(self.spans)):
            op, order = self.after[self.count + 2 * stage], []
            while op < self.count:
                order.append(op)
                op = self.after[op]
            orders.append(order)
        return orders

    def whole(self, timed: Timed, orders: StageOrders) -> StageOrders:
        """Return the orders of the whole step with ``orders`` inside."""
        stages = zip(timed.orders, self.spans, orders, strict=True)
        return [
            [*order[:first], *(self.ops[i] for i in inside), *order[stop:]] for order, (first, stop), inside in stages
        ]

    def is_critical(self, op: int) -> bool:
        """Return whether ``op`` lies on a longest path on which it follows an op of its stage that lies inside."""
        previous, start = self.before[op], self.head[op]
        return (
            start + self.tail[op] == self.end
            and previous < self.count
            and self.head[previous] + self.ticks[previous] == start
        )

    def try_move(self, op: int, steps: int, limit: int) -> bool:
        """Move ``op`` so many steps later, or where below 0 earlier, as far as memory and its class allow.

        It stays where it is if the end would be above ``limit``, which must be no less than the end, or if the move
        makes a deadlock.

        Returns:
            Whether it moved.
        """
        later = steps > 0
        passed = self._passed(op, steps)
        if not passed:
            return False
        low, high = sorted((self.place[op], self.place[passed[-1]]))
        changed = self._later(op, low, high) if later else self._earlier(op, low, high)
        if changed is None:
            return False
        self._link(op, passed, later=later)
        starts = [self.head[i] for i in changed]
        if not self._fits(changed, high, limit):
            for i, start in zip(changed, starts, strict=True):
                self.head[i] = start
            self._unlink(op, passed, later=later)
            return False
        self._keep(op, passed, changed, low, later=later)
        follower = self.after[op if later else passed[0]]
        begun = [i for i, start in zip(changed, starts, strict=True) if self.head[i] != start]
        self._spread_heads(begun, high, follower)
        self._spread_tails(changed, low, high)
        self.end = max(self.elsewhere, self._longest())
        return True

    def _passed(self, op: int, steps: int) -> list[int]:
        """Return the ops that ``op`` passes, the nearest first."""
        onward, linked, sign = (self.after, self.targets[op], 1) if steps > 0 else (self.before, self.sources[op], -1)
        taken, released, live, op_class, count = self.taken, self.released, self.live, self.op_class, self.count
        room, own_class, level, takes_any = self.caps[self.stage[op]], op_class[op], live[op], taken[op] > 0
        shift = sign * (released[op] - taken[op])
        passed: list[int] = []
        fit, i = 0, onward[op]
        for _ in range(abs(steps)):
            if i >= count or op_class[i] == own_class or i in linked or (taken[i] and live[i] + shift > room):
                break
            level += sign * (taken[i] - released[i])
            passed.append(i)
            if not takes_any or level <= room:
                fit = len(passed)
            i = onward[i]
        return passed[:fit]

    def _later(self, op: int, low: int, high: int) -> list[int] | None:
        """Return places ``low`` to ``high`` of the topological order with ``op`` and what follows it behind the rest.

        ``None``: that is a deadlock.
        """
        stage, before, sources = self.stage, self.before, self.sources
        own, behind, rest, moved = stage[op], [op], [], {op}
        for i in self.order[low + 1 : high + 1]:
            follows = not moved.isdisjoint(sources[i])
            if stage[i] == own:
                if follows:
                    return None
            elif follows or before[i] in moved:
                moved.add(i)
                behind.append(i)
                continue
            rest.append(i)
        return rest + behind

    def _earlier(self, op: int, low: int, high: int) -> list[int] | None:
        """Return places ``low`` to ``high`` of the topological order with ``op`` and what it follows before the rest.

        ``None``: that is a deadlock.
        """
        stage, after, targets = self.stage, self.after, self.targets
        own, ahead, rest, moved = stage[op], [op], [], {op}
        for i in reversed(self.order[low:high]):
            follows = not moved.isdisjoint(targets[i])
            if stage[i] == own:
                if follows:
                    return None
            elif follows or after[i] in moved:
                moved.add(i)
                ahead.append(i)
                continue
            rest.append(i)
        return ahead[::-1] + rest[::-1]

    def _link(self, op: int, passed: list[int], *, later: bool) -> None:
        """Put ``op`` behind the last that it passed, or before it."""
        forth, back = (self.after, self.before) if later else (self.before, self.after)
        near, far = back[op], forth[passed[-1]]
        forth[near], back[passed[0]] = passed[0], near
        forth[passed[-1]], back[op] = op, passed[-1]
        forth[op], back[far] = far, op

    def _unlink(self, op: int, passed: list[int], *, later: bool) -> None:
        """Undo ``_link``."""
        forth, back = (self.after, self.before) if later else (self.before, self.after)
        near, far = back[passed[0]], forth[op]
        forth[near], back[op] = op, near
        forth[op], back[passed[0]] = passed[0], op
        forth[passed[-1]], back[far] = far, passed[-1]

    def _fits(self, changed: Iterable[int], high: int, limit: int) -> bool:
        """Set new starts of ``changed``, and return whether no path through them is longer than ``limit``."""
        head, tail, ticks, before, after = self.head, self.tail, self.ticks, self.before, self.after
        inputs, outputs, place, least, rest = self.inputs, self.outputs, self.place, self.least, self.rest
        for i in changed:
            j, start = before[i], least[i]
            if (arrival := head[j] + ticks[j]) > start:
                start = arrival
            for j, wait in inputs[i]:
                if (arrival := head[j] + wait) > start:
                    start = arrival
            head[i] = start
            j = after[i]
            if start + rest[i] > limit or (place[j] > high and start + ticks[i] + tail[j] > limit):
                return False
            for j, wait in outputs[i]:
                if place[j] > high and start + wait + tail[j] > limit:
                    return False
        return True

    def _keep(self, op: int, passed: list[int], changed: list[int], low: int, *, later: bool) -> None:
        """Bring topological order and memory up to date after a move."""
        self.order[low : low + len(changed)] = changed
        for n, i in enumerate(changed, low):
            self.place[i] = n
        sign = 1 if later else -1
        shift, taken, released = sign * (self.released[op] - self.taken[op]), self.taken, self.released
        for i in passed:
            self.live[op] += sign * (taken[i] - released[i])
            self.live[i] += shift

    def _spread_heads(self, begun: Iterable[int], high: int, follower: int) -> None:
        """Bring up to date the heads behind place ``high``.

        Args:
            begun: Ops up to ``high`` that have a new start.
            high: The last place that is up to date.
            follower: The op that has a new one before it on its stage.
        """
        head, ticks, before, after, place = self.head, self.ticks, self.before, self.after, self.place
        inputs, outputs, least, order, count = self.inputs, self.outputs, self.least, self.order, self.count
        is_stale = bytearray(count + 1)
        is_stale[place[follower]] = 1
        for i in begun:
            is_stale[place[after[i]]] = 1
            for j, _ in outputs[i]:
                is_stale[place[j]] = 1
        n = is_stale.find(1, high + 1, count)
        while n >= 0:
            i = order[n]
            j, start = before[i], least[i]
            if (arrival := head[j] + ticks[j]) > start:
                start = arrival
            for j, wait in inputs[i]:
                if (arrival := head[j] + wait) > start:
                    start = arrival
            if start != head[i]:
                head[i] = start
                is_stale[place[after[i]]] = 1
                for j, _ in outputs[i]:
                    is_stale[place[j]] = 1
            n = is_stale.find(1, n + 1, count)

    def _spread_tails(self, changed: Iterable[int], low: int, high: int) -> None:
        """Bring up to date the tails of ``changed``, at places ``low`` to ``high``, and of what comes before them."""
        tail, ticks, before, after, place = self.tail, self.ticks, self.before, self.after, self.place
        inputs, outputs, rest, order = self.inputs, self.outputs, self.rest, self.order
        is_stale = bytearray(self.count + 1)
        for i in changed:
            is_stale[place[i]] = 1
        n = high
        while n >= 0:
            i = order[n]
            longest = rest[i]
            if (length := ticks[i] + tail[after[i]]) > longest:
                longest = length
            for j, wait in outputs[i]:
                if (length := tail[j] + wait) > longest:
                    longest = length
            if longest != tail[i] or n >= low:
                tail[i] = longest
                is_stale[place[before[i]]] = 1
                for j, _ in inputs[i]:
                    is_stale[place[j]] = 1
            n = is_stale.rfind(1, 0, n)

    def _longest(self) -> int:
        """Return the length of the longest path that leaves the window."""
        head, ticks, rest, longest = self.head, self.ticks, self.rest, 0
        for stage in range(len(self.spans)):
            sink = self.count + 2 * stage + 1
            last = self.before[sink]
            longest = max(longest, head[last] + ticks[last] + self.tail[sink])
        for i in self.leaving:
            if head[i] + rest[i] > longest:
                longest = head[i] + rest[i]
        return longest


def _longest_outside(waits: Iterable[tuple[int, int]], times: Sequence[int], inside: Container[int]) -> int:
    """Return the longest of the ``waits`` for ops that are not ``inside``, each behind the time of its op; 0: none."""
    return max((times[op] + wait for op, wait in waits if op not in inside), default=0)


def _longest_beside(step: StepOps, timed: Timed, begin: float, stop: float) -> int:
    """Return the length of the longest path through no op that starts from ``begin`` on and before ``stop``."""
    longest = 0
    for i, start in enumerate(timed.head):
        if start >= stop:
            longest = max(longest, timed.tail[i])
        elif start < begin:
            jumps = (wait + timed.tail[j] for j, wait in step.outputs[i] if timed.head[j] >= stop)
            longest = max(longest, start + max(jumps, default=step.ticks[i]))
    return longest
