"""Lanes beside compute, in all pictures: transfers, offloads, reductions and collectives."""

import json
import re
from collections import Counter
from fractions import Fraction
from typing import Any

from matplotlib.figure import Figure

from zbopt.analysis.idle import explain
from zbopt.analysis.lanes import Lane, kinds_of, lanes_of
from zbopt.analysis.metrics import figures, memory_curve
from zbopt.formats.chrome_trace import from_chrome_trace, to_chrome_trace
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance, Kind, ReductionOccupies
from zbopt.problem.schedule import Event, Provenance, Schedule
from zbopt.reports.chart_data import KINDS, chart_data
from zbopt.reports.figure import draw
from zbopt.reports.gantt import gantt
from zbopt.reports.svg import gantt_svg
from zbopt.reports.web import Entry, web_page
from zbopt.validator import validate


def _timed(fields: dict[str, Any], *events: tuple[str, int, int | None, int, int]) -> Schedule:
    """Build a schedule from events (kind, stage, microbatch, start, end) of 2 stages whose ops take 2."""
    times = {"forward_ticks": 2, "backward_ticks": 2, "weight_ticks": 2}
    instance = Instance.model_validate({"stages": 2, "microbatches": 1} | times | fields)
    made = [Event(Kind(kind), s, s, j, start, end) for kind, s, j, start, end in events]
    return Schedule(instance=instance, provenance=Provenance(source="hand"), events=tuple(made))


OPS = (
    ("F", 0, 0, 0, 2),
    ("F", 1, 0, 3, 5),
    ("B", 1, 0, 5, 7),
    ("W", 1, 0, 7, 9),
    ("B", 0, 0, 8, 10),
    ("W", 0, 0, 10, 12),
)
SENDS = (("SEND_F", 0, 0, 2, 3), ("SEND_B", 1, 0, 7, 8))
HOST = (("OUT", 0, 0, 2, 4), ("IN", 0, 0, 5, 7))
REDUCED = (("G", 0, None, 12, 15), ("G", 1, None, 9, 12))
LINKS = _timed(
    {"comm_ticks": 1, "communication": "link", "offload": ["always", "never"], "offload_ticks": 2,
     "reduction_ticks": 3},
    *OPS, *SENDS, *HOST, *REDUCED,
)  # fmt: skip
"""By hand: F0 hands on in [2, 3), goes to the host in [2, 4) and comes back in [5, 7); the last G ends at 15."""
PORTS = _timed(
    {"comm_ticks": 1, "communication": "link", "transfer_occupies": "port", "reduction_ticks": 3,
     "reduction_occupies": "port", "collectives": [{"kind": "W", "start": 1, "ticks": 1}]},
    *OPS, *SENDS, *REDUCED,
)  # fmt: skip
"""The instance above on ports, with a window in the second tick of each W."""


def _shown(rows: tuple[Lane, ...]) -> list[tuple[str, list[str]]]:
    return [(row.label, [f"{e.kind.value} {e.start}-{e.end}" for e in row.events]) for row in rows]


def test_the_schedules_are_valid() -> None:
    """The schedules that these tests draw are valid."""
    for schedule in (LINKS, PORTS):
        assert validate(schedule.instance, schedule).violations == ()


def test_plain_schedules_have_a_row_a_stage() -> None:
    """Lags, recomputation and optimizer steps need no row but the stage's own."""
    instance = Instance.uniform(stages=3, microbatches=4, comm_ticks=1, barrier="global")
    rows = lanes_of(HEURISTICS["1f1b"](instance))
    assert [row.label for row in rows] == ["stage 0", "stage 1", "stage 2"]


def test_rows_of_links_by_hand() -> None:
    """Below each stage the links from it, its host link and its reductions."""
    assert _shown(lanes_of(LINKS)) == [
        ("stage 0", ["F 0-2", "B 8-10", "W 10-12"]),
        ("  to 1", ["SEND_F 2-3"]),
        ("  host", ["OUT 2-4", "IN 5-7"]),
        ("  reduce", ["G 12-15"]),
        ("stage 1", ["F 3-5", "B 5-7", "W 7-9"]),
        ("  to 0", ["SEND_B 7-8"]),
        ("  reduce", ["G 9-12"]),
    ]


def test_rows_of_ports_by_hand() -> None:
    """A transfer holds both ports; a window inside W holds that of its stage, from 1 tick after W's start."""
    assert _shown(lanes_of(PORTS)) == [
        ("stage 0", ["F 0-2", "B 8-10", "W 10-12"]),
        ("  port", ["SEND_F 2-3", "SEND_B 7-8", "W 11-12", "G 12-15"]),
        ("stage 1", ["F 3-5", "B 5-7", "W 7-9"]),
        ("  port", ["SEND_F 2-3", "SEND_B 7-8", "W 8-9", "G 9-12"]),
    ]


def test_shared_links_carry_their_number() -> None:
    """Stages of one host link, or of one node's link for reductions, have the same name in their rows."""
    more = {"host_link": (4, 4), "reduction_occupies": ReductionOccupies.NODE, "stages_per_node": 2}
    shared = LINKS.model_copy(update={"instance": LINKS.instance.model_copy(update=more)})
    assert [row.resource for row in lanes_of(shared)] == [None, "to 1", "host 4", "reduce 0", None, "to 0", "reduce 0"]


def test_events_that_fit_nowhere_have_a_row() -> None:
    """A transfer past the end of the route is drawn too; one of a stage that does not exist is not."""
    wrong = _timed({"communication": "link"}, ("SEND_F", 1, 0, 2, 3), ("SEND_F", 9, 0, 2, 3))
    assert [(row.label, len(row.events)) for row in lanes_of(wrong)] == [("stage 0", 0), ("stage 1", 0), ("  send", 1)]


def test_terminal() -> None:
    """Drawn by hand at four columns a tick; the legend explains the signs and stays within the width."""
    drawn = [str(line) for line in gantt(LINKS, 80, coloured=False)]
    assert [line.rstrip() for line in drawn[:7]] == [
        "stage 0  F0------························B0------W0------············",
        "  to 1   ········f0--················································",
        "  host   ········>0------····<0------································",
        "  reduce ················································G-----------",
        "stage 1  ············F0------B0------W0------························",
        "  to 0   ····························b0--····························",
        "  reduce ····································G-----------············",
    ]
    legend = "\n".join(drawn[8:])
    assert " f activation on its way" in legend
    assert " > activation to the host   < activation from the host" in legend
    assert max(map(len, drawn)) <= 80


def test_picture_and_notebook_have_the_same_boxes() -> None:
    """Every event is a box: 6 ops, 2 transfers, OUT, IN, 2 G; on ports each transfer twice, and 2 windows."""
    for schedule, boxes in ((LINKS, 12), (PORTS, 14)):
        ax = draw(schedule, Figure(figsize=(7, 3)).add_subplot())
        paths = [path for collection in ax.collections for path in collection.get_paths()]
        assert len(paths) == boxes
        assert len(re.findall(r"<title>it0/", gantt_svg(schedule))) == boxes
        assert [label.get_text() for label in ax.get_yticklabels()] == [r.label.strip() for r in lanes_of(schedule)]
        assert ax.get_xlim() == (0, 15)


def test_page() -> None:
    """The page's rows, legend and times are the same; memory changes name OUT and IN themselves."""
    page = web_page([Entry(name="links", schedule=LINKS)])
    data = chart_data(explain(LINKS), figures(LINKS), 1)
    assert data["beside"] == [None, "to 1", "host", "reduce", None, "to 0", "reduce"]
    assert data["rows"] == [0, 3, 4, 6, 7, 10, 11]
    assert (data["from"], data["to"]) == (0, 15)
    assert ">OUT (&gt;) activation to the host</li>" in page
    taken = [KINDS[data["kind"][op]]["name"] for op in data["memory"]["stages"][0]["op"]]
    assert taken == ["F", "OUT", "IN", "W"]


def test_ports_on_the_page_name_the_stage_that_sends() -> None:
    """A transfer in the port of the stage that receives it is still the other one's."""
    data = chart_data(explain(PORTS), figures(PORTS), 1)
    kinds = [KINDS[kind]["name"] for kind in data["kind"]]
    assert [stage for stage, kind in zip(data["stage"], kinds, strict=True) if kind == "SEND_F"] == [0, 0]


def test_trace_has_a_track_a_row_and_reads_back() -> None:
    """Tracks by name; what is an event comes back, what only shows who holds a port does not come twice."""
    for schedule, tracks in (
        (LINKS, {(0, "compute"), (0, "to stage 1"), (0, "host"), (0, "reduce"), (1, "compute"), (1, "to stage 0"),
                 (1, "reduce")}),
        (PORTS, {(0, "compute"), (0, "port"), (1, "compute"), (1, "port")}),
    ):  # fmt: skip
        curves = [memory_curve(schedule.instance, row) for row in schedule.holders_by_stage()]
        document = json.loads(to_chrome_trace(schedule, curves))
        named = {(e["pid"], e["args"]["name"]) for e in document["traceEvents"] if e["name"] == "thread_name"}
        assert named == tracks
        assert Counter(from_chrome_trace(document, "x").events) == Counter(schedule.events)


def test_bug_lags_in_traces_had_one_length() -> None:
    """A transfer of 3 at 1 a tick takes 1 + 3 ticks; the trace drew the latency alone."""
    fields = {"comm_ticks": 1, "boundary": 3, "bandwidth": Fraction(1)}
    instance = Instance.model_validate({"stages": 2, "microbatches": 1, "forward_ticks": 2, "backward_ticks": 2,
                                        "weight_ticks": 2} | fields)  # fmt: skip
    document = json.loads(to_chrome_trace(HEURISTICS["1f1b-split"](instance), ()))
    assert [e["dur"] for e in document["traceEvents"] if e.get("cat") == "transfer" and e["ph"] == "X"] == [4, 4]


def test_every_kind_has_its_place_in_the_legend() -> None:
    """The legend has compute first, then what runs beside it."""
    assert kinds_of(lanes_of(LINKS)) == [Kind.F, Kind.B, Kind.W, Kind.G, Kind.SEND_F, Kind.SEND_B, Kind.OUT, Kind.IN]
