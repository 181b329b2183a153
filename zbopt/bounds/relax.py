"""Relaxation to a few stages: the other stages become their least delays (models/bounds.md, "few stages").

What is left is a smaller task graph with heads and tails. Its optimum, solved exactly by any means, is a lower bound
on the optimum of the whole: every schedule of the whole, restricted to the kept stages, is a schedule of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from zbopt.bounds.understood import EVERYTHING, OVERLAPPED, is_understood
from zbopt.graph import Channel, Join, Link, Precedence, Residence, Sent, Task, TaskGraph
from zbopt.problem.facts import fields_in_use
from zbopt.problem.instance import COMPUTE, Communication, Instance, Kind

UNDERSTOOD = EVERYTHING - OVERLAPPED
"""A relaxation keeps tasks of the graph as they are, and takes delays from its precedences: it follows what the graph
says of every field. The list is still one of names, since a field that adds a kind of task may let it keep its stage
busy, or pass gradients on, in a way that ``keep_stages`` does not know of. The graph says nothing of overlapped ops."""


def may_relax(instance: Instance) -> bool:
    """Return whether a relaxation to a few stages bounds ``instance``: every field in use is understood."""
    return is_understood(instance, UNDERSTOOD)


@dataclass(frozen=True)
class Relaxed:
    """Hold a task graph with the least time before each task (``heads``) and after it (``tails``), in ticks.

    ``heads`` count from the first start of all; ``tails`` from a task's end to the last end of all.
    """

    graph: TaskGraph
    heads: tuple[int, ...]
    tails: tuple[int, ...]


def whole(graph: TaskGraph) -> Relaxed:
    """Return the graph itself, with heads and tails by longest paths."""
    delays = _Delays(graph)
    return Relaxed(graph, tuple(delays.heads), tuple(delays.tails))


def keep_stages(graph: TaskGraph, stages: Collection[int]) -> Relaxed:
    """Return the tasks of ``stages`` only, with what the others take at least as lags, heads and tails.

    Args:
        graph: The whole task graph, of an instance that ``may_relax``.
        stages: The stages to keep.

    Raises:
        ValueError: A field is in use that relaxations do not understand: the optimum might be above that of the whole.
    """
    if not may_relax(graph.instance):
        unknown = min(fields_in_use(graph.instance) - UNDERSTOOD)
        raise ValueError(f"{unknown} is in use, and a relaxation to a few stages does not understand it; ask may_relax")
    delays = _Delays(graph)
    kept = [i for i, task in enumerate(graph.tasks) if _is_kept(graph, task, stages)]
    new = {old: i for i, old in enumerate(kept)}
    smaller = TaskGraph(
        instance=graph.instance,
        tasks=tuple(graph.tasks[i] for i in kept),
        resources=tuple(_renamed(ops, new) for ops in graph.resources),
        links=tuple(_kept_link(link, new) for link in graph.links),
        channels=tuple(_kept_channel(channel, new) for channel in graph.channels),
        precedences=tuple(_precedences_of(kept, new, delays)),
        joins=tuple(_joins_of(graph, new)),
        residences=tuple(_residences_of(graph, stages, new)),
        caps=graph.caps,
        memory_scale=graph.memory_scale,
        choices=graph.choices,
        index={key: new[i] for key, i in graph.index.items() if i in new},
        policy_of={key: c for key, c in graph.policy_of.items() if graph.instance.stage_of[key[0]] in stages},
    )
    return Relaxed(smaller, tuple(delays.heads[i] for i in kept), tuple(delays.tails[i] for i in kept))


def _is_kept(graph: TaskGraph, task: Task, stages: Collection[int]) -> bool:
    """Return whether a task belongs to one of the stages; a transfer to another one only if it keeps its stage busy."""
    if task.kind in COMPUTE or task.kind in (Kind.G, Kind.OUT, Kind.IN):
        return task.stage in stages
    instance = graph.instance
    assert task.virtual_stage is not None, "a transfer belongs to the virtual stage that sends"
    to = instance.goes_to(task.kind, task.virtual_stage)
    assert to is not None, "nothing is sent past the ends of a route"
    ends = (task.stage in stages, instance.stage_of[to] in stages)
    shared = instance.communication is Communication.BLOCKING or instance.occupies_ports
    return any(ends) if shared else all(ends)


def _precedences_of(kept: Collection[int], new: dict[int, int], delays: _Delays) -> Iterator[Precedence]:
    for before in kept:
        for after, lag in delays.to_next_kept(before, new).items():
            yield Precedence(new[before], new[after], lag)


def _joins_of(graph: TaskGraph, new: dict[int, int]) -> Iterator[Join]:
    """Yield what is left of each join; without anything before or after it, it asks for nothing."""
    for join in graph.joins:
        before, after = _renamed(join.before, new), _renamed(join.after, new)
        if before and after:
            yield Join(before, after, join.lag_ticks)


def _residences_of(graph: TaskGraph, stages: Collection[int], new: dict[int, int]) -> Iterator[Residence]:
    for residence in graph.residences:
        if residence.stage in stages:
            yield replace(residence, first=new[residence.first], last=new[residence.last])


def _kept_link(link: Link, new: dict[int, int]) -> Link:
    return replace(link, uses=tuple(replace(use, task=new[use.task]) for use in link.uses if use.task in new))


def _kept_channel(channel: Channel, new: dict[int, int]) -> Channel:
    """Keep transfers whose producers are kept too: of the others it is not known when they were produced."""
    sent = (s for s in channel.sent if s.send in new and all(p in new for p in s.producers))
    return replace(channel, sent=tuple(Sent(new[s.send], _renamed(s.producers, new)) for s in sent))


def _renamed(tasks: tuple[int, ...], new: dict[int, int]) -> tuple[int, ...]:
    """Return the kept ones of ``tasks`` by their new numbers."""
    return tuple(new[i] for i in tasks if i in new)


class _Delays:
    """Hold least delays along the precedences. Between options of a choice, the least over the options counts."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.after, self.before = graph.successors, graph.predecessors
        self.order = self._topological()
        self.heads = self._heads()
        self.tails = self._tails()

    def _topological(self) -> list[int]:
        waiting = {i: len(self.before[i]) for i in range(len(self.graph.tasks))}
        ready = [i for i, count in waiting.items() if count == 0]
        order = []
        while ready:
            order.append(ready.pop())
            for after, _ in self.after[order[-1]]:
                waiting[after] -= 1
                if waiting[after] == 0:
                    ready.append(after)
        return order

    def _least(self, arrivals: list[tuple[int, int]]) -> int:
        """Return the least time by which all of (task, time) have come; tasks of one choice stand for each other."""
        fixed = [time for task, time in arrivals if self.graph.tasks[task].choice is None]
        options: dict[tuple[int, int], int] = {}
        for task, time in arrivals:
            choice, option = self.graph.tasks[task].choice, self.graph.tasks[task].option
            if choice is not None:
                options[choice, option] = max(options.get((choice, option), 0), time)
        by_choice: dict[int, list[int]] = defaultdict(list)
        for (choice, _), time in options.items():
            by_choice[choice].append(time)
        # A choice with an option that brings no arrival here asks for nothing.
        fixed += [min(times) for choice, times in by_choice.items() if len(times) == self.graph.choices[choice]]
        return max(fixed, default=0)

    def _heads(self) -> list[int]:
        heads = [0] * len(self.graph.tasks)
        for i in self.order:
            arrives = self._least(
                [(b, heads[b] + self.graph.tasks[b].duration_ticks + lag) for b, lag in self.before[i]]
            )
            heads[i] = max(arrives, self.graph.tasks[i].release_ticks)
        return heads

    def _tails(self) -> list[int]:
        tails = [0] * len(self.graph.tasks)
        for i in reversed(self.order):
            tails[i] = self._least(
                [(a, tails[a] + self.graph.tasks[a].duration_ticks + lag) for a, lag in self.after[i]]
            )
        return tails

    def to_next_kept(self, task: int, kept: Collection[int]) -> dict[int, int]:
        """Return the kept tasks that follow ``task`` over removed ones, each with the least lag from its end."""
        found: dict[int, int] = {}
        self._walk(task, 0, kept, found)
        return found

    def _walk(self, task: int, lag: int, kept: Collection[int], found: dict[int, int]) -> None:
        for after, more in self.after[task]:
            if after in kept:
                found[after] = max(found.get(after, 0), lag + more)
            elif self._passes_on(after):
                self._walk(after, lag + more + self._least_duration(after), kept, found)

    def _passes_on(self, task: int) -> bool:
        """Return whether delays pass on through a removed task: it always runs, or it is B, which stands for BW too."""
        return self.graph.tasks[task].choice is None or self.graph.tasks[task].kind is Kind.B

    def _least_duration(self, task: int) -> int:
        this = self.graph.tasks[task]
        if this.choice is None or this.kind is not Kind.B:
            return this.duration_ticks
        _, fused = self.graph.options[this.choice]
        return min([this.duration_ticks, *(self.graph.tasks[i].duration_ticks for i in fused)])
