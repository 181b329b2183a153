"""From an order of ops on each stage, and of uses on each link, to earliest starts; and the deadlocks of an order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from zbopt.graph import Key, TaskGraph, Use, expand
from zbopt.graph.memory import policies, with_drops, with_policies
from zbopt.problem.instance import Instance, Kind, Objective
from zbopt.problem.schedule import Event, Provenance, Schedule
from zbopt.timing.arcs import Arcs, DeadlockError, running
from zbopt.timing.first_come import first_come
from zbopt.timing.host import as_started, within_cap
from zbopt.timing.value import objective_value

__all__ = [
    "DeadlockError",
    "as_started",
    "best_starts",
    "earliest_starts",
    "least_span_starts",
    "link_orders",
    "objective_value",
    "orders_of_steps",
    "running",
    "schedule_of",
    "schedule_of_orders",
    "stage_orders",
    "starts_of",
    "within_cap",
]


LinkOrders = Sequence[Sequence[Use]]
"""For each link of a graph, its uses in the order in which they take place."""


def earliest_starts(
    graph: TaskGraph,
    orders: Sequence[Sequence[int]],
    release: Mapping[int, int] | None = None,
    links: LinkOrders | None = None,
) -> dict[int, int]:
    """Return the earliest start of every task in ``orders``, and of the tasks beside the stages' compute, in ticks.

    Args:
        graph: The task graph. Ops in no order do not run.
        orders: For each stage, its ops in the order in which they run.
        release: For some tasks, ticks before which they must not start; ``None``: only the graph says such.
        links: The order on each link; ``None``: whoever can go first does.

    Raises:
        DeadlockError: The orders contradict the precedences.
    """
    if graph.links and links is None:
        links = link_orders(graph, first_come(graph, orders))
    arcs = Arcs(graph, orders, links or ())
    for task, time in (release or {}).items():
        arcs.ready_at[task] = max(arcs.ready_at[task], time)
    return {task: start for task, start in arcs.starts().items() if task >= 0}


def least_span_starts(
    graph: TaskGraph, orders: Sequence[Sequence[int]], links: LinkOrders | None = None
) -> dict[int, int]:
    """Return starts that give ``orders`` the least largest stage span, each as early as that span allows.

    A stage's first start may have to wait for its own last end less the span. Between stages these waits form a
    small graph whose arc from a to b weighs the longest path from a's first start to b's last end; the least span is
    the largest mean weight of its cycles.

    Args:
        graph: The task graph.
        orders: For each stage, its ops in the order in which they run.
        links: The order on each link; ``None``: whoever can go first does.

    Raises:
        DeadlockError: The orders contradict the precedences.
    """
    if graph.links and links is None:
        links = link_orders(graph, first_come(graph, orders))
    arcs = Arcs(graph, orders, links or ())
    earliest = arcs.starts()
    used = [order for order in orders if order]
    paths = _first_to_last(arcs, used)
    span = _least_span(paths)
    # An op that waits for an input from outside ends no earlier, however early the stage starts.
    firsts = [max(earliest[order[0]], earliest[order[-1]] + arcs.ticks(order[-1]) - span) for order in used]
    settled = False
    while not settled:
        waits = [
            max(first + path for first, path in zip(firsts, column, strict=True)) - span
            for column in zip(*paths, strict=True)
        ]
        settled = all(wait <= first for wait, first in zip(waits, firsts, strict=True))
        firsts = [max(pair) for pair in zip(waits, firsts, strict=True)]
    release = {order[0]: first for order, first in zip(used, firsts, strict=True)}
    return earliest_starts(graph, orders, release, links)


Paths = Sequence[Sequence[int]]
"""[a, b]: the longest path from the first start of order a to the last end of order b, in ticks; far below 0: none."""


def _first_to_last(arcs: Arcs, orders: Sequence[Sequence[int]]) -> Paths:
    reach = arcs.longest_paths([order[0] for order in orders])
    ends = [[path + arcs.ticks(order[-1]) for path in reach[order[-1]]] for order in orders]
    return list(zip(*ends, strict=True))


def _least_span(paths: Paths) -> int:
    """Return the largest mean weight of the cycles of ``paths``, rounded up, by longest walks (Karp 1978).

    Every order has a path to its own end, so a walk of any length ends in each.
    """
    walks = [[0] * len(paths)]
    for _ in paths:
        before = walks[-1]
        walks.append(
            [max(walk + path for walk, path in zip(before, column, strict=True)) for column in zip(*paths, strict=True)]
        )
    most = len(paths)
    return max(min(-((walks[k][end] - walks[most][end]) // (most - k)) for k in range(most)) for end in range(most))


def link_orders(graph: TaskGraph, starts: Mapping[int, int]) -> list[list[Use]]:
    """Return the order on each link of ``graph`` in which ``starts`` use it; of equals, what was produced first."""
    produced = {
        sent.send: max((starts[p] + graph.tasks[p].duration_ticks for p in sent.producers if p in starts), default=0)
        for channel in graph.channels
        for sent in channel.sent
    }

    def when(use: Use) -> tuple[int, int, int, int]:
        first = starts[use.task] + use.offset_ticks
        return first, first + use.ticks, produced.get(use.task, first), use.task

    return [sorted((use for use in link.uses if use.task in starts), key=when) for link in graph.links]


def stage_orders(graph: TaskGraph, starts: Mapping[int, int]) -> list[list[int]]:
    """Return the order on each stage in which ``starts`` run its ops."""

    def when(task: int) -> tuple[int, int, int]:
        return starts[task], starts[task] + graph.tasks[task].duration_ticks, task

    return [sorted((i for i in ops if i in starts), key=when) for ops in graph.resources]


def schedule_of(graph: TaskGraph, starts: Mapping[int, int], provenance: Provenance) -> Schedule:
    """Return the schedule in which the tasks of ``starts`` begin at the given ticks, by stage and time."""
    order = sorted(starts, key=lambda i: (graph.tasks[i].stage, starts[i], graph.tasks[i].duration_ticks))
    return Schedule(
        instance=graph.instance,
        provenance=provenance,
        events=tuple(
            Event(
                kind=(task := graph.tasks[i]).kind,
                stage=task.stage,
                virtual_stage=task.virtual_stage,
                microbatch=task.microbatch,
                start=starts[i],
                end=starts[i] + task.duration_ticks,
                iteration=task.iteration,
            )
            for i in order
        ),
    )


def orders_of_steps(graph: TaskGraph, step_ops: Sequence[Iterable[tuple[Kind, int, int]]]) -> list[list[int]]:
    """Return for each stage its tasks in the order of ``step_ops``, all iterations alike, each ending with its O.

    Args:
        graph: The task graph.
        step_ops: For each stage (kind, virtual stage, microbatch) of one iteration, in the order in which they run.
    """
    orders = []
    for stage, ops in enumerate(step_ops):
        steps = list(ops)
        order: list[int] = []
        for iteration in range(graph.instance.iterations):
            order += [graph.index[Key(*step, iteration)] for step in steps]
            optimizer = graph.index.get(Key(Kind.O, stage, None, iteration))
            order += [] if optimizer is None else [optimizer]
        orders.append(order)
    return orders


def best_starts(graph: TaskGraph, orders: Sequence[Sequence[int]], links: LinkOrders | None = None) -> dict[int, int]:
    """Return the starts with which ``orders`` are best for the instance's objective.

    For the period these are the earliest ones; ``iterations.all_iterations`` knows a better spacing.

    Raises:
        DeadlockError: The orders contradict the precedences.
    """
    if graph.instance.objective is Objective.MAX_STAGE_SPAN:
        return least_span_starts(graph, orders, links)
    return earliest_starts(graph, orders, links=links)


def schedule_of_orders(
    instance: Instance, step_ops: Sequence[Sequence[tuple[Kind, int, int]]], provenance: Provenance
) -> Schedule:
    """Return the schedule that runs an order at the earliest starts, each stage's O last.

    Args:
        instance: The problem; its memory cap is not looked at. Where it leaves open what becomes of activations, they
            are kept, except those whose R the order has.
        step_ops: For each stage (kind, virtual stage, microbatch) of one iteration, in the order in which they run.
        provenance: Where the order comes from.

    Raises:
        DeadlockError: The order contradicts the precedences.
    """
    graph = expand(with_policies(instance, {v: policies(instance, v)[0] for v in range(instance.virtual_stages)}))
    orders = orders_of_steps(graph, [with_drops(instance, ops) for ops in step_ops])
    schedule = schedule_of(graph, best_starts(graph, orders), provenance)
    return schedule.model_copy(update={"instance": instance})


def starts_of(graph: TaskGraph, schedule: Schedule) -> dict[int, int]:
    """Return the start of each task that ``schedule`` runs, in ticks: the inverse of ``schedule_of``."""
    return {
        graph.index[
            Key(e.kind, e.stage if e.virtual_stage is None else e.virtual_stage, e.microbatch, e.iteration)
        ]: e.start
        for e in schedule.events
    }
