"""Comparison of several placements of one model (``--placement auto``): which is best, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap

from zbopt.analysis.metrics import figures
from zbopt.portfolio.result import Result
from zbopt.reports.record import Record, solve_record
from zbopt.reports.words import amount_text, percent, table, ticks_text


def best_of(results: Mapping[str, Result]) -> str:
    """Return the placement of least value, the first of equal ones; the first of all where none has a schedule."""
    return min(results, key=lambda name: (results[name].value is None, results[name].value or 0))


def placements_page(results: Mapping[str, Result], width: int) -> Iterator[str]:
    """Yield a table with a row for each placement, and a line that names the best one."""
    first = next(iter(results.values()))
    yield f"placements: {len(results)} under one cap, each with an equal share of the time limit"
    head = (
        "placement",
        "status",
        first.instance.objective.value.replace("_", " "),
        "lower bound",
        "gap",
        "peak",
        "params",
    )
    yield from table([head, *(_cells(name, result) for name, result in results.items())])
    yield from wrap(f"best: {_best_text(results)}", width, subsequent_indent="  ", break_on_hyphens=False)


def _cells(name: str, result: Result) -> tuple[str, ...]:
    params = f"{result.instance.replicas}x"
    if result.schedule is None:
        return (name, result.status.value, "none", "none", "none", "none", params)
    peak = amount_text(max(figures(result.schedule).peak_memory))
    return (name, result.status.value, str(result.value), str(result.bound.value), percent(result.gap), peak, params)


def _best_text(results: Mapping[str, Result]) -> str:
    best = best_of(results)
    value = results[best].value
    if value is None:
        return "no placement has a schedule"
    text = f"{best}, {ticks_text(value, results[best].instance.tick)}"
    others = [(name, other.value) for name, other in results.items() if name != best and other.value is not None]
    saved = [f"{percent((other - value) / other)} less than {name}" for name, other in others]
    return f"{text}: {', '.join(saved)}" if saved else f"{text}; no other placement has a schedule"


def placements_record(results: Mapping[str, Result]) -> Record:
    """Return what ``zbopt solve --placement auto --json`` prints; ``saved_ratio`` is a share of the other's value."""
    best = best_of(results)
    value = results[best].value
    saved = {
        name: None if value is None or other.value is None else (other.value - value) / other.value
        for name, other in results.items()
        if name != best
    }
    return {
        "best": None if value is None else best,
        "saved_ratio": saved,
        "placements": {name: solve_record(result) for name, result in results.items()},
    }
