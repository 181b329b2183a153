"""``routes`` and ``microbatch_times``: what they mean, what files of them say, and what is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from zbopt.analysis.metrics import figures
from zbopt.bounds.relax import keep_stages
from zbopt.cli import run
from zbopt.formats.jaxpp import to_jaxpp
from zbopt.formats.minizinc import to_minizinc
from zbopt.formats.sail_zb import to_sail_zb
from zbopt.graph import expand
from zbopt.graph.memory import least_memory
from zbopt.heuristics import HEURISTICS
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Instance, Kind, read_instance, write_instance
from zbopt.problem.schedule import Event, Schedule
from zbopt.replay.checks import check_schedule
from zbopt.validator import Code, validate

TWO_WAY: dict[str, Any] = {
    "stages": 2,
    "microbatches": 3,
    "stage_of": [0, 1, 1, 0],
    "forward_ticks": 1,
    "backward_ticks": 1,
    "weight_ticks": 1,
    "routes": [{"virtual_stages": [0, 1], "microbatches": 2}, {"virtual_stages": [2, 3], "microbatches": 1}],
}


def two_way(**changes: Any) -> Instance:
    """Return two stages: microbatches 0 and 1 go down, 2 goes up, each direction on its own replica."""
    return Instance.model_validate(TWO_WAY | changes)


def test_routes_say_who_passes_what() -> None:
    """Virtual stages 0, 1 and 2, 3; an activation is all that a microbatch holds on a stage, so it counts 1."""
    instance = two_way()
    assert [instance.previous_of(v) for v in range(4)] == [None, 0, None, 2]
    assert [instance.next_of(v) for v in range(4)] == [1, None, 3, None]
    assert [list(instance.microbatches_of(v)) for v in range(4)] == [[0, 1], [0, 1], [2], [2]]
    assert instance.activation == (1, 1, 1, 1)
    assert least_memory(instance, 0) == 1
    assert instance.classes() == ((0, 1), (2,))
    assert not instance.is_linear


def test_bidirectional_is_two_replicas() -> None:
    """p = 3, m = 5: three microbatches go down, two up."""
    instance = Instance.uniform(stages=3, microbatches=5, placement="bidirectional", virtual=2)
    assert instance.stage_of == (0, 1, 2, 2, 1, 0)
    assert instance.routes is not None
    assert [(r.virtual_stages, r.microbatches) for r in instance.routes] == [((0, 1, 2), 3), ((3, 4, 5), 2)]


def test_own_times_are_filled_from_the_instance() -> None:
    """Microbatch 1 has a longer F; what it does not say is as the instance has it, R as long as its own F."""
    own = {"microbatches": [1], "forward_ticks": 3}
    instance = Instance(
        stages=2,
        microbatches=3,
        forward_ticks=1,
        backward_ticks=[None, 2],
        weight_ticks=2,
        recompute="always",
        microbatch_times=[own],
    )  # type: ignore[arg-type]
    assert tuple(instance.ticks_of(1, 1)) == (3, 2, 2, None, 3)
    assert tuple(instance.ticks_of(0, 0)) == (1, None, 2, None, 1)
    assert instance.classes() == ((0, 2), (1,))


def test_files_keep_them(tmp_path: Path) -> None:
    """A file that is written and read back has the same routes and times."""
    instance = two_way(microbatch_times=[{"microbatches": [0], "forward_ticks": [2, 3, 1, 1]}])
    write_instance(instance, tmp_path / "instance.json")
    assert read_instance(tmp_path / "instance.json") == instance


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"routes": [{"virtual_stages": [1, 0], "microbatches": 3}]},
         "routes[0] is not in forward order; number virtual stages so that each route's numbers increase"),
        ({"routes": [{"virtual_stages": [0, 4], "microbatches": 3}]},
         "routes: 4 is no virtual stage; virtual stages are 0 to 3"),
        ({"routes": [{"virtual_stages": [0, 1], "microbatches": 1}, {"virtual_stages": [1, 2, 3], "microbatches": 2}]},
         "routes: virtual stage 1 is on two routes; give each route replicas of its own"),
        ({"routes": [{"virtual_stages": [0, 1, 2], "microbatches": 3}]},
         "routes: virtual stage 3 is on no route; add it to one, or leave it out of stage_of"),
        ({"microbatches": 4}, "routes carry 3 microbatches in all, the step has 4; make the two equal"),
        ({"routes": [{"virtual_stages": [0, 1, 2, 3], "microbatches": 0}]},
         "routes[0].microbatches = 0: must be at least 1"),
        ({"backward_ticks": [1, None, 1, 1]},
         "backward_ticks[1] is null; only the first virtual stage may have no B, and then no BW"),
        ({"microbatch_times": [{"microbatches": [3], "forward_ticks": 1}]},
         "microbatch_times[0]: 3 is no microbatch; microbatches are 0 to 2"),
        ({"microbatch_times": [{"microbatches": [1, 1], "forward_ticks": 1}]},
         "microbatch_times[0]: microbatch 1 has times already; give each microbatch once"),
        ({"microbatch_times": [{"microbatches": [1], "forward_ticks": [1, 2]}]},
         "microbatch_times[0].forward_ticks has 2 values for 4 virtual stages; give 1 or 4"),
        ({"microbatch_times": [{"microbatches": [1], "fused_backward_ticks": 1}]},
         "microbatch_times[0].fused_backward_ticks has other ops than fused_backward_ticks; give times for the same "
         "ones"),
    ],
)  # fmt: skip
def test_refused(change: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line with the field, the value and the way out."""
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(TWO_WAY | change))
    assert run(["solve", str(path)]) == 2
    assert capsys.readouterr().err == f"zbopt: {path}: {message}\n"


def test_validator_knows_routes() -> None:
    """A valid schedule by hand; an op on another route's virtual stage; an F before the one before it on its route."""
    instance = two_way(microbatches=2, routes=[r | {"microbatches": 1} for r in TWO_WAY["routes"]])
    rows = (("F", 0, 0, 0), ("F", 1, 0, 1), ("B", 1, 0, 2), ("W", 1, 0, 3), ("B", 0, 0, 3), ("W", 0, 0, 4))
    up = (("F", 2, 1, 0), ("F", 3, 1, 1), ("B", 3, 1, 2), ("W", 3, 1, 5), ("B", 2, 1, 4), ("W", 2, 1, 5))
    schedule = HEURISTICS["list"](instance)
    events = tuple(_event(instance, *op) for op in (*rows, *up))

    def codes(changed: tuple[Event, ...]) -> list[Code]:
        return [v.code for v in validate(instance, schedule.model_copy(update={"events": changed})).violations]

    assert codes(events) == []
    assert codes((*events, _event(instance, "F", 0, 1, 9)))[:1] == [Code.UNKNOWN_TASK]
    early = tuple(_event(instance, "F", 3, 1, 6) if (e.kind, e.virtual_stage) == (Kind.F, 3) else e for e in events)
    assert Code.DEPENDENCY_VIOLATION in codes(early)


def _event(instance: Instance, kind: str, virtual_stage: int, microbatch: int, start: int) -> Event:
    return Event(Kind(kind), instance.stage_of[virtual_stage], virtual_stage, microbatch, start, start + 1)


def test_validator_knows_own_times() -> None:
    """Microbatch 1 takes 3 for F: an F of 1 tick is too short."""
    own = [{"microbatches": [1], "forward_ticks": 3}]
    instance = Instance.model_validate(
        {"stages": 1, "microbatches": 2, "forward_ticks": 1, "fused_backward_ticks": 1, "microbatch_times": own}
    )
    schedule = HEURISTICS["gpipe"](instance)
    assert validate(instance, schedule).valid
    assert figures(schedule).makespan == 1 + 3 + 1 + 1
    short = tuple(Event(e.kind, 0, 0, e.microbatch, e.start, e.start + 1) for e in schedule.events)
    found = validate(instance, schedule.model_copy(update={"events": short})).violations
    assert [v.message for v in found] == ["it0/s0/v0/mb1/F takes 1 ticks, the instance says 3"]


def test_two_directions_fill_each_other() -> None:
    """One microbatch each way over two stages: each stage does 2 (F + B + W) = 6, and nothing has to wait: 6."""
    instance = two_way(microbatches=2, routes=[r | {"microbatches": 1} for r in TWO_WAY["routes"]])
    result = solve(instance, time_limit_s=20, workers=2)
    assert (result.value, result.bound.value) == (6, 6)


def test_infeasible_counts_one_route() -> None:
    """A microbatch holds 1 on a stage whichever way it goes: cap 1 works, 1/2 does not."""
    assert solve(two_way(memory_cap=1), time_limit_s=20, workers=2).value is not None
    found = solve(two_way(memory_cap="1/2"), time_limit_s=20, workers=2).infeasible
    assert found is not None
    assert found.needed == Fraction(1)


def test_formats_of_one_route_refuse_two() -> None:
    """Tables, the sail runtime, MiniZinc and the replay have one route, and say so."""
    schedule: Schedule = HEURISTICS["list"](two_way())
    for write in (to_jaxpp, to_sail_zb):
        with pytest.raises(ValueError, match=r"routes: .* sends every microbatch through all virtual stages"):
            write(schedule)
    with pytest.raises(ValueError, match=r"routes: pipeline.mzn does not state it"):
        to_minizinc(two_way())
    assert [refusal.code for refusal in check_schedule(schedule)] == ["several_routes"]


def test_bug_one_microbatch_after_another_on_two_routes() -> None:
    """Every microbatch was sent over all virtual stages, and ``list`` ended in a KeyError.

    One way recomputes and the other does not: the list rules, which keep room to bring an activation back beside one
    that is whole, are not sure to finish at cap 1, which is enough. Unit times: each of two
    microbatches down takes F F B B W, 5 ticks; stage 1 is free at 9, and the one up takes F F R B B W: 9 + 6.
    """
    drops = {"recompute": ["never", "never", "always", "always"], "recompute_ticks": 1, "checkpoint": 0}
    instance = two_way(memory_cap=1, **drops)
    assert least_memory(instance, 0) == least_memory(instance, 1) == 1
    schedule = HEURISTICS["list"](instance)
    assert validate(instance, schedule).violations == ()
    assert figures(schedule).makespan == 15


def test_bug_neighbours_by_number_in_a_relaxation() -> None:
    """Virtual stages 0, 1 and 2 on one route or 0, 2 and 4: a relaxation to two stages kept other transfers there.

    What is a neighbour was told by numbers that follow each other, where it is the route that says it.
    """
    kept = []
    for down, stage_of in (((0, 1, 2), (0, 1, 2, 2, 1, 0)), ((0, 2, 4), (0, 2, 1, 1, 2, 0))):
        up = tuple(v for v in range(6) if v not in down)
        instance = Instance.model_validate(
            {
                "stages": 3,
                "microbatches": 4,
                "stage_of": stage_of,
                "routes": [{"virtual_stages": way, "microbatches": 2} for way in (down, up)],
                "forward_ticks": 1,
                "backward_ticks": 1,
                "weight_ticks": 1,
                "comm_ticks": 1,
                "communication": "link",
            }
        )
        graph = keep_stages(expand(instance), {0, 1}).graph
        sends = [task for task in graph.tasks if task.kind in (Kind.SEND_F, Kind.SEND_B)]
        kept.append(sorted((task.kind, task.stage, task.microbatch) for task in sends))
    assert len(kept[0]) == 8  # between stages 0 and 1: two microbatches each way, an activation and a gradient each
    assert kept[0] == kept[1]
