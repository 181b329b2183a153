"""Find things that wait for each other in a circle."""

from __future__ import annotations


def circle_of(waits: dict[int, list[int]]) -> list[int]:
    """Nodes of one circle, each waiting for the next; empty if there is none."""
    open_waits = {node: len(awaited) for node, awaited in waits.items()}
    waiting: dict[int, list[int]] = {node: [] for node in waits}
    for node, awaited in waits.items():
        for other in awaited:
            waiting[other].append(node)
    free = [node for node, count in open_waits.items() if count == 0]
    while free:
        for node in waiting[free.pop()]:
            open_waits[node] -= 1
            if open_waits[node] == 0:
                free.append(node)
    stuck = {node for node, count in open_waits.items() if count}
    path: dict[int, int] = {}
    for node in stuck:
        while node not in path:
            path[node] = len(path)
            node = next(other for other in waits[node] if other in stuck)
        return list(path)[path[node] :]
    return []
