"""Pages that the commands print, as lines of plain text. Charts are in ``gantt``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from zbopt.analysis.metrics import Figures, figures
from zbopt.portfolio.result import Result
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective, Route, placement_of
from zbopt.problem.numbers import counted
from zbopt.problem.schedule import Status
from zbopt.reports.memory import given_unit, memory_rows
from zbopt.reports.words import amount_text, percent, rounding_text, runs_text, size_text, ticks_text

_LABEL = 22
"""Columns of a label. Not measured; chosen so that the longest label fits, with two spaces behind it."""
_MOST_LISTED = 32
"""Of more virtual stages, the placement shows the first and the last. Not measured; chosen to fill few lines."""
_MOST_PEAKS = 16
"""Of more stages, equal peaks in a row are counted instead of written out. Not measured; chosen to fit one line."""
_OBJECTIVES = {
    Objective.MAKESPAN: "makespan",
    Objective.MAX_STAGE_SPAN: "largest stage span",
    Objective.PERIOD: "period",
}


def lines_of(rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Return labelled lines, wrapped to ``width`` with their continuation below the text."""
    lines = []
    for label, text in rows:
        parts = wrap(text, max(width - _LABEL, 20), break_on_hyphens=False) or [""]
        lines += [f"  {label}".ljust(_LABEL) + parts[0], *(" " * _LABEL + part for part in parts[1:])]
    return lines


def asked(instance: Instance, notes: Sequence[str], width: int, title: str = "asked") -> list[str]:
    """Return the lines that repeat the problem: pipeline, times, cap, objective, barrier, and changes to the file."""
    title += f": {size_text(instance)}"
    if instance.name:
        title += f" ({instance.name})"
    return [title, *lines_of([*asked_rows(instance), *(("note", note) for note in notes)], width)]


def asked_rows(instance: Instance) -> Iterable[tuple[str, str]]:
    """Yield the instance's fields, as label and text."""
    if not instance.is_linear:
        yield "placement", _placement_text(instance)
    if instance.routes is not None:
        yield "routes", "; ".join(_route_text(route) for route in instance.routes)
    yield "times", _times_text(instance)
    if instance.microbatch_times is not None:
        own = sum(len(group.microbatches) for group in instance.microbatch_times)
        yield "own times", f"of {own} of the {counted(instance.microbatches, 'microbatch')}"
    if instance.overlapped_ticks is not None:
        yield "overlapped", f"F and BW as one op {runs_text(instance.overlapped_ticks)}; only heuristics use it"
    if instance.may_fuse:
        yield "backward", "split or fused, as the schedule likes" if instance.may_split else "always fused"
    cap = instance.memory_cap
    yield (
        "memory cap",
        "none"
        if cap is None
        else f"{runs_text(cap)}{given_unit(instance)} on {'each' if len(set(cap)) == 1 else 'the'} stage"
        + ("" if len(set(cap)) == 1 else "s in order"),
    )
    yield "activation", f"{runs_text(instance.activation)}{given_unit(instance)}, of which {_share_text(instance)}"
    yield from memory_rows(instance)
    yield from _around(instance)
    yield "objective", _OBJECTIVES[instance.objective]
    barrier = instance.barrier.value.replace("_", "-")
    if instance.optimizer_ticks is not None:
        barrier += f", optimizer step {runs_text(instance.optimizer_ticks)}"
    yield "barrier", barrier
    yield "tick", f"1 {instance.tick}" if instance.tick == "unit" else instance.tick
    yield "rounding", rounding_text(instance.rounding_ticks, instance.tick)


def _around(instance: Instance) -> Iterable[tuple[str, str]]:
    """Yield how transfers run, and what surrounds the microbatches, where the instance has any of it."""
    if instance.sends:
        occupies = "port" if instance.occupies_ports else "link"
        inside = ", ".join(dict.fromkeys(window.kind.value for window in instance.collectives or ()))
        also = f", as are collectives inside {inside}" if inside else ""
        yield "transfers", f"{instance.communication.value}, one at a time on a {occupies}{also}"
    if instance.reduction_ticks is not None:
        yield "reduction", runs_text(instance.reduction_ticks)
    if instance.input_ready_ticks is not None:
        yield "inputs ready", runs_text(instance.input_ready_ticks)
    if instance.loss_ticks:
        yield "loss", ticks_text(instance.loss_ticks, instance.tick)
    if instance.iterations > 1:
        yield "iterations", str(instance.iterations)


def _placement_text(instance: Instance) -> str:
    """Return the name of a placement where it has one, else the stages of all virtual stages in order."""
    stages, per_stage = instance.stages, instance.virtual_stages // instance.stages
    if instance.routes is None and instance.virtual_stages == per_stage * stages:
        if instance.stage_of == placement_of("interleaved", stages, per_stage):
            return f"interleaved, {per_stage} virtual stages a stage"
        if per_stage == 2 and instance.stage_of == placement_of("v", stages, 2):
            return "v, two virtual stages a stage, down and back up"
    listed = [str(stage) for stage in instance.stage_of]
    if len(listed) > _MOST_LISTED:
        listed = [*listed[: _MOST_LISTED // 2], "...", *listed[-_MOST_LISTED // 2 :]]
    return f"virtual stages 0 to {instance.virtual_stages - 1} on stages {', '.join(listed)}"


def _route_text(route: Route) -> str:
    ends = f"{route.virtual_stages[0]} to {route.virtual_stages[-1]}"
    over = counted(len(route.virtual_stages), "virtual stage")
    return f"{counted(route.microbatches, 'microbatch')} over {over}, {ends}"


def _share_text(instance: Instance) -> str:
    shares = set(instance.weight_share)
    if shares == {1}:
        return "all is held until the end of W"
    return f"{runs_text(instance.weight_share)} is held until the end of W, the rest until the end of B"


def _times_text(instance: Instance) -> str:
    parts = [f"F {runs_text(instance.forward_ticks)}"]
    for name, ticks in (
        ("B", instance.backward_ticks),
        ("W", instance.weight_ticks),
        ("BW", instance.fused_backward_ticks),
    ):
        if ticks is not None:
            parts.append(f"{name} {runs_text(ticks)}")
    unit = "ticks" if instance.tick == "unit" else f"ticks of {instance.tick}"
    return "; ".join([*parts, _transfer_text(instance)]) + f" ({unit})"


def _transfer_text(instance: Instance) -> str:
    """Return the time of a transfer; where it differs by stages, all times that occur."""
    near = [(v, w) for v in range(instance.virtual_stages) for w in (instance.next_of(v), instance.previous_of(v))]
    inside = [(v, w) for v, w in near if w is not None]
    times = {instance.lag_ticks(v, w) for v, w in inside if instance.stage_of[v] != instance.stage_of[w]}
    return f"transfer {', '.join(map(str, sorted(times or {instance.comm_ticks})))}"


def answer(result: Result, width: int) -> list[str]:
    """Return the lines that say what was found and what is proved of it."""
    title = f"answer: {result.status.value}" + (", interrupted: the best schedule so far" if result.interrupted else "")
    return [title, *lines_of(_answer_rows(result), width)]


def _answer_rows(result: Result) -> Iterable[tuple[str, str]]:
    instance, schedule = result.instance, result.schedule
    if result.infeasible is not None:
        yield "why", str(result.infeasible)
        return
    if schedule is None or result.value is None:
        yield "why", "no schedule was found in time; raise --time-limit, or --mem-limit"
    else:
        yield from figures_rows(instance, figures(schedule))
    yield from bound_rows(result)
    best = result.best_heuristic
    if best is not None and result.value is not None:
        yield (
            "best heuristic",
            f"{best.name}: {ticks_text(best.value, instance.tick)}; {_saved(best.value, result.value)}",
        )
    if schedule is not None:
        yield "found by", schedule.provenance.source
    yield "wall time", f"{result.wall_time_s:.2f} s"
    if result.fault:
        yield "fault", f"{result.fault}; the best schedule found before is shown"


def bound_rows(result: Result) -> Iterable[tuple[str, str]]:
    """Yield the bound on the objective, what proved it, and how far the value is from it."""
    tick, objective = result.instance.tick, _OBJECTIVES[result.instance.objective]
    yield (
        "lower bound",
        f"{ticks_text(result.bound.value, tick)} on the {objective}, proved by {result.bound.proved_by}",
    )
    if result.gap is not None:
        best = "; no schedule is better" if result.status is Status.OPTIMAL else ""
        yield "gap", percent(result.gap) + best


def _saved(heuristic: int, value: int) -> str:
    return f"this schedule saves {percent((heuristic - value) / heuristic)}" if heuristic > value else "it is this one"


def figures_rows(instance: Instance, known: Figures) -> Iterable[tuple[str, str]]:
    """Yield makespan, largest span, bubble ratios and peak memory."""
    yield "makespan", ticks_text(known.makespan, instance.tick)
    yield "largest stage span", ticks_text(known.max_stage_span, instance.tick)
    if known.period is not None:
        yield "period", ticks_text(known.period, instance.tick)
    yield (
        "bubble ratio",
        (
            f"{percent(known.bubble_over_makespan)} of the makespan, "
            f"{percent(known.bubble_over_stage_span)} of the largest stage span"
        ),
    )
    caps = instance.memory_cap
    peaks = known.peak_memory
    shown = ", ".join(map(amount_text, peaks)) if len(peaks) <= _MOST_PEAKS else runs_text(peaks)
    cap = "none" if caps is None else runs_text(caps)
    yield "peak memory", f"{shown}{unit_of_memory(instance)} by stage, cap {cap}"


def unit_of_memory(instance: Instance) -> str:
    """Return the unit of an amount: the instance's, or activations where that of a whole stage is 1."""
    if instance.memory_unit != "activation":
        return given_unit(instance)
    wholes = {sum(instance.activation[v] for v in instance.virtual_stages_of(s)) for s in range(instance.stages)}
    return " live activations" if wholes == {1} else ""


def distance_rows(instance: Instance, value: int, best: Bound) -> Iterable[tuple[str, str]]:
    """Yield how far a valid schedule is from the best bound at hand."""
    objective = _OBJECTIVES[instance.objective]
    yield "lower bound", f"{ticks_text(best.value, instance.tick)} on the {objective}, proved by {best.proved_by}"
    above = value - best.value
    share = f", {100 * above / best.value:.1f} % above it" if above else "; no schedule is better"
    yield "distance", ticks_text(above, instance.tick) + share
