"""Lowering of a schedule to the actions that PyTorch's pipeline runtime executes, rank by rank.

The runtime's own lowering places every receive by counting actions. This one places sends and receives by the
schedule's times: all messages have one total order, and each rank follows it. So both ranks of a pair see their
messages in the same order, and no ranks wait for each other in a circle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from zbopt.formats.torch_csv import Action, Op, Rows
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event, Schedule

_OP_OF = {Kind.F: Op.FORWARD, Kind.B: Op.INPUT_GRAD, Kind.W: Op.WEIGHT_GRAD, Kind.BW: Op.BACKWARD}


@dataclass(frozen=True, slots=True)
class Message:
    """Describe a tensor that leaves at the end of ``producer`` for virtual stage ``to``, on another stage."""

    producer: Event
    to: int
    to_stage: int

    def actions(self) -> tuple[Action, Action]:
        """Return the send, on the producer's rank, and the receive, on the other rank."""
        forward = self.producer.kind is Kind.F
        send, receive = (Op.SEND_F, Op.RECV_F) if forward else (Op.SEND_B, Op.RECV_B)
        return (
            Action(_virtual(self.producer), send, self.producer.microbatch),
            Action(self.to, receive, self.producer.microbatch),
        )


def lower(schedule: Schedule, *, single_process: bool = False) -> Rows:
    """Return the actions of each rank, in PyTorch's ``compute_comms`` form.

    A B and the W of its microbatch that follows at once run as one backward, unless another stage waits for the
    gradient before that W ends. UNSHARD, REDUCE_GRAD and RESHARD frame every virtual stage: without REDUCE_GRAD the
    runtime silently neither scales nor reduces gradients.

    Args:
        schedule: A valid schedule; its times decide the order.
        single_process: Put all stages on one rank, in order of start, without transfers.
    """
    orders = list(_joined_backwards(schedule))
    events = list(chain.from_iterable(orders))
    if single_process:
        events.sort(key=lambda e: (e.start, e.stage))
        return (_framed(tuple(map(_action, events))),)
    ends: list[deque[_MessageEnd]] = [deque() for _ in orders]
    for message in _messages(schedule.instance, events):
        send, receive = message.actions()
        ends[message.producer.stage].append((message.producer.end, send, True))
        ends[message.to_stage].append((message.producer.end, receive, False))
    return tuple(_framed(_with_transfers(order, own)) for order, own in zip(orders, ends, strict=True))


_MessageEnd = tuple[int, Action, bool]
"""When a message leaves, the action at one end of it, and whether that action is the send."""


def _with_transfers(order: list[Event], ends: deque[_MessageEnd]) -> tuple[Action, ...]:
    """Insert the sends and receives of one stage between its compute ops; both keep their order.

    A receive is posted before the op that runs when its message leaves. Posting does not wait, and a posted receive
    lets the sender's link continue.
    """
    actions: list[Action] = []
    for event in order:
        while ends and (ends[0][0] <= event.start or (not ends[0][2] and ends[0][0] < event.end)):
            actions.append(ends.popleft()[1])
        actions.append(_action(event))
    return (*actions, *(action for _, action, _ in ends))


@dataclass(frozen=True, slots=True)
class AdditionOrder:
    """Hold the microbatches of each virtual stage in the order in which B, and in which W, adds up their gradients."""

    of_backward: tuple[tuple[int, ...], ...]
    of_weight: tuple[tuple[int, ...], ...]

    @property
    def by_microbatch(self) -> bool:
        """Tell whether every virtual stage adds up in microbatch order, as a plain loop does."""
        return all(list(order) == sorted(order) for order in (*self.of_backward, *self.of_weight))


def addition_order(schedule: Schedule) -> AdditionOrder:
    """Return the order in which ``schedule`` adds up gradients; a virtual stage without B does everything in W."""
    backward: list[list[int]] = [[] for _ in schedule.instance.stage_of]
    weight: list[list[int]] = [[] for _ in schedule.instance.stage_of]
    for event in sorted(schedule.events, key=lambda e: (e.start, e.end)):
        if event.microbatch is not None and event.kind in (Kind.B, Kind.BW):
            backward[_virtual(event)].append(event.microbatch)
        if event.microbatch is not None and event.kind in (Kind.W, Kind.BW):
            weight[_virtual(event)].append(event.microbatch)
    filled = (b or w for b, w in zip(backward, weight, strict=True))
    return AdditionOrder(tuple(map(tuple, filled)), tuple(map(tuple, weight)))


def _virtual(event: Event) -> int:
    if event.virtual_stage is None:
        raise ValueError(f"{event.id}: no virtual stage; only O may leave it out")
    return event.virtual_stage


def _action(event: Event) -> Action:
    return Action(_virtual(event), _OP_OF[event.kind], event.microbatch)


def _joined_backwards(schedule: Schedule) -> Iterator[list[Event]]:
    """Yield the compute events of each stage in order, with B and W joined where that delays no other stage."""
    starts = {(e.virtual_stage, e.microbatch): e.start for e in schedule.events if e.kind in (Kind.B, Kind.BW)}
    no_input_gradient = schedule.instance.has_lone_w(0)
    for order in schedule.by_stage():
        joined: list[Event] = []
        for event in order:
            if event.kind is Kind.O:
                continue
            before = joined[-1] if joined else None
            if no_input_gradient and event.virtual_stage == 0 and event.kind is Kind.W:
                joined.append(_as_backward(event, event))
            elif before is not None and _may_join(schedule.instance, before, event, starts):
                joined[-1] = _as_backward(before, event)
            else:
                joined.append(event)
        yield joined


def _may_join(
    instance: Instance, before: Event, after: Event, starts: dict[tuple[int | None, int | None], int]
) -> bool:
    """Tell whether ``before`` and ``after`` are B and W of one microbatch whose joining delays no other stage.

    ``starts`` holds the start of each B and BW by virtual stage and microbatch.
    """
    same = (before.virtual_stage, before.microbatch) == (after.virtual_stage, after.microbatch)
    if not same or (before.kind, after.kind) != (Kind.B, Kind.W):
        return False
    virtual_stage = _virtual(before)
    if virtual_stage == 0 or instance.stage_of[virtual_stage - 1] == before.stage:
        return True
    next_start = starts.get((virtual_stage - 1, before.microbatch))
    return next_start is None or after.end + instance.lag_ticks(virtual_stage, virtual_stage - 1) <= next_start


def _as_backward(first: Event, last: Event) -> Event:
    return Event(
        kind=Kind.BW,
        stage=first.stage,
        virtual_stage=first.virtual_stage,
        microbatch=first.microbatch,
        start=first.start,
        end=last.end,
        iteration=first.iteration,
    )


def _messages(instance: Instance, compute: list[Event]) -> list[Message]:
    """Return every transfer between stages, in order of the ends of the ops that produce them."""
    messages = []
    for event in compute:
        step = {Kind.F: 1, Kind.B: -1, Kind.BW: -1}.get(event.kind, 0)
        to = _virtual(event) + step
        if step and 0 <= to < instance.virtual_stages and instance.stage_of[to] != event.stage:
            messages.append(Message(event, to, instance.stage_of[to]))
    return sorted(messages, key=lambda message: (message.producer.end, message.producer.stage, message.to))


def _framed(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Add UNSHARD before the work of each virtual stage, and REDUCE_GRAD and RESHARD after its last weight gradient."""
    last_gradient = {a.virtual_stage: i for i, a in enumerate(actions) if a.op in (Op.WEIGHT_GRAD, Op.BACKWARD)}
    framed = [Action(virtual_stage, Op.UNSHARD) for virtual_stage in sorted({a.virtual_stage for a in actions})]
    for i, action in enumerate(actions):
        framed.append(action)
        if last_gradient.get(action.virtual_stage) == i:
            framed += [Action(action.virtual_stage, Op.REDUCE_GRAD), Action(action.virtual_stage, Op.RESHARD)]
    return tuple(framed)
