"""Routes of microbatches: which virtual stages follow each other, and which microbatches pass them."""

from __future__ import annotations

from typing import NamedTuple

from zbopt.problem.instance import Instance


class Routes(NamedTuple):
    """Hold, by virtual stage, the one before and the one after on its route, and the microbatches that pass it.

    ``None`` stands before the first and after the last virtual stage of a route.
    """

    before: list[int | None]
    after: list[int | None]
    passing: list[range]


def routes_of(instance: Instance) -> Routes:
    """Return the routes of ``instance``; without any, all microbatches pass all virtual stages."""
    count, every = instance.virtual_stages, range(instance.microbatches)
    if instance.routes is None:
        return Routes([None, *range(count - 1)], [*range(1, count), None], [every] * count)
    before: list[int | None] = [None] * count
    after: list[int | None] = [None] * count
    passing = [every] * count
    passed = 0
    for route in instance.routes:
        visited = route.virtual_stages
        for position, v in enumerate(visited):
            before[v] = visited[position - 1] if position else None
            after[v] = visited[position + 1] if position + 1 < len(visited) else None
            passing[v] = every[passed : passed + route.microbatches]
        passed += route.microbatches
    return Routes(before, after, passing)
