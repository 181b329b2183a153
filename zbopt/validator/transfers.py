"""Rules of transfers between stages: how long each takes, one at a time on a link or port, none overtakes another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from zbopt.problem.instance import COMPUTE, Communication, Instance, Kind, ReductionOccupies, TransferOccupies
from zbopt.problem.schedule import Event
from zbopt.validator.drops import Report, TaskEvents
from zbopt.validator.exclusive import Occupation, occupations_of, overlaps
from zbopt.validator.routes import Routes
from zbopt.validator.verdict import Code, name_of, shown


def transfer_time(instance: Instance, producer: int, consumer: int) -> int:
    """Return the ticks of a transfer between neighbours on a route; 0 past its ends, and within one stage."""
    count = len(instance.stage_of)
    if (
        not (0 <= producer < count and 0 <= consumer < count)
        or instance.stage_of[producer] == instance.stage_of[consumer]
    ):
        return 0
    here, there = instance.stage_of[producer], instance.stage_of[consumer]
    node = instance.stages_per_node
    inside = node is not None and here // node == there // node
    latency, rate = instance.comm_ticks, instance.bandwidth
    if inside and instance.node_comm_ticks is not None:
        latency = instance.node_comm_ticks
    if inside and instance.node_bandwidth is not None:
        rate = instance.node_bandwidth
    latency = latency if instance.comm_matrix is None else instance.comm_matrix[here][there]
    rate = rate if instance.bandwidth_matrix is None else instance.bandwidth_matrix[here][there]
    if rate is None or instance.boundary is None:
        return latency
    return latency - int(-instance.boundary[min(producer, consumer)] // rate)


def send_times(instance: Instance, routes: Routes) -> dict[Kind, tuple[int | None, ...]]:
    """Return the ticks of both transfers that a virtual stage may send; ``None`` where there must not be one."""
    stage_of = instance.stage_of

    def time(v: int, to: int | None) -> int | None:
        if instance.communication is Communication.LATENCY or to is None or stage_of[v] == stage_of[to]:
            return None
        return transfer_time(instance, v, to)

    return {
        Kind.SEND_F: tuple(time(v, to) for v, to in enumerate(routes.after)),
        Kind.SEND_B: tuple(time(v, to) for v, to in enumerate(routes.before)),
    }


def check_transfers(
    instance: Instance,
    routes: Routes,
    at: TaskEvents,
    reductions: Sequence[Event | None],
    stage_ops: Sequence[Sequence[Event]],
    report: Report,
) -> None:
    """Report transfers that share a link, port or stage, and those that overtake another one of their channel.

    Args:
        instance: The problem.
        routes: Its routes.
        at: The events of microbatches' tasks.
        reductions: The events of G.
        stage_ops: The ops of each stage.
        report: Called with each violation.
    """
    if instance.communication is Communication.LATENCY:
        return
    channels = _channels(instance, routes, at)
    if instance.transfer_occupies is TransferOccupies.PORT:
        for stage, occupations in enumerate(_port_occupations(instance, at, channels, reductions)):
            _one_at_a_time(f"the port of stage {stage}", occupations, Code.PORT_OVERLAP, report)
    else:
        for (stage, other), sends in channels.items():
            _one_at_a_time(f"the link from stage {stage} to {other}", occupations_of(sends), Code.LINK_OVERLAP, report)
    for (stage, other), sends in channels.items():
        _in_order(f"from stage {stage} to {other}", instance, at, sends, report)
    if instance.communication is Communication.BLOCKING:
        _compute_is_blocked(stage_ops, channels, report)


def _channels(instance: Instance, routes: Routes, at: TaskEvents) -> dict[tuple[int, int], list[Event]]:
    """Return the transfers by channel: (sending stage, receiving stage)."""
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for kind, receiver in ((Kind.SEND_F, routes.after), (Kind.SEND_B, routes.before)):
        for event in at[kind]:
            if event is not None and event.virtual_stage is not None:
                v, to = event.virtual_stage, receiver[event.virtual_stage]
                assert to is not None, "there is no such transfer past the ends of a route"
                found[instance.stage_of[v], instance.stage_of[to]].append(event)
    return found


def _port_occupations(
    instance: Instance, at: TaskEvents, channels: dict[tuple[int, int], list[Event]], reductions: Sequence[Event | None]
) -> list[list[Occupation]]:
    """Return what occupies each stage's port.

    These are transfers in both directions, collectives inside ops, and reductions where the instance puts them there.
    """
    occupations: list[list[Occupation]] = [[] for _ in range(instance.stages)]
    for ends, sends in channels.items():
        for stage in ends:
            occupations[stage] += occupations_of(sends)
    for inside in instance.collectives or ():
        for event in at[inside.kind]:
            if event is not None and event.virtual_stage is not None:
                start = event.start + inside.start
                occupations[instance.stage_of[event.virtual_stage]].append(
                    Occupation(start, start + inside.ticks, event)
                )
    if instance.reduction_occupies is ReductionOccupies.PORT:
        for event in reductions:
            if event is not None and event.virtual_stage is not None:
                occupations[instance.stage_of[event.virtual_stage]] += occupations_of([event])
    return occupations


def _one_at_a_time(resource: str, occupations: Iterable[Occupation], code: Code, report: Report) -> None:
    for first, second in overlaps(occupations):
        message = f"{resource}: {name_of(second.event)} has it from {shown(second.start)}, {name_of(first.event)} until"
        report(code, f"{message} {shown(first.end)}")


def _compute_is_blocked(
    stage_ops: Sequence[Sequence[Event]], channels: dict[tuple[int, int], list[Event]], report: Report
) -> None:
    """Report an op, or another transfer, that runs on a stage during one of its blocking transfers."""
    for stage, ops in enumerate(stage_ops):
        sends = [e for ends, between in channels.items() if stage in ends for e in between]
        for first, second in overlaps(occupations_of([*ops, *sends])):
            if first.event.kind in COMPUTE and second.event.kind in COMPUTE:
                continue
            message = f"stage {stage} computes nothing during a transfer: {name_of(second.event)} starts at"
            message += f" {shown(second.start)}, {name_of(first.event)} ends at {shown(first.end)}"
            report(Code.COMPUTE_BLOCKED, message)


def producer_of(instance: Instance, at: TaskEvents, send: Event) -> Event | None:
    """Return the op whose output a transfer carries; ``None``: it is missing."""
    index = index_of(instance, send)
    return at[Kind.F][index] if send.kind is Kind.SEND_F else at[Kind.BW][index] or at[Kind.B][index]


def index_of(instance: Instance, event: Event) -> int:
    """Return the index of a microbatch's task: virtual stages of all iterations in turn, microbatches within each."""
    number = event.iteration * len(instance.stage_of) + (event.virtual_stage or 0)
    return number * instance.microbatches + (event.microbatch or 0)


def _in_order(channel: str, instance: Instance, at: TaskEvents, sends: Sequence[Event], report: Report) -> None:
    known = [(source.end, send) for send in sends if (source := producer_of(instance, at, send)) is not None]
    latest: Event | None = None
    for _, send in sorted(known, key=lambda pair: pair[0]):
        if latest is not None and send.start < latest.start:
            message = f"{channel}: {name_of(send)} starts at {shown(send.start)}, before {name_of(latest)} at"
            report(Code.CHANNEL_ORDER, f"{message} {shown(latest.start)}, whose content was produced first")
        if latest is None or send.start > latest.start:
            latest = send
