"""JaxPP's, sail's and Megatron's forms: what they hold, and what their readers refuse."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from zbopt.formats.jaxpp import from_jaxpp, to_jaxpp
from zbopt.formats.megatron_layout import layers_document, layers_from_document, read_layout, spread, write_layout
from zbopt.formats.order import order_of_schedule
from zbopt.formats.sail_zb import from_sail_zb, to_sail_zb
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Provenance, Schedule
from zbopt.timing import schedule_of_orders

LAYOUT = "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"
"""Of NVIDIA-NeMo/Megatron-Bridge#5391: 8 stages, 5 virtual stages each, 80 layers."""


def _instance(**fields: Any) -> Instance:
    return Instance.uniform(**({"stages": 3, "microbatches": 4} | fields))


def _whole(**fields: Any) -> Instance:
    return _instance(backward_ticks=None, weight_ticks=None, fused_backward_ticks=2, **fields)


def test_a_published_layout() -> None:
    """2 + 34*2 + 3 + 3*2 + 1 = 80 layers on 1 + 34 + 1 + 3 + 1 = 40 virtual stages, round 8 stages."""
    layers = read_layout(LAYOUT, 8)
    assert len(layers.by_virtual_stage) == 40
    assert sum(layers.decoder_layers) == 80
    assert (layers.by_virtual_stage[0], layers.by_virtual_stage[35], layers.by_virtual_stage[39]) == (
        "Ett",
        "ttt",
        "tL",
    )
    assert layers.stage_of[:10] == (0, 1, 2, 3, 4, 5, 6, 7, 0, 1)
    assert write_layout(layers) == "Et*2|(t*2|)*34t*3|(t*2|)*3tL"
    assert read_layout(write_layout(layers), 8) == layers


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("Et|tL", ("Et", "tL")),
        ("E|(t|)*3,m|L", ("E", "t", "t", "t", "m", "L")),
        ("E,t*3|(tt)*2|,tmL", ("Ettt", "tttt", "tmL")),
        ("Et|*2tL", ("Et", "", "tL")),
        ("EttL", ("EttL",)),
    ],
)
def test_layout_grammar(text: str, rows: tuple[str, ...]) -> None:
    """By the rules of Megatron-LM's parser: commas mean nothing, ``*`` repeats a group or the character before it."""
    layers = read_layout(text, 1)
    assert layers.by_virtual_stage == rows
    assert read_layout(write_layout(layers), 1) == layers
    assert layers_from_document(json.loads(json.dumps(layers_document(layers)))) == layers


@pytest.mark.parametrize(
    ("text", "stages", "said"),
    [
        ("Et|xL", 2, "character 3 of the layout, 'xL'"),
        ("Et|((t|)*2)*2L", 2, "groups do not nest"),
        ("Et|(t)L", 2, "character 3 of the layout, '(t)L'"),
        ("Et|t*L", 2, "character 4 of the layout, '*L'"),
        ("Et|t*999999999L", 2, "give at most 1000000 layers"),
        ("t|tL", 2, "the layout has 0 embeddings; give one E, first on virtual stage 0"),
        ("Et|EtL", 2, "the layout has 2 embeddings"),
        ("tE|tL", 2, "give one E, first on virtual stage 0"),
        ("Et|Lt", 2, "give one L, last on the last virtual stage"),
        ("Em|tL", 2, "give every m after every t"),
        ("Et|t|tL", 2, "the layout has 3 virtual stages, 2 stages do not divide them"),
        ("", 1, "the layout has 0 embeddings"),
    ],
)
def test_layouts_that_megatron_would_not_build(text: str, stages: int, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_layout(text, stages)


def test_thirty_layers_on_four_stages_are_not_guessed() -> None:
    """NVIDIA/Megatron-LM#1304 built 28 of them; 30 = 8 + 8 + 7 + 7."""
    with pytest.raises(ValueError, match=r"30 layers do not divide over 4 virtual stages; .* --layers 8,8,7,7"):
        spread([30], (0, 1, 2, 3))
    assert write_layout(spread([8, 8, 7, 7], (0, 1, 2, 3))) == "Et*8|t*8|t*7|t*7L"
    assert write_layout(spread([8], (0, 1, 0, 1))) == "Et*2|(t*2|)*2t*2L"
    with pytest.raises(ValueError, match="3 numbers of layers for 4 virtual stages; give 1 or 4"):
        spread([8, 8, 14], (0, 1, 2, 3))


def test_a_layout_goes_round_the_stages() -> None:
    with pytest.raises(ValueError, match="these virtual stages do not; take a linear or interleaved placement"):
        write_layout(spread([1, 1, 1, 1], (0, 1, 1, 0)))


def test_jaxpp_tasks_by_hand() -> None:
    """One stage, one microbatch: F, then the whole backward, or its two parts."""
    whole = json.loads(to_jaxpp(HEURISTICS["1f1b"](_whole(stages=1, microbatches=1))))
    assert whole["tasks"] == [[["FWD", 0, 0], ["BWD", 0, 0]]]
    assert not whole["is_partial_bwd"]
    split = json.loads(to_jaxpp(HEURISTICS["zb-h1"](_instance(stages=1, microbatches=1))))
    assert split["tasks"] == [[["FWD", 0, 0], ["BWD_I", 0, 0], ["BWD_W", 0, 0]]]
    assert split["is_partial_bwd"]
    assert (split["num_stages"], split["num_mubatches"], split["mpmd_idx"]) == (1, 1, [0])


def test_jaxpp_refuses_a_late_w_of_the_first_stage() -> None:
    """jaxpp/schedules.py:671 raises NotImplementedError where a stage-0 BWD_I is not followed by its BWD_W."""
    instance = _instance(stages=1, microbatches=2)
    row = [(kind, 0, j) for kind in (Kind.F, Kind.B, Kind.W) for j in (0, 1)]
    late = schedule_of_orders(instance, [row], Provenance(source="hand"))
    with pytest.raises(
        ValueError, match=r"it0/s0/v0/mb\d/B: JaxPP computes B and W of the first virtual stage together"
    ):
        to_jaxpp(late)


def test_jaxpp_takes_a_first_stage_without_b() -> None:
    """Its W is the whole backward: written as the two tasks that JaxPP joins, and read back as W alone."""
    first = {"backward_ticks": (None, 1, 1), "weight_ticks": (2, 1, 1)}
    instance = Instance.model_validate({"stages": 3, "microbatches": 4, "forward_ticks": 1} | first)
    schedule = HEURISTICS["list"](instance)
    assert from_jaxpp(json.loads(to_jaxpp(schedule)), instance) == order_of_schedule(schedule)


def _changed(text: str, **changes: Any) -> Any:
    return json.loads(text) | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "x"}, "not a JaxPP task table; its schema is not 'zbopt.jaxpp/1'"),
        ({"tasks": 3}, "tasks is no list of rows"),
        ({"tasks": [[["FWD", 0]]]}, 'row 0, task 0 (["FWD", 0]) is no task'),
        ({"tasks": [[[["FWD"], 0, 0]]]}, 'row 0, task 0 ([["FWD"], 0, 0]) is no task'),
        ({"tasks": [[["FWD", 0, -1]]]}, "row 0, task 0"),
        ({"tasks": [[["FWD", 0, 0], ["FWD", 0, 0], ["BWD", 0, 0]]]}, "is there twice"),
        ({"num_mubatches": 7}, "num_mubatches does not fit the tasks, which make it 1"),
        ({"mpmd_idx": [1]}, "mpmd_idx does not fit the tasks, which make it [0]"),
    ],
)
def test_jaxpp_tables_that_say_nothing_or_two_things(changes: dict[str, Any], said: str) -> None:
    text = to_jaxpp(HEURISTICS["1f1b"](_whole(stages=1, microbatches=1)))
    with pytest.raises(ValueError, match=re.escape(said)):
        from_jaxpp(_changed(text, **changes))


def test_sail_nodes_by_hand() -> None:
    """V on two stages: virtual stage 3 is the second slice of stage 0, chunk 1, and runs last of the forwards."""
    schedule = HEURISTICS["list"](_instance(stages=2, microbatches=1, placement="v", virtual=2))
    document = json.loads(to_sail_zb(schedule))
    assert (document["n_stages"], document["n_micro"], document["max_chunks"]) == (2, 1, 2)
    node = next(n for n in document["rows"][0] if n["layer_group_idx"] == 3 and n["type"] == "F")
    assert node == {
        "type": "F",
        "stage": 0,
        "microbatch": 0,
        "chunk": 1,
        "layer_group_idx": 3,
        "start_time": 3,
        "completion_time": 4,
    }


def _without_order(schedule: Schedule, kind: Kind) -> Schedule:
    """Return the schedule with two ops of a kind on stage 0 in each other's place."""
    first, second = [e for e in schedule.by_stage()[0] if e.kind is kind][:2]
    swap = {first.id: second.microbatch, second.id: first.microbatch}
    events = tuple(
        e.__class__(e.kind, e.stage, e.virtual_stage, swap[e.id], e.start, e.end) if e.id in swap else e
        for e in schedule.events
    )
    return schedule.model_copy(update={"events": events})


@pytest.mark.parametrize("kind", [Kind.B, Kind.W])
def test_sail_takes_the_oldest_whatever_the_node_says(kind: Kind) -> None:
    with pytest.raises(ValueError, match=r"it0/s0/v0/mb1/.: the sail-zb runtime runs B and W .* in the order of its F"):
        to_sail_zb(_without_order(HEURISTICS["zb-h1"](_instance()), kind))


def test_sail_sends_to_neighbours_only() -> None:
    far = Instance.model_validate(
        {"stages": 4, "microbatches": 1, "stage_of": (0, 2, 1, 3), "forward_ticks": 1, "fused_backward_ticks": 2}
    )
    with pytest.raises(ValueError, match=r"neighbours only \(virtual stage 1 is 2 stages from the one before\)"):
        to_sail_zb(HEURISTICS["list"](far))


def test_sail_splits_a_microbatch_everywhere_or_nowhere() -> None:
    """graph.py:153 looks for a B before a B and a BW before a BW."""
    schedule = HEURISTICS["1f1b-split"](_instance(stages=2, microbatches=1, fused_backward_ticks=2))
    mixed = tuple(
        e.__class__(Kind.BW, e.stage, e.virtual_stage, e.microbatch, e.start, e.end + 1) if e.kind is Kind.B else e
        for e in schedule.events
        if e.stage == 1 and e.kind is not Kind.W
    )
    both = (*mixed, *(e for e in schedule.events if e.stage == 0))
    with pytest.raises(ValueError, match="splits the backward of a microbatch everywhere or nowhere"):
        to_sail_zb(schedule.model_copy(update={"events": both}))


def test_sail_runs_a_b_on_the_first_stage() -> None:
    instance = Instance.model_validate(
        {"stages": 2, "microbatches": 1, "forward_ticks": 1, "backward_ticks": (None, 1), "weight_ticks": 1}
    )
    with pytest.raises(ValueError, match=r"backward_ticks\[0\] is null: the sail-zb runtime runs a B"):
        to_sail_zb(HEURISTICS["list"](instance))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "x"}, "not a sail-zb task table"),
        ({"rows": {}}, "rows is no list of rows"),
        ({"rows": [[{"type": "R"}]]}, "row 0, node 0: its type is none of F, B, W, BW"),
        ({"rows": [[{"type": ["F"]}]]}, "row 0, node 0: its type is none of F, B, W, BW"),
        ({"rows": [[{"type": "F", "stage": 0, "microbatch": 0}]]}, "layer_group_idx is no number from 0"),
        ({"rows": [[{"type": "F", "stage": 1, "microbatch": 0, "layer_group_idx": 0}]]}, "stage 1 stands in row 0"),
        ({"n_micro": 9}, "n_micro does not fit the nodes, which make it 4"),
    ],
)
def test_sail_tables_that_say_nothing_or_two_things(changes: dict[str, Any], said: str) -> None:
    text = to_sail_zb(HEURISTICS["1f1b"](_whole()))
    with pytest.raises(ValueError, match=re.escape(said)):
        from_sail_zb(_changed(text, **changes))
