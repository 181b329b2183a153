"""PyTorch's tables: what is read, what is refused, with row and cell."""

from __future__ import annotations

import re

import pytest

from zbopt.analysis.metrics import figures
from zbopt.formats.order import order_of_schedule
from zbopt.formats.torch_csv import compute_only, order_from_csv, rows_text
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Provenance, Schedule
from zbopt.replay.lowering import lower
from zbopt.timing import schedule_of_orders
from zbopt.validator import validate

RECV_ORDER = (
    "0F0 0SEND_F0 2RECV_F0 0F1 0SEND_F1 2RECV_F1 2F0 2SEND_F0 2F1 2SEND_F1 2RECV_B0 2B0 2SEND_B0 2RECV_B1 2B1 2SEND_B1 "
    "0RECV_B0 0B0 0RECV_B1 0B1",
    "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3B0 3SEND_B0 1RECV_B0 3F1 3B1 3SEND_B1 1RECV_B1 "
    "1B0 1SEND_B0 1B1 1SEND_B1",
)
"""The lists that pytorch/pytorch#172668 prints: Interleaved1F1B, 2 ranks, 2 microbatches, with transfers."""


def table(*rows: str) -> str:
    """Return rows of cells, with blanks between them, as a table."""
    return "".join(",".join(row.split()) + "\n" for row in rows)


def _torchtitan() -> str:
    """Return the order of torchtitan's tests/assets/custom_schedule.csv (b5bcd76): 2 ranks, 4 virtual stages, 8 micros.

    All F of both slices, then pairs of microbatches, the later slice first: I and W of each.
    """
    rows = []
    for rank in (0, 1):
        cells = [f"{v}F{j}" for v in (rank, rank + 2) for j in range(8)]
        for pair in range(0, 8, 2):
            cells += [f"{v}{op}{j}" for v in (rank + 2, rank) for j in (pair, pair + 1) for op in "IW"]
        rows.append(" ".join(cells))
    return table(*rows)


def _timed(text: str, **fields: object) -> Schedule:
    order = order_from_csv(text)
    placed = {"stages": len(order.rows), "microbatches": order.microbatches, "stage_of": order.stage_of}
    instance = Instance.model_validate(placed | fields) if fields else order.unit_instance()
    return schedule_of_orders(instance, order.rows, Provenance(source="test"))


def test_the_lists_of_a_public_issue_with_transfers() -> None:
    """F 1 and BW 2 ticks, receives that do not block: 15 ticks, by list simulation."""
    schedule = _timed(table(*RECV_ORDER), forward_ticks=1, fused_backward_ticks=2)
    assert schedule.instance.stage_of == (0, 1, 0, 1)
    assert figures(schedule).makespan == 15
    assert validate(schedule.instance, schedule).valid


def test_torchtitans_own_table() -> None:
    """F = I = W = 1: 48 actions a rank in 50 ticks, 2 idle ticks each, by list simulation."""
    known = figures(_timed(_torchtitan()))
    assert known.makespan == 50
    assert [known.makespan - busy for busy in known.busy_ticks] == [2, 2]


def test_letters_are_translated_both_ways() -> None:
    """PyTorch's I is our B, its B our BW; spaces around a cell and empty cells mean nothing (pytorch PR#142009)."""
    order = order_from_csv(" 0F0 ,,0I0,0W0\n")
    assert order.rows == (((Kind.F, 0, 0), (Kind.B, 0, 0), (Kind.W, 0, 0)),)
    assert order_from_csv("0F0,0B0\n").rows == (((Kind.F, 0, 0), (Kind.BW, 0, 0)),)
    assert order_from_csv("0F0,0B0\n", Instance.uniform(stages=1, microbatches=1)).rows == order.rows


def test_an_overlap_cell_is_its_parts_in_turn() -> None:
    """DualPipeV's tables join a forward and a backward in one cell, which PyTorch runs one after the other."""
    order = order_from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n")
    assert [kind for kind, _, _ in order.rows[0]] == [Kind.F, Kind.F, Kind.BW, Kind.BW]


def test_1f1b_ends_in_the_rows_that_everyone_knows() -> None:
    """2 stages, 2 microbatches, by hand."""
    instance = Instance.uniform(
        stages=2, microbatches=2, backward_ticks=None, weight_ticks=None, fused_backward_ticks=2
    )
    rows = lower(HEURISTICS["1f1b"](instance))
    assert rows_text(compute_only(rows)) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "list"])
def test_transfers_come_back_without_a_trace(name: str) -> None:
    """Both forms of a table hold the same order."""
    schedule = HEURISTICS[name](Instance.uniform(stages=3, microbatches=5, comm_ticks=1))
    rows = lower(schedule)
    for text in (rows_text(rows), rows_text(compute_only(rows))):
        assert order_from_csv(text, schedule.instance) == order_of_schedule(schedule)


ONE = "0F0 0B0"
TWO = ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (("0F0xyz 0B0",), r"row 0, cell 0: '0F0xyz' is no action"),
        (("0F0 0X0",), r"row 0, cell 1: '0X0' is no action"),
        (("0F0 0b0",), r"row 0, cell 1: '0b0' is no action"),
        (("0F0 0B",), r"row 0, cell 1: '0B': B takes a microbatch"),
        (("0F0 0F0 0B0",), r"row 0, cell 1 \(0F0\) is there twice, first as row 0, cell 0"),
        (("0F0 0B0 0W0",), r"row 0, cell 2 \(0W0\): the backward of microbatch 0 .* is there already"),
        (("0F0 0I0",), r"row 0: the backward of microbatch 0 on virtual stage 0 is missing or not whole"),
        (("0F0 0W0 0I0",), r"row 0, cell 1 \(0W0\) can never start: it needs B of .* comes after it"),
        (("0F1 0F2 0B1 0B2",), r"row 0: the F of microbatch 0 on virtual stage 0 is missing"),
        (("0F0 0B0 0F2 0B2",), r"row 0: the F of microbatch 1 on virtual stage 0 is missing"),
        (("0F0 1F0 0B0", "1B0"), r"row 1, cell 0 \(1B0\): virtual stage 1 is on row 0 already \(row 0, cell 1"),
        (("0F0 0B0", "2F0 2B0"), r"virtual stage 1 is on no row, though row 1, cell 0 \(2F0\) names 2"),
        (("0F0 0B0", ""), r"row 1 has no op; give one row a stage"),
        (("0B0 0F0", "1F0 1B0"), r"row 0, cell 0 \(0B0\) can never start: it needs F of microbatch 0"),
        (("0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1", "2F0 2F1 2B1 2B0"), r"row 1, cell 1 \(1B0\) can never start"),
        (("0F0 3RESHARD 0B0",), r"row 0, cell 1 \(3RESHARD\): virtual stages 0 to 0 have ops"),
        (("0F0 1RESHARD 0B0", "1F0 1B0"), r"row 0, cell 1 \(1RESHARD\): virtual stage 1 is on row 1"),
        (("0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD",), r"row 0, cell 3 \(0REDUCE_GRAD\) is there twice"),
    ],
)
def test_lax_input_is_refused(rows: tuple[str, ...], said: str) -> None:
    """The first seven and more pass PyTorch 2.13's own loader, or die in it without a name."""
    with pytest.raises(ValueError, match=said) as refused:
        order_from_csv(table(*rows))
    assert "\n" not in str(refused.value)
    assert ";" in str(refused.value), "no way out named"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (("0F0 0B0",), "1 rows for 2 stages; give one row a stage"),
        ((*TWO, "2F0 2B0"), "3 rows for 2 stages"),
        (("0F0 0F1 0F2 0B0 0B1 0B2", TWO[1]), r"row 0, cell 2 (0F2): the instance has microbatches 0 to 1"),
        ((TWO[1], TWO[0]), r"row 0, cell 0 (1F0): virtual stage 1 is on row 0, the instance holds it on stage 1"),
        (("0F0 0B0", "1F0 1B0"), "row 0: the F of microbatch 1 on virtual stage 0 is missing"),
        ((TWO[0] + " 2F0", TWO[1]), "row 0, cell 4 (2F0): the instance has virtual stages 0 to 1"),
    ],
)
def test_what_the_instance_has_otherwise(rows: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        order_from_csv(table(*rows), Instance.uniform(stages=2, microbatches=2))


def test_an_instance_that_never_splits_refuses_a_split() -> None:
    fused = Instance.uniform(stages=1, microbatches=1, backward_ticks=None, weight_ticks=None, fused_backward_ticks=2)
    with pytest.raises(ValueError, match=r"row 0, cell 1 \(0I0\): the backward is split, the instance never splits it"):
        order_from_csv("0F0,0I0,0W0\n", fused)


SENDS = ("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((SENDS[0].replace("0SEND_F0", ""), SENDS[1]), "row 1, cell 0 (1RECV_F0) has no other end; add 0SEND_F0"),
        ((SENDS[0].replace("0RECV_B0", ""), SENDS[1]), "row 1, cell 3 (1SEND_B0) has no other end; add 0RECV_B0"),
        ((SENDS[0], "1F0 1RECV_F0 1B0 1SEND_B0"), "row 1, cell 0 (1F0) can never start: 1RECV_F0 does not come before"),
        (("0SEND_F0 0F0 0RECV_B0 0B0", SENDS[1]), "row 0, cell 0 (0SEND_F0) can never start: 0F0 does not"),
        ((SENDS[0] + " 0SEND_B0", SENDS[1]), "row 0, cell 4 (0SEND_B0): there is no virtual stage -1; drop it"),
        ((SENDS[0] + " 0SEND_F0", SENDS[1]), "row 0, cell 4 (0SEND_F0) is there twice, first as row 0, cell 1"),
        (
            ("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
             "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"),
            "row 0, cell 3 (0SEND_F1) stands where row 1, cell 3 (1SEND_B0) does on the other rank",
        ),
    ],
)  # fmt: skip
def test_transfers_that_never_end_are_refused(rows: tuple[str, str], said: str) -> None:
    """The last is the head-to-head send of pytorch/pytorch#172668, which hangs where a pair of ranks has one queue."""
    with pytest.raises(ValueError, match=re.escape(said)):
        order_from_csv(table(*rows))


def test_a_transfer_on_one_rank_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row 0, cell 1 \(0SEND_F0\): virtual stage 1 is on the same row"):
        order_from_csv(table("0F0 0SEND_F0 1F0 1B0 0B0"))


def test_not_a_table() -> None:
    with pytest.raises(ValueError, match="not a table of comma-separated cells"):
        order_from_csv('0F0,"0B0\n')


@pytest.mark.parametrize("cell", ["(0F1)OVERLAP_F_B", "(0F1;0F0)OVERLAP_F_B", "(0F1;0B0;0W0)OVERLAP_F_B"])
def test_bug_overlap_of_anything(cell: str) -> None:
    """Any ops in the brackets were taken, but PyTorch's OVERLAP_F_B is one forward and one backward."""
    with pytest.raises(ValueError, match=r"row 0, cell 1: OVERLAP_F_B takes a forward and a backward; write such as"):
        order_from_csv(f"0F0,{cell},0B0,0B1\n")
