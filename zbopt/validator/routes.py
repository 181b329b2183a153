"""Which virtual stages follow each other, and which microbatches pass them."""

from __future__ import annotations

from typing import NamedTuple

from zbopt.problem.instance import Instance


class Routes(NamedTuple):
    """By virtual stage: the one before and the one after on its route, and the microbatches that pass it."""

    before: list[int | None]
    after: list[int | None]
    passing: list[range]


def routes_of(instance: Instance) -> Routes:
    """The routes of ``instance``; without any, all microbatches pass all virtual stages."""
    count, every = instance.virtual_stages, range(instance.microbatches)
    if instance.routes is None:
        return Routes([None, *range(count - 1)], [*range(1, count), None], [every] * count)
    before: list[int | None] = [None] * count
    after: list[int | None] = [None] * count
    passing = [every] * count
    passed = 0
    for route in instance.routes:
        way = route.virtual_stages
        for place, v in enumerate(way):
            before[v] = way[place - 1] if place else None
            after[v] = way[place + 1] if place + 1 < len(way) else None
            passing[v] = every[passed : passed + route.microbatches]
        passed += route.microbatches
    return Routes(before, after, passing)
