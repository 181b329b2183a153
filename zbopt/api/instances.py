"""Instances from lists, scalars and times with units, and the same model under several placements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from math import lcm
from numbers import Integral, Rational, Real
from typing import Any, Literal

from zbopt.costs.amounts import Amount, parse_amounts
from zbopt.costs.cutting import Candidate, cut_fields, finest, require_cuttable
from zbopt.costs.times import NO_TIME, parse_times, tick_ns
from zbopt.problem.facts import Axis, Unit, facts_by_field, flags_by_field
from zbopt.problem.instance import (
    Barrier,
    Communication,
    Drop,
    Instance,
    Objective,
    ReductionOccupies,
    TransferOccupies,
    placement_of,
)
from zbopt.problem.placement import DEFAULT_VIRTUAL
from zbopt.problem.routes import bidirectional

Time = int | str
"""A time in whole ticks (``3``), or a number with a unit of time (``"18.5ms"``)."""
TimeList = Time | Sequence[Time]
"""One time for every stage (or virtual stage), or a list of them."""
AmountList = Amount | Sequence[Amount]
"""One amount for every stage (or virtual stage), or a list of them."""
Policy = Drop | Literal["never", "always", "choose"]
"""A policy of dropping an activation between its F and its backward: never, always, or as the solver chooses."""


def instance(
    *,
    stages: int,
    microbatches: int,
    forward: TimeList = 1,
    backward: Time | Sequence[Time | None] | None = None,
    weight: TimeList | None = None,
    fused_backward: Time | Sequence[Time | None] | None = None,
    comm: Time = 0,
    memory_cap: AmountList | None = None,
    activation: AmountList | None = None,
    weight_share: AmountList | None = None,
    placement: str | Sequence[int] = "linear",
    virtual: int | None = None,
    times_of: Literal["virtual_stage", "stage"] = "virtual_stage",
    objective: Objective | Literal["makespan", "max_stage_span", "period"] = Objective.MAKESPAN,
    barrier: Barrier | Literal["none", "global", "post_validation"] = Barrier.NONE,
    optimizer: TimeList | None = None,
    name: str | None = None,
    tick: str | None = None,
    memory_unit: Literal["activation", "B", "KiB", "MiB", "GiB"] | None = None,
    overlapped: Time | Sequence[Time | None] | None = None,
    gradient_state: AmountList | None = None,
    boundary: AmountList | None = None,
    receive_buffers: int | Literal["all"] | None = None,
    parameters: AmountList | None = None,
    gradients: AmountList | None = None,
    optimizer_state: AmountList | None = None,
    workspace: AmountList | None = None,
    reserve: AmountList | None = None,
    recompute: Policy | Sequence[Policy] | None = None,
    recompute_time: TimeList | None = None,
    checkpoint: AmountList | None = None,
    offload: Policy | Sequence[Policy] | None = None,
    offload_time: TimeList | None = None,
    reload_time: TimeList | None = None,
    offload_rest: AmountList | None = None,
    host_link: Sequence[int] | None = None,
    communication: Communication | Literal["latency", "link", "blocking"] = Communication.LATENCY,
    transfer_occupies: TransferOccupies | Literal["link", "port"] | None = None,
    bandwidth: Amount | None = None,
    stages_per_node: int | None = None,
    node_comm: Time | None = None,
    node_bandwidth: Amount | None = None,
    loss: Time = 0,
    input_ready: Sequence[Time] | None = None,
    reduction: TimeList | None = None,
    reduction_occupies: ReductionOccupies | Literal["stage", "node", "port"] | None = None,
    barrier_time: Time = 0,
    iterations: int = 1,
) -> Instance:
    """Build an instance: one training step of a pipeline-parallel model.

    A time is a whole number of ticks (``3``) or a text with a unit (``"18.5ms"``; s, ms, us, ns); all times have a
    unit, or none has. With units a tick is the finest decimal place that any time is written with. An amount of memory
    is a number, a fraction as text (``"48/131"``), or a text with a unit (``"20GiB"``); again all or none. One value
    for a list stands for every virtual stage, or every stage. ``Instance.replace`` sets the fields that have no
    argument here; its times are in ticks.

    Args:
        stages: Devices of the pipeline.
        microbatches: Microbatches of the step.
        forward: Time of F, by virtual stage.
        backward: Time of B, the gradient of the input, by virtual stage. ``None`` as the first of a list: the first
            virtual stage has no B. By default 1, or no B where ``fused_backward`` is given.
        weight: Time of W, the gradient of the weights, by virtual stage. By default as ``backward``.
        fused_backward: Time of BW, B and W as one op, by virtual stage. Alone: the backward is never split. Beside
            ``backward`` and ``weight``: a schedule may fuse, but not where a list has ``None``.
        comm: Latency of a transfer between two stages.
        memory_cap: Most live memory, by stage; ``None``: no limit.
        activation: Memory of one live activation, by virtual stage. By default one activation is 1 on each stage, and
            its virtual stages share it evenly.
        weight_share: Share of an activation that is held until the end of W, by virtual stage, 0 to 1; the rest goes at
            the end of B. By default 1.
        placement: Stage of each virtual stage: ``linear``, ``interleaved`` (round robin), ``v`` (down and back up),
            ``bidirectional`` (two replicas, half the microbatches each way), or a list of stages in forward order.
        virtual: Virtual stages of each stage; by default 1 for ``linear`` and 2 for the others.
        times_of: What times and amounts are given of: a virtual stage, or ``stage``: the part of the model that one
            stage runs, which a placement with several virtual stages a stage cuts into equal slices.
        objective: What is minimised.
        barrier: What the optimizer step O of a stage waits for: it is not modelled, every W of all stages, or the W of
            its own stage.
        optimizer: Time of O, by stage; by default 0 with a barrier.
        name: Where the problem comes from; no meaning to the solver.
        tick: Length of a tick (``"10us"``), to which times with units are rounded up.
        memory_unit: What amounts count; by default the largest unit that is written, else activations.
        overlapped: Time of an F and a BW of two microbatches as one op of a stage, by stage; ``None`` in a list: that
            stage runs them one at a time.
        gradient_state: Memory that B adds until the end of W, by virtual stage.
        boundary: Memory of what a virtual stage hands on, which a transfer carries and both stages hold.
        receive_buffers: Microbatches for which a stage keeps receive buffers through the whole step, or ``all``.
        parameters: Memory of the parameters, by stage.
        gradients: Memory of their gradients, by stage.
        optimizer_state: Memory of the optimizer's state, by stage.
        workspace: Memory that ops need while they run, by stage.
        reserve: Memory lost to the allocator, by stage.
        recompute: Whether F drops its activation and R makes it again, by virtual stage; ``choose``: the solver decides
            for each microbatch.
        recompute_time: Time of R, by virtual stage; by default that of F.
        checkpoint: Memory that stays of an activation from the end of F to the start of R, by virtual stage.
        offload: Whether OUT takes an activation to the host and IN brings it back, by virtual stage.
        offload_time: Time of OUT, by virtual stage.
        reload_time: Time of IN, by virtual stage; by default that of OUT.
        offload_rest: Memory that stays of an activation from the end of OUT to the start of IN, by virtual stage.
        host_link: Link to the host, by stage: stages of one number share it.
        communication: What a transfer is: a lag, an event on its link, or one that holds the compute of both stages.
        transfer_occupies: What one transfer at a time may use, where transfers are events.
        bandwidth: Memory units a tick between two stages: a transfer takes ``comm`` and ``boundary / bandwidth``.
        stages_per_node: Stages of a node, inside which ``node_comm`` and ``node_bandwidth`` hold.
        node_comm: Latency between stages of one node.
        node_bandwidth: Memory units a tick between stages of one node.
        loss: Time of the loss, a part of the last F.
        input_ready: When the input of each microbatch is ready on the first stage; the first at 0.
        reduction: Time of G, the reduction of gradients over data parallel replicas, by virtual stage.
        reduction_occupies: What one reduction at a time may use.
        barrier_time: Time that joining all stages takes at a global barrier.
        iterations: Steps one after another in one schedule.

    Returns:
        The instance, with all times in whole ticks.

    Raises:
        ValueError: One line that names the field, the value, the limit and the way out.

    Example:
        >>> import zbopt
        >>> step = zbopt.instance(
        ...     stages=4, microbatches=8, forward="18.5ms", backward=["18ms", "18ms", "18ms", "21ms"], weight="9.3ms",
        ...     comm="0.6ms", memory_cap=6,
        ... )
        >>> step.tick, step.backward_ticks
        ('100us', (180, 180, 180, 210))
    """
    if fused_backward is None:
        backward = 1 if backward is None else backward
        weight = 1 if weight is None else weight
    given: dict[str, object] = {
        "stages": stages,
        "microbatches": microbatches,
        "forward_ticks": forward,
        "backward_ticks": backward,
        "weight_ticks": weight,
        "fused_backward_ticks": fused_backward,
        "overlapped_ticks": overlapped,
        "comm_ticks": comm,
        "memory_cap": memory_cap,
        "activation": activation,
        "weight_share": weight_share,
        "objective": objective,
        "barrier": barrier,
        "optimizer_ticks": optimizer,
        "name": name,
        "gradient_state": gradient_state,
        "boundary": boundary,
        "receive_buffers": receive_buffers,
        "parameters": parameters,
        "gradients": gradients,
        "optimizer_state": optimizer_state,
        "workspace": workspace,
        "reserve": reserve,
        "recompute": recompute,
        "recompute_ticks": recompute_time,
        "checkpoint": checkpoint,
        "offload": offload,
        "offload_ticks": offload_time,
        "reload_ticks": reload_time,
        "offload_rest": offload_rest,
        "host_link": host_link,
        "communication": communication,
        "transfer_occupies": transfer_occupies,
        "bandwidth": bandwidth,
        "stages_per_node": stages_per_node,
        "node_comm_ticks": node_comm,
        "node_bandwidth": node_bandwidth,
        "loss_ticks": loss,
        "input_ready_ticks": input_ready,
        "reduction_ticks": reduction,
        "reduction_occupies": reduction_occupies,
        "barrier_ticks": barrier_time,
        "iterations": iterations,
    }
    if times_of not in ("virtual_stage", "stage"):
        raise ValueError(f"times_of = {times_of!r}: give virtual_stage or stage")
    fields = _fields(given, tick, memory_unit)
    if times_of == "stage":
        return _cut(fields, placement, virtual, tick_is_given=tick is not None)
    return Instance.model_validate(fields | _placement_fields(stages, microbatches, placement, virtual))


def placements(instance: Instance, *, virtual: int = 2) -> dict[str, Instance]:
    """Cut a linear pipeline for each of the named placements: the same model on the same devices under one cap.

    All of them count in one tick, so that their values compare.

    Args:
        instance: A pipeline with one virtual stage a stage. Its times and amounts are of whole stages.
        virtual: Slices of a stage of the interleaved placement, 2 or more.

    Returns:
        The instances by placement: ``linear``, ``interleaved``, ``v`` and, from 2 microbatches, ``bidirectional``.

    Raises:
        ValueError: The instance is no linear pipeline, or a part of it cannot be cut.

    Example:
        >>> import zbopt
        >>> step = zbopt.instance(stages=2, microbatches=4, forward=2, backward=2, weight=2)
        >>> {name: placed.virtual_stages for name, placed in zbopt.placements(step).items()}
        {'linear': 2, 'interleaved': 4, 'v': 4, 'bidirectional': 4}
    """
    if virtual < 2:
        raise ValueError(f"virtual = {virtual}: give the slices of the interleaved placement, 2 or more")
    require_cuttable(instance, "zbopt.placements")
    slices = {"linear": 1, "interleaved": virtual, "v": 2, "bidirectional": 1}
    if instance.microbatches == 1:
        del slices["bidirectional"]
    finer = _finer(instance, lcm(*slices.values()))
    return {name: _cut_as(instance, name, count, finer) for name, count in slices.items()}


def _cut(
    fields: dict[str, object], placement: str | Sequence[int], virtual: int | None, *, tick_is_given: bool
) -> Instance:
    """Return the instance whose times and amounts are given of whole stages."""
    if not isinstance(placement, str):
        raise ValueError('times_of = "stage" beside a list of stages: give the name of a placement')
    whole = Instance.model_validate(fields)
    require_cuttable(whole, 'times_of="stage"')
    slices = len(_stage_of(placement, whole.stages, virtual)) // whole.stages if placement != "bidirectional" else 1
    has_length = whole.tick != "unit"
    cut = _cut_as(whole, placement, slices, _finer(whole, slices) if has_length and not tick_is_given else 1)
    if cut.rounding_ticks and not has_length:
        raise ValueError(
            f"times of a stage do not divide into {slices} slices of whole ticks; give times with a unit (3ms), or "
            f"multiples of {slices}"
        )
    return cut


def _finer(instance: Instance, slices: int) -> int:
    """Return how many new ticks one tick becomes, so that a share of one of ``slices`` is whole or almost.

    Where no tick makes it whole, rounding up adds at most 0.1 %, but for ticks of 1 ns, which are the shortest.
    """
    exact = finest(instance, slices)
    if exact > 1 or slices == 1:
        return exact
    times = (instance.forward_ticks, instance.backward_ticks, instance.weight_ticks, instance.fused_backward_ticks)
    shortest = min(ticks for row in times for ticks in row or () if ticks is not None)
    power, length = 1, tick_ns(instance.tick)
    while shortest * power < 1000 * slices and (length / (10 * power)).denominator == 1:
        power *= 10
    return power


def _cut_as(whole: Instance, placement: str, slices: int, finer: int) -> Instance:
    """Return a linear instance cut for a named placement; ``finer`` of the new ticks are one of its own."""
    virtual = 2 if placement == "bidirectional" else slices
    fields = dict(cut_fields(whole, Candidate(placement, _stage_of(placement, whole.stages, virtual), slices), finer))
    if placement == "bidirectional":
        fields["routes"] = bidirectional(whole.stages, whole.microbatches)
    return Instance.model_validate(fields)


def _placement_fields(
    stages: int, microbatches: int, placement: str | Sequence[int], virtual: int | None
) -> dict[str, object]:
    """Return the fields that a placement sets; a wrong size is refused by the instance, in its own words."""
    if isinstance(stages, bool) or not isinstance(stages, int) or stages < 1:
        return {}
    if not isinstance(placement, str):
        if virtual is not None:
            raise ValueError(f"virtual = {virtual} beside a list of stages: the list says it; leave virtual out")
        return {"stage_of": tuple(placement)}
    fields: dict[str, object] = {"stage_of": _stage_of(placement, stages, virtual)}
    if placement == "bidirectional":
        if microbatches == 1:
            raise ValueError("placement bidirectional with 1 microbatch: give a microbatch for each way, 2 or more")
        if microbatches >= 2:
            fields["routes"] = bidirectional(stages, microbatches)
    return fields


def _stage_of(placement: str, stages: int, virtual: int | None) -> tuple[int, ...]:
    if placement not in DEFAULT_VIRTUAL:
        raise ValueError(f"placement = {placement!r}: give {', '.join(DEFAULT_VIRTUAL)}, or a list of stages")
    if placement == "linear" and virtual is not None and virtual > 1:
        raise ValueError(f"virtual = {virtual} with placement linear: give interleaved, or leave virtual out")
    return placement_of("linear" if virtual == 1 else placement, stages, virtual)


def _fields(given: Mapping[str, object], tick: str | None, memory_unit: str | None) -> dict[str, object]:
    """Return the fields of an instance: times in ticks, memory in one unit, arrays as tuples; ``None`` is left out."""
    listed = {name: _listed(value) for name, value in given.items() if value is not None}
    facts = dict(facts_by_field(Instance))
    times = {name: values for name, values in listed.items() if facts[name].unit is Unit.TICKS}
    memory = {name: values for name, values in listed.items() if facts[name].unit is Unit.MEMORY}
    fields = {name: _plain_values(value) for name, value in given.items() if value is not None}
    return fields | _time_fields(times, tick) | _memory_fields(memory, memory_unit)


def _time_fields(given: Mapping[str, tuple[Any, ...]], tick: str | None) -> dict[str, object]:
    """Return the fields of times, in ticks, and what a tick is."""
    argument_of = {name: flag.parameter for name, flag in flags_by_field(Instance).items()}
    texts = {argument_of[name]: _times_text(argument_of[name], values) for name, values in given.items()}
    times = parse_times(texts, tick)
    fields: dict[str, object] = {"tick": times.tick, "rounding_ticks": times.rounding_ticks}
    for name, facts in facts_by_field(Instance):
        if name in given:
            ticks = times.ticks[argument_of[name]]
            if facts.axis is Axis.NONE and len(ticks) != 1:
                raise ValueError(f"{argument_of[name]}: {len(ticks)} times; give one")
            is_single = facts.axis is Axis.NONE or (facts.spreads and len(ticks) == 1 and ticks[0] is not None)
            fields[name] = ticks[0] if is_single else ticks
    return fields


def _memory_fields(given: Mapping[str, tuple[Any, ...]], memory_unit: str | None) -> dict[str, object]:
    """Return the fields of memory, in one unit."""
    parsed = parse_amounts(given, memory_unit)
    fields: dict[str, object] = {f: values[0] if len(values) == 1 else values for f, values in parsed.amounts.items()}
    if parsed.unit is not None and "activation" not in fields:
        raise ValueError("activation is missing beside amounts with a unit; give the memory of one activation too")
    unit = memory_unit or parsed.unit
    return fields if unit is None else fields | {"memory_unit": unit}


def _times_text(argument: str, values: tuple[Any, ...]) -> str:
    """Return times as ``parse_times`` reads them: a comma list."""
    if not values:
        raise ValueError(f"{argument}: an empty list; give a time, or one for each")
    return ",".join(_one_time(argument, value) for value in values)


def _one_time(argument: str, value: object) -> str:
    if value is None:
        return NO_TIME
    if isinstance(value, str) and "," not in value:
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Real) and not isinstance(value, (bool, Rational)):
        return format(Decimal(repr(float(value))), "f").removesuffix(".0")
    raise ValueError(f"{argument} = {value!r}: not a time; give whole ticks (3), or a text with a unit ('18.5ms')")


def _plain_values(value: object) -> object:
    """Return a single value as plain Python, and any list as a tuple of them."""
    return _listed(value) if _is_list(value) else _plain(value)


def _listed(value: object) -> tuple[Any, ...]:
    """Return the values of a list, an array or a column of a table, or of a single value alone, as plain Python."""
    if _is_list(value):
        assert isinstance(value, Iterable)
        return tuple(_plain(item) for item in value)
    return (_plain(value),)


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _plain(value: Any) -> Any:
    """Return a number of numpy's as one of Python's, which exact amounts and JSON need; anything else as it is."""
    if isinstance(value, (bool, str, Fraction, int)) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value
