"""The instance sets: written by their script, read back, and in agreement with the published figures they come from."""

from __future__ import annotations

import csv
import importlib.util
import json
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest

from zbopt.bench import instance_files, read_best_known, read_peers
from zbopt.problem.instance import Instance, Objective, read_instance

REPOSITORY = Path(__file__).parents[2]
INSTANCES = REPOSITORY / "instances"
COUNTS = {"zb-iclr2024": 33, "unit": 72, "audit": 1, "everything": 10}
PUBLISHED = json.loads((REPOSITORY / "tests" / "golden" / "zb_iclr2024.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def make() -> ModuleType:
    """Load instances/make.py, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("make_instances", INSTANCES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(name: str) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in instance_files(INSTANCES / name)}


@pytest.mark.parametrize("name", COUNTS)
def test_script_writes_what_is_there(name: str, make: ModuleType, tmp_path: Path) -> None:
    """33 = 12 linear settings at 2 caps and 9 V settings; 72 = 3 stage counts, 4 microbatch counts, 6 caps;
    10 = 6 rows of caps on 4 stages and 4 on 8.
    """
    make.write_all(tmp_path)
    written = {file.name: file.read_text(encoding="utf-8") for file in instance_files(tmp_path / name)}
    assert written == files(name)
    assert len(written) == COUNTS[name]


@pytest.mark.parametrize("name", COUNTS)
def test_every_set_is_documented(name: str) -> None:
    """Licence, units and files stand in its README; each instance is named after its file."""
    text = (INSTANCES / name / "README.md").read_text(encoding="utf-8").lower()
    assert [word for word in ("licence", "units", "best_known.csv") if word not in text] == []
    assert all(read_instance(INSTANCES / name / file).name == file.removesuffix(".json") for file in files(name))


@pytest.mark.parametrize("row", PUBLISHED["table5_4_9"], ids=lambda row: f"{row['model']}-m{row['m']}")
@pytest.mark.parametrize("rounds", [1, 2])
def test_linear_settings_are_the_published_ones(row: dict[str, object], rounds: int) -> None:
    """Tables 4, 5 and 9, whose figures a golden test holds in another file; shares to the six digits given there."""
    cap = rounds * int(str(row["p"]))
    name = f"linear-{str(row['model']).lower()}-p{row['p']}-m{row['m']}-cap{cap}.json"
    instance = read_instance(INSTANCES / "zb-iclr2024" / name)
    times = [Fraction(str(row[key])) * 1000 for key in ("tf_ms", "tb_ms", "tw_ms", "tcomm_ms")]
    assert instance.backward_ticks is not None
    assert instance.weight_ticks is not None
    ticks = [instance.forward_ticks[-1], instance.backward_ticks[0], instance.weight_ticks[0], instance.comm_ticks]
    assert ticks == times
    assert (instance.tick, instance.is_linear, instance.memory_cap) == ("1us", True, (cap,) * instance.stages)
    assert round(float(instance.weight_share[0]), 6) == row["r_MW_over_MB"]


@pytest.mark.parametrize("row", PUBLISHED["table8"], ids=lambda row: f"{row['model']}-m{row['m']}")
def test_v_settings_are_the_published_ones(row: dict[str, object]) -> None:
    """Table 8: two chunks a stage, down and back up, times of a chunk, half an activation each."""
    name = f"v-{str(row['model']).lower()}-p{row['p']}-m{row['m']}-cap{row['p']}.json"
    instance = read_instance(INSTANCES / "zb-iclr2024" / name)
    assert instance.backward_ticks is not None
    assert instance.weight_ticks is not None
    ticks = [instance.forward_ticks[0], instance.backward_ticks[0], instance.weight_ticks[0], instance.comm_ticks]
    assert ticks == [row["chunk_tf_us"], row["chunk_tb_us"], row["chunk_tw_us"], row["tcomm_us"]]
    p = instance.stages
    assert instance.stage_of == (*range(p), *reversed(range(p)))
    assert set(instance.activation) == {Fraction(1, 2)}
    assert set(instance.weight_share) == {Fraction(16, 37)}  # 32 / (34 + 5/h * as) with as = 8h for all three models


def test_share_held_until_w(make: ModuleType) -> None:
    """32h / (34h + 5as) by hand for h = 2304, a = 24, s = 1024: 73728 / 201216 = 48/131."""
    assert make.share_held_until_w(2304, 24, 1024) == Fraction(48, 131)


@pytest.mark.parametrize("name", ["zb-iclr2024", "unit"])
def test_peers_stand_beside_instances(name: str) -> None:
    """Every row names an instance; a peer holds at most the cap, and its span is at most its makespan."""
    stems = {file.stem for file in instance_files(INSTANCES / name)}
    with (INSTANCES / name / "peers.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["instance"] for row in rows} == stems
    for row in rows:
        caps = read_instance(INSTANCES / name / f"{row['instance']}.json").memory_cap
        assert caps is not None
        assert set(caps) == {Fraction(row["cap"])}
        assert float(row["peak"]) <= float(row["cap"])
        assert float(row["max_stage_span"]) <= float(row["makespan"])


@pytest.mark.parametrize("name", COUNTS)
def test_best_known_contradicts_nothing(name: str) -> None:
    """Bounds are at most values, and at most what any published scheduler reaches."""
    known, peers = read_best_known(INSTANCES / name), read_peers(INSTANCES / name)
    stems = {file.stem for file in instance_files(INSTANCES / name)}
    assert {stem for stem, _ in known} <= stems
    assert {stem for stem, objective in known if objective is Objective.MAKESPAN} == stems
    for key, record in known.items():
        values = [peer.value for peer in peers.get(key, [])] + ([] if record.value is None else [record.value])
        assert all(record.lower_bound <= value for value in values), key


def test_audit_optimum() -> None:
    """m(F+B+W) + (p-1)F = 7 at p = m = 2 and unit times, reached by the schedule in the set's README."""
    known = read_best_known(INSTANCES / "audit")["two-stage", Objective.MAKESPAN]
    assert (known.lower_bound, known.value) == (7, 7)
    instance = read_instance(INSTANCES / "audit" / "two-stage.json")
    assert instance == Instance.uniform(name="two-stage", stages=2, microbatches=2)
