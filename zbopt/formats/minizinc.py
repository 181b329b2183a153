"""MiniZinc: an instance as data for models/pipeline.mzn, and the model's answer as a schedule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from zbopt.problem.facts import ReferenceModel, not_stated_by
from zbopt.problem.instance import Instance, Kind, Objective
from zbopt.problem.schedule import Event, Provenance, Schedule

_ANSWER = ("start_f", "start_b", "start_w", "start_o", "fused")


def to_minizinc(instance: Instance, horizon: int | None = None) -> str:
    """Return ``instance`` as MiniZinc data (.dzn); 0 stands for an op that is not there, [] for no limit or no step.

    Args:
        instance: The problem.
        horizon: Ticks by which some optimal schedule ends; ``None``: what one microbatch after another takes, for
            each stage where the stages' spans count.

    Raises:
        ValueError: The instance has what the model does not state, such as transfers that occupy links.
    """
    _require_stated(instance)
    released_by_b, released_by_w, caps = _memory_units(instance)
    none = (None,) * instance.virtual_stages
    fields = {
        "stages": instance.stages,
        "microbatches": instance.microbatches,
        "stage_of": instance.stage_of,
        "forward_ticks": instance.forward_ticks,
        "backward_ticks": instance.backward_ticks or none,
        "weight_ticks": instance.weight_ticks or none,
        "fused_backward_ticks": instance.fused_backward_ticks or none,
        "comm_ticks": instance.comm_ticks,
        "memory_cap": caps,
        "released_by_b": released_by_b,
        "released_by_w": released_by_w,
        "barrier": instance.barrier.value,
        "optimizer_ticks": instance.optimizer_ticks or (),
        "objective": instance.objective.value,
        "horizon": _horizon(instance) if horizon is None else horizon,
    }
    return "".join(f"{name} = {_text(value)};\n" for name, value in fields.items())


def _require_stated(instance: Instance) -> None:
    """Refuse what pipeline.mzn does not state.

    Raises:
        ValueError: The instance has it.
    """
    beyond = not_stated_by(instance, ReferenceModel.MINIZINC)
    if beyond:
        raise ValueError(f"{beyond[0]}: pipeline.mzn does not state it; leave it out, or take zbopt solve")


def _text(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_text(item) for item in value)}]"
    return "0" if value is None else str(value)


def _memory_units(instance: Instance) -> tuple[list[int], list[int], list[int]]:
    """Return the memory that B frees, that W frees (by virtual stage), and the caps, in the coarsest units [D4]."""
    pairs = list(zip(instance.activation, instance.weight_share, strict=True))
    if instance.has_lone_w(0):
        pairs[0] = (pairs[0][0], Fraction(1))
    by_b, by_w = [a * (1 - share) for a, share in pairs], [a * share for a, share in pairs]
    scale = lcm(*(amount.denominator for amount in (*by_b, *by_w)))
    units = [0] * instance.stages
    for v, stage in enumerate(instance.stage_of):
        units[stage] = gcd(units[stage], int(by_b[v] * scale), int(by_w[v] * scale))
    unit_of = [Fraction(unit or 1, scale) for unit in units]
    return (
        [int(amount / unit_of[instance.stage_of[v]]) for v, amount in enumerate(by_b)],
        [int(amount / unit_of[instance.stage_of[v]]) for v, amount in enumerate(by_w)],
        [cap // unit for cap, unit in zip(instance.memory_cap or (), unit_of, strict=False)],
    )


def _horizon(instance: Instance) -> int:
    """Return what one microbatch after another takes: that fits every cap under which a schedule exists [D2]."""
    split = [(b or 0) + w for b, w in zip(instance.backward_ticks or (), instance.weight_ticks or (), strict=True)]
    fused = [g or 0 for g in instance.fused_backward_ticks or ()]
    backward = [max(ticks) for ticks in zip(split or fused, fused or split, strict=True)]
    transfers = 2 * sum(instance.lag_ticks(v, v + 1) for v in range(instance.virtual_stages - 1))
    one = sum(instance.forward_ticks) + sum(backward) + transfers
    whole = instance.microbatches * one + sum(instance.optimizer_ticks or ())
    return whole * (instance.stages if instance.objective is Objective.MAX_STAGE_SPAN else 1)


def from_minizinc(instance: Instance, answer: str) -> Schedule:
    """Build the schedule that the model found.

    Args:
        instance: The problem whose data the solver was given.
        answer: Last solution of ``minizinc --output-mode json``.

    Raises:
        ValueError: The answer is not JSON, or lacks one of the model's variables.
    """
    try:
        found = json.loads(answer)
        values = {name: found[name] for name in _ANSWER}
    except json.JSONDecodeError as error:
        raise ValueError(f"MiniZinc's answer is not JSON: {error}; run it with --output-mode json") from None
    except (KeyError, TypeError):
        raise ValueError(f"MiniZinc's answer lacks one of {', '.join(_ANSWER)}; solve models/pipeline.mzn") from None
    events = [
        event
        for v in range(instance.virtual_stages)
        for j in range(instance.microbatches)
        for event in _events(instance, v, j, {name: values[name][v][j] for name in _ANSWER if name != "start_o"})
    ]
    for stage, ticks in enumerate(instance.optimizer_ticks or ()):
        start = values["start_o"][stage]
        events.append(Event(Kind.O, stage, None, None, start, start + ticks))
    return Schedule(instance=instance, provenance=Provenance(source="minizinc"), events=tuple(events))


def _events(instance: Instance, virtual_stage: int, microbatch: int, at: dict[str, Any]) -> Sequence[Event]:
    """Return the ops of one microbatch on one virtual stage."""

    def event(kind: Kind, start: int, ticks: int | None) -> Event:
        assert ticks is not None, "the model runs only ops that have a time"
        return Event(kind, instance.stage_of[virtual_stage], virtual_stage, microbatch, start, start + ticks)

    forward = event(Kind.F, at["start_f"], instance.forward_ticks[virtual_stage])
    if at["fused"]:
        fused = instance.fused_backward_ticks or ()
        return [forward, event(Kind.BW, at["start_b"], fused[virtual_stage])]
    backward, weight = instance.backward_ticks or (), instance.weight_ticks or ()
    found = [forward, event(Kind.W, at["start_w"], weight[virtual_stage])]
    if backward[virtual_stage] is not None:
        found.append(event(Kind.B, at["start_b"], backward[virtual_stage]))
    return found
