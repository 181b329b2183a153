"""Transfers between stages as events: what each takes, that one at a time has its link, and that none overtakes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from zbopt.problem.instance import COMPUTE, Communication, Instance, Kind, ReductionOccupies, TransferOccupies
from zbopt.problem.schedule import Event
from zbopt.validator.drops import At, Report
from zbopt.validator.held import Held, overlaps, whole
from zbopt.validator.routes import Routes
from zbopt.validator.verdict import Code, name_of, shown


def transfer_time(instance: Instance, giver: int, taker: int) -> int:
    """Ticks of a transfer between two neighbours on the route; past its ends, and on one stage, there is none."""
    count = len(instance.stage_of)
    if not (0 <= giver < count and 0 <= taker < count) or instance.stage_of[giver] == instance.stage_of[taker]:
        return 0
    here, there = instance.stage_of[giver], instance.stage_of[taker]
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
    return latency - int(-instance.boundary[min(giver, taker)] // rate)


def send_times(instance: Instance, routes: Routes) -> dict[Kind, tuple[int | None, ...]]:
    """Ticks of both transfers that a virtual stage may send; ``None`` where there must not be one."""
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
    at: At,
    reductions: Sequence[Event | None],
    rows: Sequence[Sequence[Event]],
    report: Report,
) -> None:
    """Report transfers that share what only one may have, and those that overtake another of their channel.

    Args:
        instance: The problem.
        routes: Its routes.
        at: The events of microbatches' tasks.
        reductions: The events of G.
        rows: What runs on each stage's compute.
        report: Told each violation.
    """
    if instance.communication is Communication.LATENCY:
        return
    channels = _channels(instance, routes, at)
    if instance.transfer_occupies is TransferOccupies.PORT:
        for stage, row in enumerate(_ports(instance, at, channels, reductions)):
            _one_at_a_time(f"the port of stage {stage}", row, Code.PORT_OVERLAP, report)
    else:
        for (stage, other), sends in channels.items():
            _one_at_a_time(f"the link from stage {stage} to {other}", whole(sends), Code.LINK_OVERLAP, report)
    for (stage, other), sends in channels.items():
        _in_order(f"from stage {stage} to {other}", instance, at, sends, report)
    if instance.communication is Communication.BLOCKING:
        _compute_is_held(rows, channels, report)


def _channels(instance: Instance, routes: Routes, at: At) -> dict[tuple[int, int], list[Event]]:
    """Transfers by the stages between which they go."""
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for kind, receiver in ((Kind.SEND_F, routes.after), (Kind.SEND_B, routes.before)):
        for event in at[kind]:
            if event is not None and event.virtual_stage is not None:
                v, to = event.virtual_stage, receiver[event.virtual_stage]
                assert to is not None, "there is no such transfer past the ends of a route"
                found[instance.stage_of[v], instance.stage_of[to]].append(event)
    return found


def _ports(
    instance: Instance, at: At, channels: dict[tuple[int, int], list[Event]], reductions: Sequence[Event | None]
) -> list[list[Held]]:
    """What has each stage's port: transfers of both directions, collectives inside ops, reductions where so asked."""
    rows: list[list[Held]] = [[] for _ in range(instance.stages)]
    for ends, sends in channels.items():
        for stage in ends:
            rows[stage] += whole(sends)
    for inside in instance.collectives or ():
        for event in at[inside.kind]:
            if event is not None and event.virtual_stage is not None:
                start = event.start + inside.start
                rows[instance.stage_of[event.virtual_stage]].append(Held(start, start + inside.ticks, event))
    if instance.reduction_occupies is ReductionOccupies.PORT:
        for event in reductions:
            if event is not None and event.virtual_stage is not None:
                rows[instance.stage_of[event.virtual_stage]] += whole([event])
    return rows


def _one_at_a_time(what: str, row: Iterable[Held], code: Code, report: Report) -> None:
    for first, second in overlaps(row):
        message = f"{what}: {name_of(second.event)} has it from {shown(second.start)}, {name_of(first.event)} until"
        report(code, f"{message} {shown(first.end)}")


def _compute_is_held(
    rows: Sequence[Sequence[Event]], channels: dict[tuple[int, int], list[Event]], report: Report
) -> None:
    """A blocking transfer and any op, or other transfer, of either of its stages."""
    for stage, row in enumerate(rows):
        sends = [e for ends, between in channels.items() if stage in ends for e in between]
        for first, second in overlaps(whole([*row, *sends])):
            if first.event.kind in COMPUTE and second.event.kind in COMPUTE:
                continue
            message = f"stage {stage} computes nothing during a transfer: {name_of(second.event)} starts at"
            message += f" {shown(second.start)}, {name_of(first.event)} ends at {shown(first.end)}"
            report(Code.COMPUTE_BLOCKED, message)


def produced(instance: Instance, at: At, send: Event) -> Event | None:
    """The op whose output a transfer carries; ``None``: it is not there."""
    place = place_of(instance, send)
    return at[Kind.F][place] if send.kind is Kind.SEND_F else at[Kind.BW][place] or at[Kind.B][place]


def place_of(instance: Instance, event: Event) -> int:
    """Place of a microbatch's task: virtual stages of all iterations one after another, microbatches within each."""
    row = event.iteration * len(instance.stage_of) + (event.virtual_stage or 0)
    return row * instance.microbatches + (event.microbatch or 0)


def _in_order(where: str, instance: Instance, at: At, sends: Sequence[Event], report: Report) -> None:
    known = [(source.end, send) for send in sends if (source := produced(instance, at, send)) is not None]
    latest: Event | None = None
    for _, send in sorted(known, key=lambda pair: pair[0]):
        if latest is not None and send.start < latest.start:
            message = f"{where}: {name_of(send)} starts at {shown(send.start)}, before {name_of(latest)} at"
            report(Code.CHANNEL_ORDER, f"{message} {shown(latest.start)}, whose content was produced first")
        if latest is None or send.start > latest.start:
            latest = send
