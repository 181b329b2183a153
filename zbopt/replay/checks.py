"""Checks before a run starts, of what PyTorch's runtime would silently compute wrongly or wait for without end.

Measured on torch 2.13: the loader accepts duplicates, microbatches out of range and a table without REDUCE_GRAD. Where
the forwards of the last virtual stage are not in microbatch order, it uses the wrong losses, and every gradient is
silently wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from zbopt.formats.order import require_kept
from zbopt.formats.torch_csv import COMPUTE, Action, Op, Rows
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule
from zbopt.replay.lowering import lower
from zbopt.validator import validate


@dataclass(frozen=True, slots=True)
class Refusal:
    """Give one reason why a run does not start: a stable code, and a sentence that names the action and a remedy."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class CannotReplayError(ValueError):
    """Signal that a schedule was refused before its run started; ``refusals`` holds all the reasons."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
        super().__init__(f"refused before start: {refusals[0]}{more}")


def checked_actions(schedule: Schedule, *, single_process: bool) -> Rows:
    """Check ``schedule`` and return the actions of each rank.

    Raises:
        CannotReplayError: PyTorch's runtime would err or hang on it.
    """
    refusals = check_schedule(schedule)
    if not refusals:
        actions_by_rank = lower(schedule, single_process=single_process)
        refusals = check_actions(actions_by_rank, schedule.instance)
    if refusals:
        raise CannotReplayError(refusals)
    return actions_by_rank


def check_schedule(schedule: Schedule) -> list[Refusal]:
    """Return the reasons against a schedule that lie in itself.

    These are what the validator finds, and what a table of actions cannot express.
    """
    later = next((e for e in schedule.events if e.iteration), None)
    if later is not None:
        return [
            Refusal("several_iterations", f"{later.id}: replay runs one iteration only; cut the file to iteration 0")
        ]
    if schedule.instance.routes is not None:
        return [
            Refusal(
                "several_routes",
                "routes: PyTorch's runtime has one route for all microbatches; choose a placement with one route",
            )
        ]
    if schedule.instance.overlapped_ticks is not None:
        return [Refusal("overlapped", "overlapped_ticks: PyTorch runs F and BW one after the other; leave it out")]
    try:
        require_kept(schedule, "PyTorch's table")
    except ValueError as error:
        return [Refusal("dropped_activation", str(error))]
    return [Refusal(v.code.value, v.message) for v in validate(schedule.instance, schedule).violations]


def check_actions(actions_by_rank: Rows, instance: Instance) -> list[Refusal]:
    """Return the reasons against a table of actions.

    Args:
        actions_by_rank: A list of actions for each stage, or a single list for all stages in one process.
        instance: The problem that the table solves.
    """
    single = len(actions_by_rank) == 1
    stage_of = [0] * instance.virtual_stages if single else list(instance.stage_of)
    if not single and len(actions_by_rank) != instance.stages:
        return [
            Refusal("rank_count", f"{len(actions_by_rank)} rows for {instance.stages} stages; give one row a stage")
        ]
    refusals = list(_out_of_range(actions_by_rank, instance, stage_of))
    if refusals:
        return refusals  # the other checks index by virtual stage and microbatch
    refusals += _wrong_counts(actions_by_rank, instance)
    refusals += _wrong_order(actions_by_rank, instance)
    refusals += _wrong_frames(actions_by_rank, instance)
    refusals += _wrong_transfers(actions_by_rank, stage_of)
    return refusals or _deadlocks(actions_by_rank, stage_of)


def _out_of_range(actions_by_rank: Rows, instance: Instance, stage_of: Sequence[int]) -> Iterator[Refusal]:
    """Yield actions on a virtual stage or microbatch that does not exist, or on the wrong rank."""
    for rank, actions in enumerate(actions_by_rank):
        for action in actions:
            micro = action.microbatch
            if not 0 <= action.virtual_stage < instance.virtual_stages:
                limit = f"virtual stages are 0 to {instance.virtual_stages - 1}"
                yield Refusal("unknown_virtual_stage", f"{action} of rank {rank}: {limit}; drop it")
            elif micro is not None and not 0 <= micro < instance.microbatches:
                limit = f"microbatches are 0 to {instance.microbatches - 1}"
                yield Refusal("microbatch_range", f"{action} of rank {rank}: {limit}; drop it")
            elif stage_of[action.virtual_stage] != rank:
                owner = stage_of[action.virtual_stage]
                yield Refusal("wrong_rank", f"{action} is on rank {rank}, its weights are on {owner}; move it there")


def _wrong_counts(actions_by_rank: Rows, instance: Instance) -> Iterator[Refusal]:
    """Yield what does not run exactly once: each forward, and each backward, whole or as input and weight gradient."""
    counts = Counter(action for actions in actions_by_rank for action in actions)
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


def _wrong_order(actions_by_rank: Rows, instance: Instance) -> Iterator[Refusal]:
    """Yield violations of F before backward, of I before W, and of microbatch order on the last virtual stage."""
    phase_of = {Op.FORWARD: 0, Op.BACKWARD: 1, Op.INPUT_GRAD: 1, Op.WEIGHT_GRAD: 2}
    for actions in actions_by_rank:
        reached: dict[tuple[int, int | None], int] = {}
        for action in actions:
            if action.op in phase_of:
                key = (action.virtual_stage, action.microbatch)
                if phase_of[action.op] < reached.get(key, -1) or (phase_of[action.op] and key not in reached):
                    yield Refusal("wrong_order", f"{action} is out of order with its own F and backward; swap them")
                reached[key] = phase_of[action.op]
    last = instance.virtual_stages - 1
    all_actions = chain.from_iterable(actions_by_rank)
    forwards = [a.microbatch for a in all_actions if a.virtual_stage == last and a.op is Op.FORWARD]
    for expected, micro in enumerate(forwards):
        if micro != expected:
            text = f"{last}F{micro} runs where {last}F{expected} should: PyTorch takes losses by position; sort them"
            yield Refusal("last_stage_order", text)
            break


def _wrong_frames(actions_by_rank: Rows, instance: Instance) -> Iterator[Refusal]:
    """Yield faults of the frame of each virtual stage: UNSHARD first, REDUCE_GRAD and RESHARD last, each once."""
    for v in range(instance.virtual_stages):
        ops = [action.op for actions in actions_by_rank for action in actions if action.virtual_stage == v]
        yield from _misplaced(v, ops, Op.UNSHARD, before=True)
        yield from _misplaced(v, ops, Op.REDUCE_GRAD, before=False)
        yield from _misplaced(v, ops, Op.RESHARD, before=False)


def _misplaced(virtual_stage: int, ops: Sequence[Op], op: Op, *, before: bool) -> Iterator[Refusal]:
    """Yield a refusal unless ``op`` runs once, and before (or after) all compute of the virtual stage."""
    name = f"{virtual_stage}{op.value}"
    count = ops.count(op)
    if count != 1:
        text = f"{name} runs {count} times; gradients would not be scaled or reduced; give it once"
        yield Refusal("duplicate_action" if count else "missing_reduction", text)
        return
    at = ops.index(op)
    other_side = ops[:at] if before else ops[at + 1 :]
    if any(each in COMPUTE for each in other_side):
        side = "before" if before else "after"
        yield Refusal("wrong_order", f"{name} must stand {side} all work of virtual stage {virtual_stage}; move it")


def _wrong_transfers(actions_by_rank: Rows, stage_of: Sequence[int]) -> Iterator[Refusal]:
    """Yield pairs of ranks where one receives other messages than the other sends, or in another order."""
    sent: dict[tuple[int, int], list[str]] = defaultdict(list)
    received: dict[tuple[int, int], list[str]] = defaultdict(list)
    for rank, actions in enumerate(actions_by_rank):
        for a in actions:
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
            yield Refusal("wrong_transfer", f"{names} different messages: {text}; export the schedule again")


def _deadlocks(actions_by_rank: Rows, stage_of: Sequence[int]) -> list[Refusal]:
    """Run the actions with sends that do not wait, and return the first that never starts, if any.

    Such an action waits in a circle, or for an input that nobody sends.
    """
    done: set[Action] = set()
    queues = [deque(actions) for actions in actions_by_rank]
    moved = True
    while moved:
        moved = False
        for queue in queues:
            while queue and _needs(queue[0], stage_of, len(actions_by_rank) == 1) <= done:
                done.add(queue.popleft().as_whole())
                moved = True
    stuck = [(rank, queue[0]) for rank, queue in enumerate(queues) if queue]
    if not stuck:
        return []
    rank, action = stuck[0]
    return [Refusal("deadlock", f"{action} of rank {rank} can never start: its input never comes; change the order")]


def _needs(action: Action, stage_of: Sequence[int], single: bool) -> set[Action]:
    """Return the actions that must have run before ``action``.

    That is the op that makes its input on the same rank, or both ends of the transfer that brings the input.
    """
    v, micro = action.virtual_stage, action.microbatch
    if action.op in (Op.SEND_F, Op.SEND_B):
        return {Action(v, Op.FORWARD if action.op is Op.SEND_F else Op.BACKWARD, micro)}
    if action.op is Op.FORWARD:
        source, send, receive = v - 1, Op.SEND_F, Op.RECV_F
    elif action.op in (Op.BACKWARD, Op.INPUT_GRAD):
        source, send, receive = v + 1, Op.SEND_B, Op.RECV_B
    else:
        return set()
    if not 0 <= source < len(stage_of):
        return set()
    if single or stage_of[source] == stage_of[v]:
        return {Action(source, Op.FORWARD if send is Op.SEND_F else Op.BACKWARD, micro)}
    return {Action(source, send, micro), Action(v, receive, micro)}
