"""Lowering and the checks before start, without torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zbopt.formats.torch_csv import Action, Op, parse_action, read_rows, write_rows
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule
from zbopt.replay.checks import check_actions, check_schedule
from zbopt.replay.lowering import addition_order, lower


def _row(text: str) -> tuple[Action, ...]:
    return tuple(parse_action(cell) for cell in text.split())


def test_two_stages_one_microbatch_by_hand(plans: SimpleNamespace) -> None:
    """At unit times stage 1 runs F0 at 1, B0 at 2, W0 at 3, and stage 0 its B0 at 3, W0 at 4.

    Stage 1's B0 and W0 stay apart, since stage 0 starts right after B0; stage 0's join, since it sends no gradient.
    """
    assert lower(plans.zb_h1(2, 1)) == (
        _row("0UNSHARD 0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD 0RESHARD"),
        _row("1UNSHARD 1RECV_F0 1F0 1I0 1SEND_B0 1W0 1REDUCE_GRAD 1RESHARD"),
    )


def test_b_and_w_join_where_nobody_waits(plans: SimpleNamespace) -> None:
    """All B before all W on one microbatch: stage 0 sends no gradient, so its B0 W0 run as one; stage 1's do not."""
    rows = lower(plans.all_forward((0, 1), 1))
    assert _row("0B0")[0] in rows[0]
    assert _row("1I0")[0] in rows[1]


def test_b_and_w_join_where_the_gradient_is_in_time(plans: SimpleNamespace) -> None:
    """Stage 1's W0 ends at 4, just when stage 0, which runs 4 F first, starts B0; W1 ends at 8, B1 could start at 7."""
    order = [
        [
            (Kind.F, 0, 0),
            (Kind.F, 0, 1),
            (Kind.F, 0, 2),
            (Kind.F, 0, 3),
            (Kind.B, 0, 0),
            (Kind.W, 0, 0),
            (Kind.B, 0, 1),
        ],
        [(kind, 1, j) for j in range(4) for kind in (Kind.F, Kind.B, Kind.W)],
    ]
    order[0] += [(Kind.W, 0, 1), *((kind, 0, j) for j in (2, 3) for kind in (Kind.B, Kind.W))]
    rows = lower(plans.timed(Instance.uniform(stages=2, microbatches=4), order))
    assert _row("1B0")[0] in rows[1]
    assert _row("1I1")[0] in rows[1]


@pytest.mark.parametrize("stage_of", [(0, 1, 2, 3), (0, 1, 1, 0), (0, 1, 0, 1), (0, 1, 1, 0, 2, 3, 3, 3, 2, 0)])
def test_every_placement_passes_the_checks(plans: SimpleNamespace, stage_of: tuple[int, ...]) -> None:
    schedule = plans.all_forward(stage_of, 3)
    assert check_actions(lower(schedule), schedule.instance) == []
    assert check_actions(lower(schedule, single_process=True), schedule.instance) == []


def test_each_transfer_is_one_send_and_one_receive(plans: SimpleNamespace) -> None:
    """p stages, m microbatches: (p-1) m tensors go forward and as many come back."""
    sends = [a for row in lower(plans.zb_h1(4, 8)) for a in row if a.op in (Op.SEND_F, Op.SEND_B)]
    assert len(sends) == 2 * 3 * 8


def test_messages_of_a_pair_have_one_order(plans: SimpleNamespace) -> None:
    """Deadlock freedom of in-order links: both ranks of a pair see the same sequence of messages."""
    rows = lower(plans.zb_h1(3, 6, comm_ticks=1))

    def sequence(row: tuple[Action, ...], low: int) -> list[tuple[str, int | None]]:
        names = {(low, Op.SEND_F): "f", (low + 1, Op.RECV_F): "f", (low + 1, Op.SEND_B): "b", (low, Op.RECV_B): "b"}
        return [(names[a.virtual_stage, a.op], a.microbatch) for a in row if (a.virtual_stage, a.op) in names]

    for low in (0, 1):
        assert sequence(rows[low], low) == sequence(rows[low + 1], low)


def _deadlocks(rows: tuple[tuple[Action, ...], ...], stage_of: tuple[int, ...]) -> bool:
    """Tell whether in-order links deadlock: one queue a rank, a transfer waits until both its ends are at the head."""
    after = {Op.SEND_F: 1, Op.SEND_B: -1}
    links: list[list[tuple[str, int, int | None]]] = [[] for _ in rows]
    arrived: set[tuple[str, int, int | None]] = set()
    at = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                a = row[at[rank]]
                v = a.virtual_stage
                if a.op in after:
                    links[rank].append((a.op.value[-1], v + after[a.op], a.microbatch))
                elif a.op in (Op.RECV_F, Op.RECV_B):
                    links[rank].append((a.op.value[-1], v, a.microbatch))
                else:
                    away = {Op.FORWARD: v - 1, Op.INPUT_GRAD: v + 1, Op.BACKWARD: v + 1}.get(a.op, -1)
                    remote = 0 <= away < len(stage_of) and stage_of[away] != stage_of[v]
                    if remote and ("F" if a.op is Op.FORWARD else "B", v, a.microbatch) not in arrived:
                        break
                at[rank] += 1
                moved = True
        for link in links:
            if link and sum(bool(other) and other[0] == link[0] for other in links) == 2:
                arrived.add(message := link[0])
                for other in links:
                    if other and other[0] == message:
                        other.pop(0)
                moved = True
    return any(place < len(row) for place, row in zip(at, rows, strict=True)) or any(links)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_placement_and_any_times_lower_without_deadlock(plans: SimpleNamespace, data: st.DataObject) -> None:
    """Random placements, times and latencies: the checks find nothing, and in-order links let everything through."""
    stages = data.draw(st.integers(1, 4))
    more = data.draw(st.lists(st.integers(0, stages - 1), max_size=4))
    stage_of = tuple(data.draw(st.permutations([*range(stages), *more])))
    times = st.lists(st.integers(1, 9), min_size=len(stage_of), max_size=len(stage_of))
    instance = Instance(
        stages=stages,
        microbatches=data.draw(st.integers(1, 6)),
        stage_of=stage_of,
        forward_ticks=data.draw(times),  # type: ignore[arg-type]
        backward_ticks=data.draw(times),  # type: ignore[arg-type]
        weight_ticks=data.draw(times),  # type: ignore[arg-type]
        comm_ticks=data.draw(st.integers(0, 3)),
    )  # type: ignore[call-arg]
    rows = lower(plans.greedy(instance))
    assert check_actions(rows, instance) == []
    assert not _deadlocks(rows, stage_of)


def test_the_model_of_links_sees_a_deadlock(plans: SimpleNamespace) -> None:
    """Two ranks that both send first and receive second wait for each other for ever."""
    rows = (_row("0F0 0SEND_F0 0RECV_B0 0I0 0F1 0SEND_F1"), _row("1RECV_F0 1F0 1I0 1RECV_F1 1SEND_B0 1F1"))
    assert _deadlocks(rows, (0, 1))


def test_a_first_stage_without_b_runs_whole_backwards(plans: SimpleNamespace) -> None:
    """Nothing needs the gradient of the model's input: W alone is PyTorch's whole backward of stage 0."""
    instance = Instance(stages=2, microbatches=1, forward_ticks=1, backward_ticks=(None, 1), weight_ticks=1)  # type: ignore[call-arg, arg-type]
    order = [[(Kind.F, 0, 0), (Kind.W, 0, 0)], [(Kind.F, 1, 0), (Kind.B, 1, 0), (Kind.W, 1, 0)]]
    rows = lower(plans.timed(instance, order))
    assert _row("0B0")[0] in rows[0]


def test_microbatch_order(plans: SimpleNamespace) -> None:
    assert addition_order(plans.zb_h1()).by_microbatch
    backwards = addition_order(plans.all_forward((0, 1), 3, [2, 1, 0]))
    assert not backwards.by_microbatch
    assert backwards.of_backward == ((0, 1, 2),) * 2
    assert backwards.of_weight == ((2, 1, 0),) * 2


def _damaged(rows: tuple[tuple[Action, ...], ...], rank: int, edit: str) -> tuple[tuple[Action, ...], ...]:
    """``-X`` drops the cell X, ``X~Y`` swaps two, ``+X`` repeats one."""
    row = list(rows[rank])
    if edit[0] == "-":
        row.remove(parse_action(edit[1:]))
    elif edit[0] == "+":
        row.append(parse_action(edit[1:]))
    else:
        i, j = (row.index(parse_action(cell)) for cell in edit.split("~"))
        row[i], row[j] = row[j], row[i]
    return (*rows[:rank], tuple(row), *rows[rank + 1 :])


@pytest.mark.parametrize(
    ("rank", "edit", "code"),
    [
        (1, "-1W2", "missing_action"),
        (1, "-1F2", "missing_action"),
        (0, "+0F1", "duplicate_action"),
        (0, "+0F9", "microbatch_range"),
        (0, "+7F0", "unknown_virtual_stage"),
        (0, "+1F0", "wrong_rank"),
        (2, "2F0~2F1", "last_stage_order"),
        (1, "-1REDUCE_GRAD", "missing_reduction"),
        (1, "1W5~1REDUCE_GRAD", "wrong_order"),
        (1, "1I0~1W0", "wrong_order"),
        (1, "-1SEND_F2", "wrong_transfer"),
        (1, "-1RECV_F2", "wrong_transfer"),
        (0, "0SEND_F0~0SEND_F1", "wrong_transfer"),
        (1, "1RECV_F0~1RECV_B0", "wrong_transfer"),
    ],
)
def test_damage_is_refused_before_start(plans: SimpleNamespace, rank: int, edit: str, code: str) -> None:
    """Both the damages that torch 2.13's loader was measured to accept and the others are refused."""
    schedule = plans.zb_h1(3, 6)
    found = check_actions(_damaged(lower(schedule), rank, edit), schedule.instance)
    assert code in {refusal.code for refusal in found}
    assert all(refusal.message.count(";") for refusal in found if refusal.code == code), "no way out named"


def test_a_wait_in_a_circle_is_refused(plans: SimpleNamespace) -> None:
    """Stage 0 wants its first gradient before its first forward, without which stage 1 has nothing to do."""
    schedule = plans.zb_h1(2, 1)
    rows = lower(schedule)
    row = [a for a in rows[0] if str(a) not in ("0RECV_B0", "0SEND_F0")]
    row[2:2] = [parse_action("0RECV_B0")]
    late = (*row, parse_action("0SEND_F0"))
    found = check_actions((late, rows[1]), schedule.instance)
    assert {refusal.code for refusal in found} & {"deadlock", "wrong_transfer"}


def test_optimizer_before_gradient_is_refused(plans: SimpleNamespace) -> None:
    schedule: Schedule = plans.zb_h1(2, 2, barrier="post_validation")
    events = tuple(
        e if e.kind is not Kind.O or e.stage else e.__class__(Kind.O, 0, None, None, 2, 2) for e in schedule.events
    )
    found = {refusal.code: refusal for refusal in check_schedule(schedule.model_copy(update={"events": events}))}
    assert "it0/s0/O starts at 2" in found["optimizer_before_gradient"].message


def test_a_w_left_out_is_refused(plans: SimpleNamespace) -> None:
    schedule: Schedule = plans.zb_h1(2, 2)
    events = tuple(e for e in schedule.events if e.id != "it0/s1/v1/mb0/W")
    (refusal, *_) = check_schedule(schedule.model_copy(update={"events": events}))
    assert refusal.code == "missing_task"


def test_csv_round_trip(plans: SimpleNamespace, tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = lower(plans.zb_h1(3, 4))
    write_rows(rows, tmp_path / "plan.csv")
    assert read_rows(tmp_path / "plan.csv") == rows


@pytest.mark.parametrize("text", ["0F0xyz", "F0", "0F", "0REDUCE_GRAD3", "0f0", "0X1"])
def test_junk_is_no_action(text: str) -> None:
    """Junk is refused. PyTorch's own reader takes the first of these."""
    with pytest.raises(ValueError, match=r"no action|takes"):
        parse_action(text)
