"""Traces of torch.profiler, read by the names ``PP:0F0`` that PyTorch's pipeline runtime gives its actions.

Each rank may write a file of its own, or several may share one; a process in a file is a rank. Where a GPU recorded
ranges, those of the host are ignored. The reader takes the last step in which every op ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from zbopt.formats.order import Cell, Order, order_of
from zbopt.formats.torch_csv import COMPUTE, KIND_OF, Action, parse_action
from zbopt.problem.instance import MAX_TICKS, Instance, Kind
from zbopt.problem.schedule import Event, Provenance, Schedule

PREFIX = "PP:"
_GPU = "gpu_user_annotation"
_LONGEST_STEP_US = 10.0**10
"""Not measured; chosen as almost three hours: a longer step means that the clocks of the ranks differ."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Hold one action as it ran, times in microseconds."""

    action: Action
    rank: tuple[int, str]
    start: float
    end: float
    gpu: bool
    where: str


@dataclass(frozen=True, slots=True)
class Observed:
    """Hold a step as it ran: the order, and the schedule with observed times.

    The schedule's instance has the median time of each op and no communication: a transfer is part of what was waited
    for. Single ops last shorter or longer than the median; that is what was observed.
    """

    order: Order
    schedule: Schedule


def from_profiler(documents: Mapping[str, object]) -> Observed:
    """Return the last whole step in the traces.

    Args:
        documents: The parsed traces by file name, one of each rank, or one of all.

    Raises:
        ValueError: One line that names the file, the entry, or the op that is missing.
    """
    ranges = [r for number, (name, d) in enumerate(documents.items()) for r in _ranges(d, name, number)]
    if not ranges:
        raise ValueError(
            f"{next(iter(documents))}: no range is named {PREFIX}0F0 or alike; profile a step of PyTorch's pipeline "
            "runtime, or give a trace that zbopt export wrote"
        )
    if any(r.gpu for r in ranges):
        ranges = [r for r in ranges if r.gpu]
    step = _last_step(ranges)
    ranks = _by_rank(step)
    order = order_of([[Cell(_step_of(r.action), r.where) for r in ranges] for ranges in ranks])
    return Observed(order, _schedule(ranks, order))


def _ranges(document: object, name: str, number: int) -> Iterator[_Range]:
    entries = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise ValueError(f"{name}: holds no list of traceEvents; give a trace of torch.profiler or of zbopt export")
    for i, entry in enumerate(entries):
        text = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(text, str) or not text.startswith(PREFIX) or entry.get("ph") != "X":
            continue
        where = f"{name}: traceEvents[{i}] ({text[:40]})"
        try:
            action = parse_action(text.removeprefix(PREFIX))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if action.op in COMPUTE:
            start, duration = _number(entry, "ts", where), _number(entry, "dur", where)
            rank = (number, str(entry.get("pid")))
            yield _Range(action, rank, start, start + duration, entry.get("cat") == _GPU, where)


def _number(entry: Mapping[str, Any], key: str, where: str) -> float:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 10**18:
        raise ValueError(f"{where}: {key} is no time in microseconds; give it")
    return float(value)


def _last_step(ranges: Sequence[_Range]) -> list[_Range]:
    """Return the n-th run of each action, where n is how often every action ran at least."""
    runs: dict[Action, list[_Range]] = defaultdict(list)
    for r in sorted(ranges, key=lambda r: r.start):
        runs[r.action].append(r)
    steps = min(map(len, runs.values()))
    return [found[steps - 1] for found in runs.values()]


def _by_rank(step: Sequence[_Range]) -> list[list[_Range]]:
    """Return ranges by rank and start, ranks in the order of their lowest virtual stage."""
    by_rank: dict[tuple[int, str], list[_Range]] = defaultdict(list)
    for r in sorted(step, key=lambda r: (r.start, r.end)):
        by_rank[r.rank].append(r)
    return sorted(by_rank.values(), key=lambda ranges: min(r.action.virtual_stage for r in ranges))


def _step_of(action: Action) -> tuple[Kind, int, int]:
    assert action.microbatch is not None, "the grammar gives every compute op a microbatch"
    return KIND_OF[action.op], action.virtual_stage, action.microbatch


def _schedule(ranks: Sequence[Sequence[_Range]], order: Order) -> Schedule:
    origin = min(r.start for ranges in ranks for r in ranges)
    end = max(r.end for ranges in ranks for r in ranges)
    if end - origin > _LONGEST_STEP_US:
        raise ValueError(
            f"the step takes {(end - origin) / 1e6:.0f} s: the clocks of the ranks differ; align them before"
        )
    longest = max(r.end - r.start for ranges in ranks for r in ranges)
    per_us, tick = (1000, "1ns") if longest * 1000 <= MAX_TICKS else (1, "1us")
    events = []
    for stage, ranges in enumerate(ranks):
        for r in ranges:
            kind, v, j = _step_of(r.action)
            start = round((r.start - origin) * per_us)
            events.append(Event(kind, stage, v, j, start, max(start + 1, round((r.end - origin) * per_us))))
    return Schedule(
        instance=_instance(events, order, tick), provenance=Provenance(source="torch.profiler"), events=tuple(events)
    )


def _instance(events: Sequence[Event], order: Order, tick: str) -> Instance:
    """Return the instance of the observed placement, with the median time of each op."""
    fields: dict[str, Any] = {
        "name": "observed",
        "stages": len(order.rows),
        "microbatches": order.microbatches,
        "stage_of": order.stage_of,
        "tick": tick,
    }
    durations: dict[tuple[Kind, int | None], list[int]] = defaultdict(list)
    for e in events:
        durations[e.kind, e.virtual_stage].append(e.end - e.start)
    medians = {key: round(median(ticks)) for key, ticks in durations.items()}
    forward, backward, weight, fused = (
        [medians.get((kind, v)) for v in range(len(order.stage_of))] for kind in (Kind.F, Kind.B, Kind.W, Kind.BW)
    )
    fields["forward_ticks"] = forward
    fields |= _backward_fields(backward, weight, fused)
    return Instance.model_validate(fields)


def _backward_fields(
    backward: Sequence[int | None], weight: Sequence[int | None], fused: Sequence[int | None]
) -> dict[str, Sequence[int | None]]:
    """Return the instance's fields with the times of B, W and BW, from the ticks seen on each virtual stage.

    An instance with B needs all three on each virtual stage. Half of BW stands for a B or W that was not seen, and
    their sum for a BW that was not seen. A time that nothing stands for counts one tick.
    """
    if not any(backward):
        return {"fused_backward_ticks": fused} if any(fused) else {}
    half = [(f + 1) // 2 if f else 1 for f in fused]
    return {
        "backward_ticks": [b or h for b, h in zip(backward, half, strict=True)],
        "weight_ticks": [w or h for w, h in zip(weight, half, strict=True)],
        "fused_backward_ticks": [f or (b or 1) + (w or 1) for f, b, w in zip(fused, backward, weight, strict=True)],
    }
