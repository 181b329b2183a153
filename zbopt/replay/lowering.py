"""A schedule -> the actions that PyTorch's pipeline runtime executes, rank by rank.

The runtime's own lowering places every receive by counting actions, not time. Here sends and receives follow the
schedule's times: one total order of everything, of which each rank's row is a part, so that the two ends of every pair
of ranks see their messages in the same order and none waits in a circle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from zbopt.formats.torch_csv import Action, Op, Rows
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event, Schedule

_OP_OF = {Kind.F: Op.FORWARD, Kind.B: Op.INPUT_GRAD, Kind.W: Op.WEIGHT_GRAD, Kind.BW: Op.BACKWARD}


@dataclass(frozen=True, slots=True)
class Message:
    """A tensor that leaves ``producer`` at its end for virtual stage ``to``, on another stage."""

    producer: Event
    to: int
    to_stage: int

    def actions(self) -> tuple[Action, Action]:
        """The send, of the producer's rank, and the receive, of the other."""
        forward = self.producer.kind is Kind.F
        send, receive = (Op.SEND_F, Op.RECV_F) if forward else (Op.SEND_B, Op.RECV_B)
        return (
            Action(_virtual(self.producer), send, self.producer.microbatch),
            Action(self.to, receive, self.producer.microbatch),
        )


def lower(schedule: Schedule, *, single_process: bool = False) -> Rows:
    """The actions of each rank, in ``compute_comms`` form.

    An adjacent B and W of a microbatch run as one backward where no other stage waits for the gradient meanwhile in
    the schedule. UNSHARD, REDUCE_GRAD and RESHARD frame every virtual stage: without REDUCE_GRAD the runtime neither
    scales nor reduces gradients, silently.

    Args:
        schedule: A valid schedule; its times decide the order.
        single_process: All stages in one row, in order of start, without transfers.
    """
    rows = [list(row) for row in _merged(schedule)]
    if single_process:
        rows = [sorted((event for row in rows for event in row), key=lambda e: (e.start, e.stage))]
        return (_framed(tuple(map(_action, rows[0]))),)
    ends: list[deque[_End]] = [deque() for _ in rows]
    for message in _messages(schedule.instance, [event for row in rows for event in row]):
        send, receive = message.actions()
        ends[message.producer.stage].append((message.producer.end, send, True))
        ends[message.to_stage].append((message.producer.end, receive, False))
    return tuple(_framed(_woven(row, own)) for row, own in zip(rows, ends, strict=True))


_End = tuple[int, Action, bool]
"""When a message leaves, the action at one end of it, and whether that is the send."""


def _woven(row: list[Event], ends: deque[_End]) -> tuple[Action, ...]:
    """Compute ops of one stage with its ends of the messages, which keep their order.

    A receive is posted before the op that runs when its message leaves: posting waits for nothing, and a posted
    receive lets the sender's link go on.
    """
    woven: list[Action] = []
    for event in row:
        while ends and (ends[0][0] <= event.start or (not ends[0][2] and ends[0][0] < event.end)):
            woven.append(ends.popleft()[1])
        woven.append(_action(event))
    return (*woven, *(action for _, action, _ in ends))


@dataclass(frozen=True, slots=True)
class AdditionOrder:
    """Microbatches in the order in which their gradients add up, by virtual stage: those of B, and those left to W."""

    of_backward: tuple[tuple[int, ...], ...]
    of_weight: tuple[tuple[int, ...], ...]

    @property
    def by_microbatch(self) -> bool:
        """Everywhere in microbatch order, as in a plain loop."""
        return all(list(row) == sorted(row) for row in (*self.of_backward, *self.of_weight))


def addition_order(schedule: Schedule) -> AdditionOrder:
    """The order in which ``schedule`` adds gradients up; a virtual stage without B does everything in W."""
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


def _merged(schedule: Schedule) -> Iterator[list[Event]]:
    """Compute events of each stage in order, with B and W joined where that delays no other stage."""
    starts = {(e.virtual_stage, e.microbatch): e.start for e in schedule.events if e.kind in (Kind.B, Kind.BW)}
    no_input_gradient = schedule.instance.has_lone_w(0)
    for row in schedule.by_stage():
        events = [event for event in row if event.kind is not Kind.O]
        merged: list[Event] = []
        for event in events:
            before = merged[-1] if merged else None
            if no_input_gradient and event.virtual_stage == 0 and event.kind is Kind.W:
                merged.append(_as_backward(event, event))
            elif before is not None and _may_join(schedule.instance, before, event, starts):
                merged[-1] = _as_backward(before, event)
            else:
                merged.append(event)
        yield merged


def _may_join(
    instance: Instance, before: Event, after: Event, starts: dict[tuple[int | None, int | None], int]
) -> bool:
    same = (before.virtual_stage, before.microbatch) == (after.virtual_stage, after.microbatch)
    if not same or (before.kind, after.kind) != (Kind.B, Kind.W):
        return False
    virtual_stage = _virtual(before)
    if virtual_stage == 0 or instance.stage_of[virtual_stage - 1] == before.stage:
        return True
    waiting = starts.get((virtual_stage - 1, before.microbatch))
    return waiting is None or after.end + instance.lag_ticks(virtual_stage, virtual_stage - 1) <= waiting


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
    """Every transfer between stages, in the order of their producers' ends."""
    found = []
    for event in compute:
        step = {Kind.F: 1, Kind.B: -1, Kind.BW: -1}.get(event.kind, 0)
        to = _virtual(event) + step
        if step and 0 <= to < instance.virtual_stages and instance.stage_of[to] != event.stage:
            found.append(Message(event, to, instance.stage_of[to]))
    return sorted(found, key=lambda message: (message.producer.end, message.producer.stage, message.to))


def _framed(row: tuple[Action, ...]) -> tuple[Action, ...]:
    """UNSHARD before a virtual stage's work; REDUCE_GRAD and RESHARD after its last weight gradient."""
    ended = {a.virtual_stage: i for i, a in enumerate(row) if a.op in (Op.WEIGHT_GRAD, Op.BACKWARD)}
    framed = [Action(virtual_stage, Op.UNSHARD) for virtual_stage in sorted({a.virtual_stage for a in row})]
    for i, action in enumerate(row):
        framed.append(action)
        if ended.get(action.virtual_stage) == i:
            framed += [Action(action.virtual_stage, Op.REDUCE_GRAD), Action(action.virtual_stage, Op.RESHARD)]
    return tuple(framed)
