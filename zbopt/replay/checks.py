"""What has to hold before a run starts, because PyTorch's runtime would err without a word or wait for ever.

Measured on torch 2.13: the loader takes duplicates, microbatches out of range and a table without REDUCE_GRAD; a last
stage whose forwards are not in microbatch order takes the wrong losses, and every gradient is silently wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zbopt.formats.order import require_kept
from zbopt.formats.torch_csv import COMPUTE, Action, Op, Rows
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule
from zbopt.replay.lowering import lower
from zbopt.validator import validate


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a run does not start: a stable code, and a sentence that names the action and the way out."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class RefusedError(ValueError):
    """The run was refused before it started; ``refusals`` are all the reasons."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
        super().__init__(f"refused before start: {refusals[0]}{more}")


def refuse(schedule: Schedule, *, single_process: bool) -> Rows:
    """The actions of ``schedule``, checked.

    Raises:
        RefusedError: Something does not hold.
    """
    found = check_schedule(schedule)
    if not found:
        rows = lower(schedule, single_process=single_process)
        found = check_rows(rows, schedule.instance)
    if found:
        raise RefusedError(found)
    return rows


def check_schedule(schedule: Schedule) -> list[Refusal]:
    """Reasons in the schedule itself: what the validator finds, and what a table of actions has no word for."""
    late = next((e for e in schedule.events if e.iteration), None)
    if late is not None:
        return [Refusal("several_iterations", f"{late.id}: replay runs files of one iteration; cut the file")]
    if schedule.instance.routes is not None:
        return [Refusal("several_routes", "routes: PyTorch's runtime has one route for all microbatches; take another")]
    if schedule.instance.overlapped_ticks is not None:
        return [Refusal("overlapped", "overlapped_ticks: PyTorch runs F and BW one after the other; leave it out")]
    try:
        require_kept(schedule, "PyTorch's table")
    except ValueError as error:
        return [Refusal("dropped_activation", str(error))]
    return [Refusal(v.code.value, v.message) for v in validate(schedule.instance, schedule).violations]


def check_rows(rows: Rows, instance: Instance) -> list[Refusal]:
    """Reasons in the actions. ``rows`` are one a stage, or a single row for all stages in one process."""
    single = len(rows) == 1
    stage_of = [0] * instance.virtual_stages if single else list(instance.stage_of)
    if not single and len(rows) != instance.stages:
        return [Refusal("rank_count", f"{len(rows)} rows for {instance.stages} stages; give one row a stage")]
    found = list(_out_of_range(rows, instance, stage_of))
    if found:
        return found
    found += _counts(rows, instance)
    found += _order(rows, instance)
    found += _reduction(rows, instance)
    found += _transfers(rows, stage_of)
    return found or _stuck(rows, stage_of)


def _out_of_range(rows: Rows, instance: Instance, stage_of: Sequence[int]) -> Iterator[Refusal]:
    for rank, row in enumerate(rows):
        for action in row:
            micro = action.microbatch
            if not 0 <= action.virtual_stage < instance.virtual_stages:
                limit = f"virtual stages are 0 to {instance.virtual_stages - 1}"
                yield Refusal("unknown_virtual_stage", f"{action} of rank {rank}: {limit}; drop it")
            elif micro is not None and not 0 <= micro < instance.microbatches:
                limit = f"microbatches are 0 to {instance.microbatches - 1}"
                yield Refusal("microbatch_range", f"{action} of rank {rank}: {limit}; drop it")
            elif stage_of[action.virtual_stage] != rank:
                held = stage_of[action.virtual_stage]
                yield Refusal("wrong_rank", f"{action} is on rank {rank}, its weights are on {held}; move it there")


def _counts(rows: Rows, instance: Instance) -> Iterator[Refusal]:
    """Each forward once; each backward once, whole or as input and weight gradient."""
    counts = Counter(action for row in rows for action in row)
    for action, count in counts.items():
        if count > 1:
            yield Refusal("duplicate_action", f"{action} runs {count} times; keep one")
    for v in range(instance.virtual_stages):
        for micro in range(instance.microbatches):
            has = {op for op in COMPUTE if Action(v, op, micro) in counts}
            if Op.FORWARD not in has:
                yield Refusal("missing_action", f"{Action(v, Op.FORWARD, micro)} never runs; add it")
            backward = has - {Op.FORWARD}
            if backward not in ({Op.BACKWARD}, {Op.INPUT_GRAD, Op.WEIGHT_GRAD}):
                names = ", ".join(sorted(op.value for op in backward)) or "nothing"
                yield Refusal(
                    "missing_action",
                    f"backward of microbatch {micro} on virtual stage {v} is {names}; give B, or I and W",
                )


def _order(rows: Rows, instance: Instance) -> Iterator[Refusal]:
    """F before the backward, I before W, and the last virtual stage's forwards in microbatch order."""
    rank_of = {Op.FORWARD: 0, Op.BACKWARD: 1, Op.INPUT_GRAD: 1, Op.WEIGHT_GRAD: 2}
    for row in rows:
        reached: dict[tuple[int, int | None], int] = {}
        for action in row:
            if action.op in rank_of:
                key = (action.virtual_stage, action.microbatch)
                if rank_of[action.op] < reached.get(key, -1) or (rank_of[action.op] and key not in reached):
                    yield Refusal("wrong_order", f"{action} is out of order with its own F and backward; swap them")
                reached[key] = rank_of[action.op]
    last = instance.virtual_stages - 1
    forwards = [a.microbatch for row in rows for a in row if a.virtual_stage == last and a.op is Op.FORWARD]
    for expected, micro in enumerate(forwards):
        if micro != expected:
            text = f"{last}F{micro} runs where {last}F{expected} should: PyTorch takes losses by position; sort them"
            yield Refusal("last_stage_order", text)
            break


def _reduction(rows: Rows, instance: Instance) -> Iterator[Refusal]:
    """One UNSHARD before everything, one REDUCE_GRAD and RESHARD after everything, of each virtual stage."""
    for v in range(instance.virtual_stages):
        own = [action.op for row in rows for action in row if action.virtual_stage == v]
        compute = [i for i, op in enumerate(own) if op in COMPUTE]
        frame = [(Op.UNSHARD, -1), (Op.REDUCE_GRAD, 1), (Op.RESHARD, 1)]
        for op, side in frame:
            at = [i for i, found in enumerate(own) if found is op]
            if len(at) != 1:
                text = f"{v}{op.value} is there {len(at)} times; gradients would not be scaled or reduced; give one"
                yield Refusal("missing_reduction" if not at else "duplicate_action", text)
            elif compute and not (at[0] < compute[0] if side < 0 else at[0] > compute[-1]):
                where = "before all" if side < 0 else "after all"
                yield Refusal("wrong_order", f"{v}{op.value} must stand {where} work of virtual stage {v}; move it")


def _transfers(rows: Rows, stage_of: Sequence[int]) -> Iterator[Refusal]:
    """What one rank of a pair sends is what the other receives, in the same order."""
    sent: dict[tuple[int, int], list[str]] = defaultdict(list)
    received: dict[tuple[int, int], list[str]] = defaultdict(list)
    for rank, row in enumerate(rows):
        for a in row:
            step = {Op.SEND_F: 1, Op.SEND_B: -1, Op.RECV_F: -1, Op.RECV_B: 1}.get(a.op)
            if step is None:
                continue
            peer = a.virtual_stage + step
            if not 0 <= peer < len(stage_of):
                yield Refusal("wrong_transfer", f"{a}: there is no virtual stage {peer}; drop it")
            elif a.op in (Op.SEND_F, Op.SEND_B):
                sent[rank, stage_of[peer]].append(str(a))
            else:
                twin = Op.SEND_F if a.op is Op.RECV_F else Op.SEND_B
                received[stage_of[peer], rank].append(str(Action(peer, twin, a.microbatch)))
    for pair in sorted(sent.keys() | received.keys()):
        if sent[pair] != received[pair]:
            differs = set(sent[pair]) ^ set(received[pair])
            text = f"first unmatched {min(differs)}" if differs else "the order differs"
            names = f"rank {pair[0]} sends and rank {pair[1]} receives"
            yield Refusal("wrong_transfer", f"{names} different messages: {text}; lower the schedule anew")


def _stuck(rows: Rows, stage_of: Sequence[int]) -> list[Refusal]:
    """Run the rows with sends that do not wait: what never starts waits in a circle, or for an input nobody sends."""
    done: set[Action] = set()
    queues = [deque(row) for row in rows]
    moved = True
    while moved:
        moved = False
        for queue in queues:
            while queue and _needs(queue[0], stage_of, len(rows) == 1) <= done:
                done.add(queue.popleft().as_whole())
                moved = True
    stuck = [(rank, queue[0]) for rank, queue in enumerate(queues) if queue]
    if not stuck:
        return []
    rank, action = stuck[0]
    return [Refusal("deadlock", f"{action} of rank {rank} can never start: its input never comes; change the order")]


def _needs(action: Action, stage_of: Sequence[int], single: bool) -> set[Action]:
    """Actions that must have run before ``action``: its input here, or both ends of the transfer that brings it."""
    v, micro = action.virtual_stage, action.microbatch
    if action.op in (Op.SEND_F, Op.SEND_B):
        return {Action(v, Op.FORWARD if action.op is Op.SEND_F else Op.BACKWARD, micro)}
    if action.op is Op.FORWARD:
        giver, send, receive = v - 1, Op.SEND_F, Op.RECV_F
    elif action.op in (Op.BACKWARD, Op.INPUT_GRAD):
        giver, send, receive = v + 1, Op.SEND_B, Op.RECV_B
    else:
        return set()
    if not 0 <= giver < len(stage_of):
        return set()
    if single or stage_of[giver] == stage_of[v]:
        return {Action(giver, Op.FORWARD if send is Op.SEND_F else Op.BACKWARD, micro)}
    return {Action(giver, send, micro), Action(v, receive, micro)}
