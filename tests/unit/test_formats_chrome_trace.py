"""Traces: what a viewer gets, and what comes back."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from zbopt.analysis.metrics import memory_curve
from zbopt.formats.chrome_trace import from_chrome_trace, is_ours, to_chrome_trace
from zbopt.formats.profiler import from_profiler
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule


def _trace(schedule: Schedule) -> dict[str, Any]:
    curves = [memory_curve(schedule.instance, row) for row in schedule.by_stage()]
    document: dict[str, Any] = json.loads(to_chrome_trace(schedule, curves))
    return document


def _schedule(**fields: Any) -> Schedule:
    return HEURISTICS["zb-h1"](Instance.uniform(**({"stages": 2, "microbatches": 1, "comm_ticks": 3} | fields)))


def _entries(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["ph"] == phase]


def test_tracks_arrows_and_counters_by_hand() -> None:
    """2 stages, 1 microbatch, F=B=W=1, transfer 3: 6 ops, 2 transfers of 3 us, a process a stage.

    F0 runs [0, 1) and [4, 5), so its activation is on its way in [1, 4); the arrow starts in F0's last thousandth. An
    activation is live from the start of F to the end of W: 0 to 11 on stage 0, 4 to 7 on stage 1.
    """
    document = _trace(_schedule())
    names = {(e["pid"], e["args"]["name"]) for e in _entries(document, "M") if "name" in e["args"]}
    assert names == {
        (0, "stage 0"), (0, "compute"), (0, "to stage 1"), (1, "stage 1"), (1, "compute"), (1, "to stage 0"),
    }  # fmt: skip
    slices = _entries(document, "X")
    assert sorted(e["name"] for e in slices if e["tid"] == 0) == ["B0", "B0", "F0", "F0", "W0", "W0"]
    links = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in slices if e["tid"]]
    assert sorted(links) == [(0, 2, "activation 0", 1, 3), (1, 1, "gradient 0", 6, 3)]
    starts = {e["id"]: (e["pid"], e["ts"]) for e in _entries(document, "s")}
    ends = {e["id"]: (e["pid"], e["ts"]) for e in _entries(document, "f")}
    assert sorted((starts[i], ends[i]) for i in starts) == [((0, 0.999), (1, 4)), ((1, 5.999), (0, 9))]
    live = [(e["pid"], e["ts"], e["args"]["live"]) for e in _entries(document, "C")]
    assert live == [(0, 0, 1), (0, 11, 0), (1, 4, 1), (1, 7, 0)]


def test_times_are_in_microseconds() -> None:
    """The format's unit: a tick of 10 us counts 10, one of 5 ns 0.005."""
    for tick, us in (("10us", 10), ("5ns", 0.005), ("2ms", 2000), ("1s", 10**6), ("unit", 1)):
        schedule = _schedule()
        instance = schedule.instance.model_copy(update={"tick": tick})
        op = _entries(_trace(schedule.model_copy(update={"instance": instance})), "X")[0]
        assert op["dur"] == us


@pytest.mark.parametrize("placement", ["linear", "interleaved", "v"])
def test_our_own_traces_come_back_whole(placement: str) -> None:
    """Instance, provenance and every event, with a cap, a barrier and an exact fraction in it."""
    instance = Instance.uniform(
        stages=2, microbatches=3, placement=placement, virtual=1 if placement == "linear" else 2, comm_ticks=1,
        memory_cap=4, weight_share=Fraction(1, 3), barrier="global",
    )  # fmt: skip
    schedule = HEURISTICS["list"](instance)
    document = _trace(schedule)
    assert is_ours(document)
    assert from_chrome_trace(document, "x.json") == schedule


def test_a_trace_of_ours_that_was_changed() -> None:
    document = _trace(_schedule())
    document["zbopt"]["schema"] = "zbopt.chrome-trace/9"
    with pytest.raises(ValueError, match=r"x.json: zbopt.schema is not 'zbopt.chrome-trace/1'; export the trace again"):
        from_chrome_trace(document, "x.json")
    document = _trace(_schedule())
    next(e for e in document["traceEvents"] if e["ph"] == "X")["args"]["start"] = "soon"
    with pytest.raises(ValueError, match=r"x.json: events\[0\].start = 'soon'"):
        from_chrome_trace(document, "x.json")


def _range(name: str, start: float, duration: float, pid: object = 1, cat: str = "user_annotation") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": f"PP:{name}", "pid": pid, "tid": 1, "ts": start, "dur": duration}


def _two_ranks(shift: float = 0.0) -> dict[str, object]:
    """Write two ranks, one file each, one microbatch, with other entries beside the ranges."""
    first = [_range("0SEND_F0", 1010 + shift, 1), _range("0F0", 1000 + shift, 10), _range("0B0", 1050 + shift, 20)]
    second = [_range("1RECV_F0", 1005 + shift, 9), _range("1F0", 1015 + shift, 11), _range("1I0", 1026 + shift, 12.5)]
    second += [_range("1W0", 1040 + shift, 9), {"ph": "M", "name": "process_name", "pid": 1}]
    return {"rank0.json": {"traceEvents": first}, "rank1.json": {"traceEvents": second}}


def test_torch_profilers_names() -> None:
    """Times in us become ns from the first start; I is our B, B our BW; transfers are not ops."""
    schedule = from_profiler(_two_ranks()).schedule
    found = {e.id: (e.start, e.end) for e in schedule.events}
    assert found == {
        "it0/s0/v0/mb0/F": (0, 10_000),
        "it0/s0/v0/mb0/BW": (50_000, 70_000),
        "it0/s1/v1/mb0/F": (15_000, 26_000),
        "it0/s1/v1/mb0/B": (26_000, 38_500),
        "it0/s1/v1/mb0/W": (40_000, 49_000),
    }
    assert schedule.instance.tick == "1ns"
    assert schedule.instance.forward_ticks == (10_000, 11_000)


def test_ranks_in_one_file_and_out_of_order() -> None:
    """A process is a rank; ranks come in the order of their virtual stages, whatever their numbers."""
    files = _two_ranks()
    entries = [
        e | {"pid": pid} for pid, d in ((9, files["rank0.json"]), (3, files["rank1.json"])) for e in d["traceEvents"]
    ]  # type: ignore[index]
    assert from_profiler({"all.json": entries}).schedule == from_profiler(files).schedule
    turned = dict(reversed(files.items()))
    assert from_profiler(turned).schedule == from_profiler(files).schedule


def test_the_last_step_of_several_is_read() -> None:
    """The second step is 500 us later and, but for that, the same: its first start is tick 0 too."""
    first, second = _two_ranks(), _two_ranks(500.0)
    both = {name: {"traceEvents": first[name]["traceEvents"] + second[name]["traceEvents"]} for name in first}  # type: ignore[index]
    both["rank0.json"]["traceEvents"][1]["dur"] = 3
    assert from_profiler(both).schedule == from_profiler(second).schedule


def test_what_the_gpu_ran_counts_before_what_the_host_asked() -> None:
    files = {name: {"traceEvents": [*d["traceEvents"]]} for name, d in _two_ranks().items()}  # type: ignore[index]
    for d in files.values():
        gpu = [e | {"cat": "gpu_user_annotation", "pid": 0, "ts": e["ts"] + 100} for e in d["traceEvents"] if "ts" in e]
        d["traceEvents"] += gpu
        for e in d["traceEvents"]:
            if e.get("cat") == "user_annotation":
                e["dur"] = 1
    assert from_profiler(files).schedule == from_profiler(_two_ranks()).schedule


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "x.json: holds no list of traceEvents"),
        ([], "x.json: no range is named PP:0F0 or alike"),
        ([_range("0F0x", 0, 1)], "x.json: traceEvents[0] (PP:0F0x): '0F0x' is no action"),
        ([_range("0F0", -1, 1)], "x.json: traceEvents[0] (PP:0F0): ts is no time in microseconds"),
        ([_range("0F0", 0, 1)], "row 0: the backward of microbatch 0 on virtual stage 0 is missing"),
        ([_range("0F0", 0, 1), _range("0B0", 10**12, 1)], "the clocks of the ranks differ; align them before"),
        ([_range("0B0", 0, 1), _range("0F0", 10, 1)], "x.json: traceEvents[0] (PP:0B0) can never start"),
    ],
)
def test_traces_that_hold_no_step(document: object, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        from_profiler({"x.json": document})


def test_kinds_have_colours_for_the_viewers() -> None:
    """Every kind of op gets a colour of the viewers' palette, and its own."""
    schedule = HEURISTICS["list"](Instance.uniform(stages=1, microbatches=1, barrier="global"))
    colours = {e["cat"]: e["cname"] for e in _entries(_trace(schedule), "X")}
    assert set(colours) == {Kind.F, Kind.B, Kind.W, Kind.O}
    assert len(set(colours.values())) == 4


@pytest.mark.parametrize("args", [True, 3, [], None])
def test_bug_arguments_that_are_no_object(args: object) -> None:
    """It was a fault of ours (TypeError); now the entry is named. An entry whose category is a list is no op."""
    document = json.loads(to_chrome_trace(TRANSFERS, ()))
    at = next(i for i, entry in enumerate(document["traceEvents"]) if entry.get("cat") == "F")
    document["traceEvents"][at]["args"] = args
    with pytest.raises(ValueError, match=rf"x: traceEvents\[{at}\]\.args is no object; export the trace again"):
        from_chrome_trace(document, "x")
    document["traceEvents"][at]["cat"] = ["F"]
    assert len(from_chrome_trace(document, "x").events) == len(TRANSFERS.events) - 1


TRANSFERS = HEURISTICS["list"](
    Instance.uniform(stages=4, microbatches=6, placement="v", virtual=2, comm_ticks=1, memory_cap=4)
)


@pytest.mark.parametrize("tick", ["unit", "1us", "25ns"])
def test_the_rules_of_the_trace_event_format(tick: str) -> None:
    """The trace keeps the rules that viewers need: slices of a track nest, times are not negative, every flow one start
    and one later end, each inside a slice of its track, counters are numbers, and every track has a name.
    """
    schedule = TRANSFERS.model_copy(update={"instance": TRANSFERS.instance.model_copy(update={"tick": tick})})
    curves = [memory_curve(schedule.instance, row) for row in schedule.by_stage()]
    entries = json.loads(to_chrome_trace(schedule, curves))["traceEvents"]
    assert {entry["ph"] for entry in entries} == {"M", "X", "s", "f", "C"}
    named = {(e["pid"], e["tid"]) for e in entries if e["name"] == "thread_name"}
    slices = defaultdict(list)
    for entry in (e for e in entries if e["ph"] == "X"):
        assert entry["ts"] >= 0
        assert entry["dur"] > 0
        slices[entry["pid"], entry["tid"]].append((entry["ts"], entry["ts"] + entry["dur"]))
    assert slices.keys() == named
    near = 1e-6  # floats of fractions of a microsecond
    for track in slices.values():
        track.sort()
        assert all(end <= start + near for (_, end), (start, _) in pairwise(track))
    flows = defaultdict(list)
    for entry in (e for e in entries if e["ph"] in "sf"):
        flows[entry["cat"], entry["name"], entry["id"]].append(entry)
        inside = slices[entry["pid"], entry["tid"]]
        assert any(start <= entry["ts"] < end for start, end in inside)
    assert all([e["ph"] for e in pair] == ["s", "f"] and pair[0]["ts"] <= pair[1]["ts"] for pair in flows.values())
    assert all(pair[1]["bp"] == "e" for pair in flows.values())
    assert len(flows) == 2 * 6 * (8 - 1 - 1)  # both ways, but for the turn of the V, which stays on a stage
    counters = [e for e in entries if e["ph"] == "C"]
    assert {e["pid"] for e in counters} == set(range(4))
    assert all(isinstance(value, int | float) and value >= 0 for e in counters for value in e["args"].values())
