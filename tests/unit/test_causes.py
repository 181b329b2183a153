"""Causes of idle time, each figure counted by hand."""

from __future__ import annotations

from itertools import pairwise
from time import process_time

import pytest

from zbopt.analysis.idle import Cause, explain
from zbopt.analysis.metrics import figures
from zbopt.formats.event_list import event_list_from_document
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event, Provenance, Schedule
from zbopt.reports.explain import explain_page, explain_record

FUSED = {"backward_ticks": None, "weight_ticks": None, "fused_backward_ticks": 2}


def _instance(**fields: object) -> Instance:
    return Instance.uniform(**({"stages": 4, "microbatches": 8} | fields))  # type: ignore[arg-type]


def _schedule(instance: Instance, *ops: tuple[Kind, int, int, int, int]) -> Schedule:
    """Build a schedule from events (kind, virtual stage, microbatch, start, end) on linear stages."""
    events = tuple(Event(kind, instance.stage_of[v], v, j, start, end) for kind, v, j, start, end in ops)
    return Schedule(instance=instance, provenance=Provenance(source="hand"), events=events)


def test_1f1b_waits_36_ticks() -> None:
    """p=4, m=8, F=1, BW=2: 11 rounds of 3 ticks less 8 of work leave 9 idle ticks on each of 4 stages.

    Stage s begins at s (0+1+2+3 = 6) and ends 2s before the end (12); between, stage s waits 3 (3-s) ticks for
    gradients (18).
    """
    explained = explain(HEURISTICS["1f1b"](_instance(**FUSED)))
    sums = explained.by_cause()
    assert sum(sums.values()) == 36
    assert (sums[Cause.FILL], sums[Cause.DRAIN], sums[Cause.DEPENDENCY]) == (6, 12, 18)
    assert [row[Cause.DEPENDENCY] for row in explained.by_stage()] == [9, 6, 3, 0]
    assert all(sum(row.values()) == 9 for row in explained.by_stage())


def test_the_critical_path_of_1f1b_has_no_slack() -> None:
    """Every op of the path begins when the one before ends, from tick 0 to tick 33, on stage 0 both times."""
    path = explain(HEURISTICS["1f1b"](_instance(**FUSED))).critical_path
    assert (path[0].id, path[-1].id) == ("it0/s0/v0/mb0/F", "it0/s0/v0/mb7/BW")
    assert path[0].start == 0
    assert path[-1].end == 33
    assert all(before.end == after.start for before, after in pairwise(path))


def test_bug_the_path_of_the_period() -> None:
    """Two stages, one microbatch, O of 2: stage 0 runs F, waits for F and B below, runs B, W, O and begins anew at 7.

    The path was that of the makespan, to the last O of stage 1 at 15. Before the first op nothing is to be gained.
    """
    step = {"barrier": "post_validation", "optimizer_ticks": 2, "iterations": 2, "objective": "period"}
    times = {"forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1}
    instance = Instance.model_validate({"stages": 2, "microbatches": 1} | times | step)
    explained = explain(HEURISTICS["list"](instance))
    assert [e.id for e in explained.critical_path] == [
        "it0/s0/v0/mb0/F",
        "it0/s1/v1/mb0/F",
        "it0/s1/v1/mb0/B",
        "it0/s0/v0/mb0/B",
        "it0/s0/v0/mb0/W",
        "it0/s0/O",
        "it1/s0/v0/mb0/F",
    ]
    page = list(explain_page(explained, 80))
    assert "critical path of the period, on stage 0 from 0 to 7, 7 events:" in page
    told = explain_record(explained)
    assert told["measured"] == {"objective": "period", "stage": 0, "begin": 0, "end": 7}
    assert Cause.FILL not in {found.idle.cause for found in explained.all_avoidable()}


def test_bug_the_path_of_the_largest_span() -> None:
    """ZB-H2 at unit times: each stage spans its load, 8 (F+B+W) = 24 ticks, stage 0 the first; the makespan is 27."""
    explained = explain(HEURISTICS["zb-h2"](_instance(objective="max_stage_span")))
    path = explained.critical_path
    assert (path[0].start, path[-1].end, path[-1].stage) == (0, 24, 0)
    assert all(before.end == after.start for before, after in pairwise(path))
    page = list(explain_page(explained, 80))
    assert f"critical path of the largest stage span, on stage 0 from 0 to 24, {len(path)} events:" in page
    whole = explain(HEURISTICS["zb-h2"](_instance()))
    assert (whole.critical_path[-1].end, whole.measured.stage) == (27, None)


def test_a_transfer_is_the_part_after_the_producer_ended() -> None:
    """Two stages, one microbatch, F=B=W=1, latency 3: stage 0 waits 4 + 1 ticks to its B.

    F0 ends at 1, stage 1 runs F0 in [4, 5) and B0 in [5, 6): stage 0 idles [1, 9), until 6 for the op and to 9 for the
    transfer. The path is F, F, B, B, W.
    """
    instance = _instance(stages=2, microbatches=1, comm_ticks=3)
    explained = explain(HEURISTICS["zb-h1"](instance))
    waits = [(i.start, i.end, i.cause, i.waits_for.id) for i in explained.idle if i.stage == 0 and i.waits_for]
    assert waits == [
        (1, 6, Cause.DEPENDENCY, "it0/s1/v1/mb0/B"),
        (6, 9, Cause.TRANSFER, "it0/s1/v1/mb0/B"),
    ]
    assert [e.id[4:] for e in explained.critical_path] == [
        "s0/v0/mb0/F",
        "s1/v1/mb0/F",
        "s1/v1/mb0/B",
        "s0/v0/mb0/B",
        "s0/v0/mb0/W",
    ]


def test_the_cap_is_the_cause_where_the_next_f_had_its_input() -> None:
    """1F1B with a cap of 4: stage 0 has its inputs always, so its wait in [4, 10) with 4 activations is for memory.

    After its last F it waits one tick for each of its last three gradients. Stage 1 holds 3 of 4: it has room.
    """
    explained = explain(HEURISTICS["1f1b"](_instance(**FUSED, memory_cap=4)))
    rows = explained.by_stage()
    assert (rows[0][Cause.MEMORY], rows[0][Cause.DEPENDENCY]) == (6, 3)
    assert rows[1][Cause.MEMORY] == 0
    first = next(i for i in explained.idle if i.cause is Cause.MEMORY)
    assert (first.start, first.end, first.waits_for and first.waits_for.id) == (4, 10, "it0/s0/v0/mb0/BW")


def test_an_op_that_starts_late_for_nothing() -> None:
    """One stage: F [0, 1), then B only at 3 although nothing else runs: 2 ticks of order, which B itself could use."""
    instance = _instance(stages=1, microbatches=1)
    late = _schedule(instance, (Kind.F, 0, 0, 0, 1), (Kind.B, 0, 0, 3, 4), (Kind.W, 0, 0, 4, 5))
    explained = explain(late)
    (gap,) = explained.idle
    assert (gap.cause, gap.ticks, gap.waits_for) == (Cause.ORDER, 2, None)
    use = explained.avoidable()
    assert use is not None
    assert (use.op.id, use.usable_from, use.ticks, use.by_split) == ("it0/s0/v0/mb0/B", 1, 2, False)


def test_o_waits_for_the_gradients_of_other_stages() -> None:
    """ZB-H1 with a global barrier: all stages end their W at 27 but begin up to 3 later: no wait there at p=4, m=8.

    With 2 stages, one microbatch and F=B=W=1, stage 1 ends W0 at 4 and stage 0 at 5: O of stage 1 waits one tick.
    """
    instance = _instance(stages=2, microbatches=1, barrier="global")
    explained = explain(HEURISTICS["zb-h1"](instance))
    barriers = [i for i in explained.idle if i.cause is Cause.BARRIER]
    assert [(i.stage, i.start, i.end, i.waits_for and i.waits_for.id) for i in barriers] == [
        (1, 4, 5, "it0/s0/v0/mb0/W")
    ]


def test_a_later_op_of_the_stage_could_use_the_first_bubble() -> None:
    """1F1B without a cap: stage 0 idles from 4, and F4, for which nothing has to come, could run there."""
    use = explain(HEURISTICS["1f1b"](_instance(**FUSED))).avoidable()
    assert use is not None
    assert (use.idle.stage, use.idle.start, use.op.id, use.by_split) == (0, 4, "it0/s0/v0/mb4/F", False)


def test_an_f_has_room_where_it_fills_the_cap() -> None:
    """One stage, cap 2: F1 runs in [2, 3), and could in [1, 2) beside F0: what it holds itself is no obstacle."""
    ops = [(Kind.F, 0, 0, 0, 1), (Kind.F, 0, 1, 2, 3), (Kind.B, 0, 0, 3, 4), (Kind.B, 0, 1, 4, 5)]
    ops += [(Kind.W, 0, 0, 5, 6), (Kind.W, 0, 1, 6, 7)]
    use = explain(_schedule(_instance(stages=1, microbatches=2, memory_cap=2), *ops)).avoidable()
    assert use is not None
    assert (use.op.id, use.usable_from) == ("it0/s0/v0/mb1/F", 1)


def test_a_split_could_shorten_a_bubble() -> None:
    """1F1B, cap 2, on two stages whose backward may be split, F=B=W=1, BW=2.

    Stage 0 has no room for F2 while it waits in [2, 4) for BW0 of stage 1, which ends at 4 and as B would end at 3.
    """
    instance = _instance(stages=2, microbatches=3, memory_cap=2, fused_backward_ticks=2)
    explained = explain(HEURISTICS["1f1b"](instance))
    memory = explained.idle[1]
    assert (memory.start, memory.end, memory.cause) == (2, 4, Cause.MEMORY)
    use = explained.avoidable()
    assert use is not None
    assert use.by_split
    assert use.op.kind is Kind.BW
    assert use.op.stage != use.idle.stage


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "1f1b-split", "zb-h1", "zb-h2", "zb-auto", "list"])
def test_idle_and_busy_time_make_the_makespan(name: str) -> None:
    """By definition: stages times makespan is busy time and every idle tick, once."""
    schedule = HEURISTICS[name](_instance(fused_backward_ticks=2, comm_ticks=1, barrier="global", memory_cap=20))
    known = figures(schedule)
    idle = explain(schedule).idle
    assert sum(i.ticks for i in idle) + sum(known.busy_ticks) == known.makespan * 4
    assert all(i.ticks > 0 for i in idle)


def test_what_does_not_fit_together_is_explained_too() -> None:
    """A schedule that the validator refuses: W alone, two ops at once, a stage with nothing."""
    instance = _instance(stages=2, microbatches=1)
    explained = explain(_schedule(instance, (Kind.W, 1, 0, 0, 4), (Kind.F, 1, 0, 1, 2)))
    assert [(i.stage, i.start, i.end) for i in explained.idle] == [(0, 0, 4)]
    assert explain(_schedule(instance)).critical_path == ()


def _of(fields: dict[str, object], *ops: tuple[Kind, int, int | None, int, int, int]) -> Schedule:
    """Build a schedule of events (kind, virtual stage, microbatch, start, end, iteration) whose ops take 1."""
    instance = Instance.model_validate({"forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1} | fields)
    events = [Event(k, v, None if k is Kind.O else v, j, start, end, it) for k, v, j, start, end, it in ops]
    return Schedule(instance=instance, provenance=Provenance(source="hand"), events=tuple(events))


def test_bug_a_last_reduction_was_in_no_idle_time() -> None:
    """One stage, 3 ticks of work, G in [3, 7): 4 of 7 ticks are idle; there were none, of a makespan of 7.

    The path is F, B, W, G, each at the end of the one before.
    """
    ops = [(Kind.F, 0, 0, 0, 1, 0), (Kind.B, 0, 0, 1, 2, 0), (Kind.W, 0, 0, 2, 3, 0), (Kind.G, 0, None, 3, 7, 0)]
    reduced = _of({"stages": 1, "microbatches": 1, "reduction_ticks": 4}, *ops)
    explained = explain(reduced)
    assert figures(reduced).makespan == 7
    assert [(i.start, i.end, i.cause) for i in explained.idle] == [(3, 7, Cause.DRAIN)]
    assert explained.whole().share(explained.whole().idle) == 4 / 7
    assert [e.kind for e in explained.critical_path] == [Kind.F, Kind.B, Kind.W, Kind.G]


def test_bug_waits_for_data_counted_as_waits_for_nothing() -> None:
    """Data of the two microbatches come at 0 and 5: between W0 and F1 the stage is idle in [3, 5)."""
    ops = [(kind, 0, j, start + i, start + i + 1, 0) for j, start in ((0, 0), (1, 5))
           for i, kind in enumerate((Kind.F, Kind.B, Kind.W))]  # fmt: skip
    explained = explain(_of({"stages": 1, "microbatches": 2, "input_ready_ticks": [0, 5]}, *ops))
    assert [(i.start, i.end, i.cause) for i in explained.idle] == [(3, 5, Cause.INPUT)]
    assert (explained.whole().begin, explained.whole().end) == (0, 8)
    assert explained.avoidable() is None


def test_the_next_iteration_waits_for_the_step_of_this_one() -> None:
    """One stage, two iterations: O runs in [5, 7), so F of the second, at 8, could start at 7 and not at 3."""
    ops = [(Kind.F, 0, 0, 0, 1, 0), (Kind.B, 0, 0, 1, 2, 0), (Kind.W, 0, 0, 2, 3, 0), (Kind.O, 0, None, 5, 7, 0)]
    ops += [(Kind.F, 0, 0, 8, 9, 1), (Kind.B, 0, 0, 9, 10, 1), (Kind.W, 0, 0, 10, 11, 1), (Kind.O, 0, None, 11, 13, 1)]
    fields = {"stages": 1, "microbatches": 1, "iterations": 2, "barrier": "post_validation", "optimizer_ticks": 2}
    explained = explain(_of(fields, *ops))
    use = explained.avoidable()
    assert use is not None
    assert (use.idle.start, use.op.id, use.usable_from) == (7, "it1/s0/v0/mb0/F", 7)


def test_bug_a_recomputed_forward_waited_for_a_gradient() -> None:
    """Two stages: stage 0 recomputes in [6, 7) what it ran in [0, 1), though B0 of stage 1 ends at 5: it could at 1.

    R needs its F alone; it was said to need the gradient, as B does.
    """
    ops = [(Kind.F, 0, 0, 0, 1, 0), (Kind.R, 0, 0, 6, 7, 0), (Kind.B, 0, 0, 7, 8, 0), (Kind.W, 0, 0, 8, 9, 0)]
    ops += [(Kind.F, 1, 0, 1, 2, 0), (Kind.B, 1, 0, 4, 5, 0), (Kind.W, 1, 0, 5, 6, 0)]
    explained = explain(_of({"stages": 2, "microbatches": 1, "recompute": ["always", "never"]}, *ops))
    assert [(i.start, i.end, i.cause) for i in explained.idle if i.stage == 0] == [(1, 6, Cause.ORDER)]
    use = explained.avoidable()
    assert use is not None
    assert (use.op.id, use.usable_from) == ("it0/s0/v0/mb0/R", 1)


def test_room_is_for_all_that_an_f_takes() -> None:
    """One stage, cap 3: F takes its activation of 1 and an output of 1, so a second one does not fit while F0 is there.

    F1 waits in [1, 4) for the room that B0 and W0 give back, not for nothing.
    """
    ops = [(Kind.F, 0, 0, 0, 1, 0), (Kind.B, 0, 0, 2, 3, 0), (Kind.W, 0, 0, 3, 4, 0)]
    ops += [(Kind.F, 0, 1, 4, 5, 0), (Kind.B, 0, 1, 5, 6, 0), (Kind.W, 0, 1, 6, 7, 0)]
    fields = {"stages": 1, "microbatches": 2, "activation": 1, "boundary": 1, "memory_cap": 3}
    use = explain(_of(fields, *ops)).avoidable()
    assert use is not None
    assert use.op.id == "it0/s0/v0/mb0/B"


def test_bug_a_held_stage_counted_as_waiting_for_nothing() -> None:
    """Two stages, blocking transfers of 2: F0 goes out in [1, 3), so that F1 cannot start before 3, and is not said to.

    By hand: stage 0 runs F0 and F1, held in [1, 3); F1 goes out when B0 of stage 1 is over, in [5, 7), and the gradient
    of 0 comes in [7, 9). All of the path but the last transfer's content waits for what held it.
    """
    ops = [(Kind.F, 0, 0, 0, 1, 0), (Kind.SEND_F, 0, 0, 1, 3, 0), (Kind.F, 0, 1, 3, 4, 0), (Kind.SEND_F, 0, 1, 5, 7, 0)]
    ops += [(Kind.F, 1, 0, 3, 4, 0), (Kind.B, 1, 0, 4, 5, 0), (Kind.SEND_B, 1, 0, 7, 9, 0), (Kind.B, 0, 0, 9, 10, 0)]
    explained = explain(_of({"stages": 2, "microbatches": 2, "comm_ticks": 2, "communication": "blocking"}, *ops))
    waits = [(i.start, i.end, i.cause, i.waits_for and i.waits_for.id) for i in explained.idle if i.stage == 0]
    assert waits == [
        (1, 3, Cause.HELD, "it0/s0/v0/mb0/SEND_F"),
        (4, 5, Cause.DEPENDENCY, "it0/s1/v1/mb0/B"),
        (5, 7, Cause.HELD, "it0/s0/v0/mb1/SEND_F"),
        (7, 9, Cause.HELD, "it0/s1/v1/mb0/SEND_B"),
    ]
    assert explained.avoidable() is None
    assert [e.id[4:] for e in explained.critical_path] == [
        "s0/v0/mb0/F", "s0/v0/mb0/SEND_F", "s1/v1/mb0/F", "s1/v1/mb0/B", "s0/v0/mb1/SEND_F", "s1/v1/mb0/SEND_B",
        "s0/v0/mb0/B",
    ]  # fmt: skip


def test_the_path_goes_through_what_had_the_link() -> None:
    """Two Fs of 1 over a link of 3 a transfer: the second, ready at 2, waits for the first one's end at 4, until 7."""
    ops = [(Kind.F, 0, 0, 0, 1, 0), (Kind.F, 0, 1, 1, 2, 0), (Kind.SEND_F, 0, 0, 1, 4, 0), (Kind.SEND_F, 0, 1, 4, 7, 0)]
    ops += [(Kind.F, 1, 0, 4, 5, 0), (Kind.F, 1, 1, 7, 8, 0)]
    explained = explain(_of({"stages": 2, "microbatches": 2, "comm_ticks": 3, "communication": "link"}, *ops))
    assert [e.id[4:] for e in explained.critical_path] == [
        "s0/v0/mb0/F", "s0/v0/mb0/SEND_F", "s0/v0/mb1/SEND_F", "s1/v1/mb1/F",
    ]  # fmt: skip


def test_bug_a_collective_that_waits_for_the_port_counted_as_nothing() -> None:
    """One transfer of 4 has both ports in [2, 6); the next F, with a collective in its second tick, starts at 5.

    Stage 0 runs F0 in [0, 2) and F1 in [5, 7), whose collective has the port in [6, 7): it could not be earlier, and
    the path leads over the transfer.
    """
    ops = [(Kind.F, 0, 0, 0, 2, 0), (Kind.SEND_F, 0, 0, 2, 6, 0), (Kind.F, 0, 1, 5, 7, 0)]
    fields = {"forward_ticks": 2, "comm_ticks": 4, "communication": "link", "transfer_occupies": "port"}
    fields |= {"stages": 2, "microbatches": 2, "collectives": [{"kind": "F", "start": 1, "ticks": 1}]}
    explained = explain(_of(fields, *ops))
    waits = [(i.start, i.end, i.cause, i.waits_for and i.waits_for.id) for i in explained.idle if i.stage == 0]
    assert waits == [(2, 5, Cause.LINK, "it0/s0/v0/mb0/SEND_F")]
    assert explained.avoidable() is None
    assert [e.id[4:] for e in explained.critical_path] == ["s0/v0/mb0/F", "s0/v0/mb0/SEND_F", "s0/v0/mb1/F"]


def test_bug_explain_is_not_quadratic_in_stages() -> None:
    """2000 stages with two events took over a minute: every stage looked at every virtual stage again."""
    events = [
        {"id": "f", "stage": 0, "micro": 0, "kind": "F", "start": 0, "end": 1},
        {"id": "b", "stage": 0, "micro": 0, "kind": "B", "start": 1, "end": 2},
    ]
    schedule = event_list_from_document({"stages": 2000, "events": events}, "list").schedule
    begin = process_time()
    explained = explain(schedule)
    assert process_time() - begin < 5
    assert explained.by_cause()[Cause.FILL] == 1999 * 2
