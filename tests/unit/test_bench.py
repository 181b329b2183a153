"""Running a set: rows, records of the best known, resuming, failures and Ctrl-C. The solver is a stand-in here."""

from __future__ import annotations

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest

from zbopt.bench import (
    BenchRow,
    BestKnown,
    OtherEngineResult,
    Peer,
    bench_set,
    instance_files,
    read_best_known,
    read_peers,
    update_best_known,
)
from zbopt.bench import run as bench_run
from zbopt.cli import run
from zbopt.portfolio.limits import Limits
from zbopt.portfolio.result import Result
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective, write_instance
from zbopt.problem.schedule import Engine, Provenance, Schedule, Status, versions

LIMITS = Limits(5.0, workers=1)
TODAY = date(2026, 1, 2)
HEAD = "instance,objective,lower_bound,value,proved_by,version,date\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write three instances whose order by name is not that by size."""
    for microbatches in (2, 4, 10):
        write_instance(Instance.uniform(stages=2, microbatches=microbatches), tmp_path / f"m{microbatches}.json")
    (tmp_path / "m2.events.json").write_text("{}")
    (tmp_path / "peers.csv").write_text(
        "instance,scheduler,cap,makespan,max_stage_span,peak,seconds\nm4,zb,,16,12.5,4,0\nm4,gpipe,,20,20,4,0\n"
    )
    return tmp_path


def row(**fields: object) -> BenchRow:
    given = {"instance": "m2", "objective": Objective.MAKESPAN, "status": Status.FEASIBLE, "value": 9, "bound": 7}
    return BenchRow(**(given | {"proved_by": "bound:load"} | fields))  # type: ignore[arg-type]  # values of a test


class Solver:
    """Stand in for ``portfolio.solve``: value m + 10 and bound m, or what ``faults`` says for m microbatches.

    As milp it says what ``milp`` has: value, bound and seconds of m microbatches, else that it does not state them.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.faults: dict[int, BaseException] = {}
        self.interrupted_at: int | None = None
        self.died_at: int | None = None
        self.milp: dict[int, tuple[int, int, float]] = {}

    def __call__(self, instance: Instance, **limits: object) -> Result:
        m = instance.microbatches
        if limits["engine"] is Engine.MILP:
            return self.by_milp(instance)
        self.asked.append(m)
        if m in self.faults:
            raise self.faults[m]
        schedule = Schedule(instance=instance, provenance=Provenance(source="heuristic:x"), events=())
        return Result(
            instance=instance,
            status=Status.FEASIBLE,
            schedule=schedule,
            value=m + 10,
            bound=Bound(m, "bound:load"),
            wall_time_s=0.5,
            interrupted=m == self.interrupted_at,
            fault="the process ended with status 3" if m == self.died_at else None,
        )

    def by_milp(self, instance: Instance) -> Result:
        if instance.microbatches not in self.milp:
            raise ValueError("milp: not stated")
        value, bound, wall_time_s = self.milp[instance.microbatches]
        return Result(
            instance=instance,
            status=Status.OPTIMAL if value == bound else Status.FEASIBLE,
            schedule=Schedule(instance=instance, provenance=Provenance(source="milp"), events=()),
            value=value,
            bound=Bound(bound, "milp"),
            wall_time_s=wall_time_s,
        )


@pytest.fixture
def solver(monkeypatch: pytest.MonkeyPatch) -> Solver:
    stand_in = Solver()
    monkeypatch.setattr(bench_run, "solve", stand_in)
    return stand_in


def test_rows_come_in_order_of_size(folder: Path, solver: Solver) -> None:
    """2, 4, 10 and not 10, 2, 4; the event list beside them is no instance; the best peer is the lower one."""
    seen: list[str] = []
    rows = bench_set(folder, LIMITS, on_row=lambda r: seen.append(r.instance))
    assert seen == ["m2", "m4", "m10"] == [r.instance for r in rows]
    assert [(r.value, r.bound, r.found_by) for r in rows] == [(m + 10, m, "heuristic:x") for m in (2, 4, 10)]
    assert [r.peer for r in rows] == [None, Peer("zb", 16.0), None]
    assert rows[1].ratio == 14 / 16
    assert rows[1].gap == 10 / 14


def test_objective_decides_the_peer_and_the_record(folder: Path, solver: Solver) -> None:
    """The set's instances are for the makespan; asked for the span, that is what is solved and compared."""
    (folder / "best_known.csv").write_text(HEAD + "m4,makespan,4,14,x,0,2026-01-01\nm4,max_stage_span,3,13,y,0,d\n")
    (found,) = bench_set(folder, LIMITS, objective=Objective.MAX_STAGE_SPAN, match="m4")
    assert (found.objective, found.peer) == (Objective.MAX_STAGE_SPAN, Peer("zb", 12.5))
    assert found.known == BestKnown(3, 13, "y", "0", "d")
    assert (found.better_value, found.better_bound) == (False, True)


def test_one_failure_does_not_end_the_run(folder: Path, solver: Solver) -> None:
    """A file that is no instance and a solver that breaks give rows with an error; the others are solved."""
    (folder / "m3.json").write_text("{")
    solver.faults[4] = RuntimeError("out of luck")
    rows = {r.instance: r for r in bench_set(folder, LIMITS)}
    assert rows["m3"].error is not None
    assert rows["m3"].error.startswith(f"{folder / 'm3.json'}: not valid JSON")
    assert rows["m4"].error == "RuntimeError: out of luck"
    assert (rows["m2"].error, rows["m10"].value) == (None, 20)


def test_resume_solves_only_what_is_missing(folder: Path, solver: Solver, tmp_path: Path) -> None:
    """After Ctrl-C in the second of three: the first is taken from the file, the other two are solved."""
    results = tmp_path / "results.jsonl"
    solver.interrupted_at = 4
    rows = bench_set(folder, LIMITS, results=results)
    assert [(r.instance, r.interrupted) for r in rows] == [("m2", False), ("m4", True)]
    assert len(results.read_text().splitlines()) == 2
    results.write_text(results.read_text() + '{"instance": "cut sho')
    solver.interrupted_at, solver.asked = None, []
    again = bench_set(folder, LIMITS, results=results, resume=True)
    assert solver.asked == [4, 10]
    assert [r.value for r in again] == [12, 14, 20]
    assert again[0] == rows[0]


def test_resume_does_not_mix_limits(folder: Path, solver: Solver, tmp_path: Path) -> None:
    """Rows of another time limit are solved again; without resume the file starts anew."""
    results = tmp_path / "results.jsonl"
    bench_set(folder, LIMITS, results=results, match="m2")
    bench_set(folder, Limits(6.0, workers=1), results=results, match="m2", resume=True)
    assert solver.asked == [2, 2]
    assert len(results.read_text().splitlines()) == 2
    bench_set(folder, LIMITS, results=results, match="m2")
    assert len(results.read_text().splitlines()) == 1


def test_bug_resume_of_an_instance_that_changed(folder: Path, solver: Solver, tmp_path: Path) -> None:
    """The row of what the file held before was taken for its own; its name may change."""
    results = tmp_path / "results.jsonl"
    bench_set(folder, LIMITS, results=results)
    changed = Instance.uniform(stages=2, microbatches=4, comm_ticks=1)
    write_instance(changed, folder / "m4.json")
    write_instance(Instance.uniform(stages=2, microbatches=2, name="as before"), folder / "m2.json")
    rows = bench_set(folder, LIMITS, results=results, resume=True)
    assert solver.asked == [2, 4, 10, 4]
    assert bench_set(folder, LIMITS, results=results, resume=True) == rows
    assert len(solver.asked) == 4


def test_ctrl_c_between_instances_keeps_the_rows(folder: Path, solver: Solver) -> None:
    """The solver turns Ctrl-C into a result; where it comes elsewhere, what is done is still there."""
    solver.faults[4] = KeyboardInterrupt()
    assert [r.instance for r in bench_set(folder, LIMITS)] == ["m2"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("m2,makespan,13,13,cp-sat,0,d", "value 12 is below the lower bound 13 on record (cp-sat)"),
        ("m2,makespan,1,1,x,0,d", "lower bound 2 (bound:load) is above the value 1 on record"),
    ],
)
def test_contradiction_is_an_error(folder: Path, solver: Solver, record: str, message: str) -> None:
    """Two proofs that exclude each other are a fault, never an improvement."""
    (folder / "best_known.csv").write_text(HEAD + record + "\n")
    rows = bench_set(folder, LIMITS, match="m2")
    assert rows[0].error == f"{message}: one of the two is wrong"
    assert update_best_known(folder, rows, TODAY) == []


def test_against_another_engine(folder: Path, solver: Solver, tmp_path: Path) -> None:
    """Proved in 20 s by milp and in 0.5 s here: 40 times; what it does not prove or state has no ratio; all resumes."""
    solver.milp = {2: (12, 12, 20.0), 4: (14, 5, 60.0)}
    results = tmp_path / "results.jsonl"
    rows = bench_set(folder, LIMITS, against=Engine.MILP, results=results)
    proved = OtherEngineResult(engine=Engine.MILP, status=Status.OPTIMAL, value=12, bound=12, wall_time_s=20.0)
    assert (rows[0].reference, rows[0].times_faster, rows[0].error) == (proved, 40.0, None)
    assert [row.times_faster for row in rows[1:]] == [None, None]
    assert rows[2].reference == OtherEngineResult(engine=Engine.MILP, error="milp: not stated")
    assert bench_set(folder, LIMITS, against=Engine.MILP, results=results, resume=True)[:3] == rows
    assert solver.asked == [2, 4, 10]
    bench_set(folder, LIMITS, results=results, resume=True)
    assert solver.asked == [2, 4, 10] * 2


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ((13, 13, 1.0), "value 12 is below the lower bound 13 of milp"),
        ((1, 1, 1.0), "lower bound 2 (bound:load) is above the value 1 of milp"),
    ],
)
def test_engines_that_contradict_each_other(
    folder: Path, solver: Solver, theirs: tuple[int, int, float], message: str
) -> None:
    """A contradiction between engines is a fault, never an improvement, as with what is on record."""
    solver.milp = {2: theirs}
    rows = bench_set(folder, LIMITS, match="m2", against=Engine.MILP)
    assert rows[0].error == f"{message}: one of the two is wrong"
    assert update_best_known(folder, rows, TODAY) == []


def test_update_keeps_the_best_of_both(folder: Path) -> None:
    """A better value keeps the better bound on record and what proved it, and the other way round."""
    (folder / "best_known.csv").write_text(
        HEAD + "m10,makespan,5,,b,0,d\nm2,makespan,7,10,cp-sat,0,d\nm4,makespan,3,8,bound:load,0,d\n"
    )
    rows = [
        row(bound=6),  # value 9 instead of 10, bound worse
        row(instance="m4", value=9, bound=5, proved_by="cp-sat"),  # bound 5 instead of 3, value worse
        row(instance="m10", value=None, bound=5),  # nothing better
        row(instance="m3", value=4, bound=4),  # new
        row(instance="m5", error="broken"),
    ]
    assert [name for name, _ in update_best_known(folder, rows, TODAY)] == ["m2", "m4", "m3"]
    lines = (folder / "best_known.csv").read_text().splitlines()
    version = versions()["zbopt"]
    assert lines[1:] == [
        f"m2,makespan,7,9,cp-sat,{version},2026-01-02",
        f"m3,makespan,4,4,bound:load,{version},2026-01-02",
        f"m4,makespan,5,8,cp-sat,{version},2026-01-02",
        "m10,makespan,5,,b,0,d",
    ]


def test_update_without_improvement_leaves_the_file(folder: Path) -> None:
    """An equal value and bound change nothing, not even the date."""
    text = HEAD + "m2,makespan,7,9,cp-sat,0,d\n"
    (folder / "best_known.csv").write_text(text)
    assert update_best_known(folder, [row()], TODAY) == []
    assert (folder / "best_known.csv").read_text() == text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "best_known.csv",
            "instance,value\n",
            r"best_known.csv: has no column objective; its first line must name instance,",
        ),
        ("best_known.csv", HEAD + "m2,makespan,x,1,,,\n", r"best_known.csv, line 2: .*'x'.*; correct or delete"),
        ("best_known.csv", HEAD + "m2,cost,1,1,,,\n", r"best_known.csv, line 2: 'cost' is not a valid Objective; "),
        (
            "peers.csv",
            "instance,scheduler,makespan,max_stage_span\nm2,zb,1\n",
            r"peers.csv, line 2: .*; correct or delete",
        ),
    ],
)
def test_files_that_cannot_be_read(folder: Path, name: str, text: str, message: str) -> None:
    """The error names the file, the line and the way out."""
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        (read_peers if name == "peers.csv" else read_best_known)(folder)


def test_sets_that_are_none(folder: Path) -> None:
    """A set without a folder or without a match is refused."""
    with pytest.raises(ValueError, match=r"nowhere: no such directory; give a set of instances such as instances/unit"):
        instance_files(Path("nowhere"))
    with pytest.raises(ValueError, match=r"holds no instance file that matches 'q\*'; give another set or --match"):
        instance_files(folder, "q*")


def test_bug_two_runs_at_once(folder: Path, solver: Solver) -> None:
    """A second run into the same results emptied them under the first one; it is refused, and the rows stay."""
    results = folder / "results.jsonl"
    said: list[str] = []

    def again(row: BenchRow) -> None:
        with pytest.raises(ValueError, match=r"another bench run writes into it; .* --results another file") as refused:
            bench_set(folder, LIMITS, results=results)
        said.append(str(refused.value))

    rows = bench_set(folder, LIMITS, results=results, on_row=again)
    assert len(said) == 3
    assert [json.loads(line)["instance"] for line in results.read_text().splitlines()] == [r.instance for r in rows]
    assert bench_set(folder, LIMITS, results=results, resume=True) == rows
    assert len(solver.asked) == 3


def test_file_systems_without_locks(folder: Path, solver: Solver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of hours must not end, or not begin, because two could not be told apart."""

    def unable(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", unable)
    rows = bench_set(folder, LIMITS, results=folder / "results.jsonl")
    assert len(rows) == 3
    assert len(update_best_known(folder, rows, TODAY)) == 3


def test_bug_two_updates_at_once(folder: Path) -> None:
    """Both read, both wrote, and the improvements of one were lost: the second one waits now."""
    with ThreadPoolExecutor(4) as pool:
        rows = [row(instance=f"m{m}") for m in range(40)]
        list(pool.map(lambda r: update_best_known(folder, [r], TODAY), rows))
    assert len(read_best_known(folder)) == 40


def test_bug_two_files_of_one_name(folder: Path) -> None:
    """Rows go by the name without its suffix: --resume took one for the other."""
    (folder / "m4.toml").write_text("")
    with pytest.raises(ValueError, match=r"m4.json and m4.toml would be one instance of the set; rename one of them"):
        instance_files(folder)


def test_results_that_cannot_be_written(folder: Path) -> None:
    """The error comes before the first instance, with the way out."""
    with pytest.raises(ValueError, match=r"no such file or directory; give --results a file that can be written"):
        bench_set(folder, LIMITS, results=folder / "none" / "results.jsonl")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["best_known.csv", "m4.json", "m4.lines"])
def test_bug_results_emptied_any_file(folder: Path, solver: Solver, name: str, resume: bool) -> None:
    """``--results set/best_known.csv`` emptied the record of the set, and ``--resume`` added its rows to it."""
    (folder / "best_known.csv").write_text(HEAD)
    (folder / "m4.lines").write_text('{"event": 1}\n{"event": 2}\n')
    before = (folder / name).read_bytes()
    with pytest.raises(ValueError, match=rf"{name}: is not a file of results, and .*; give --results another file"):
        bench_set(folder, LIMITS, results=folder / name, resume=resume)
    assert (folder / name).read_bytes() == before
    assert solver.asked == []


def test_bug_a_dead_solver_was_no_failure(folder: Path, solver: Solver, capsys: pytest.CaptureFixture[str]) -> None:
    """A solver whose process died gave exit code 0, and ``--resume`` kept its poor row."""
    solver.died_at = 4
    words = ["bench", str(folder), "--time-limit", "5", "--workers", "1"]
    assert run(words) == 1
    assert "m4: the solver failed: the process ended with status 3" in capsys.readouterr().out
    solver.died_at = None
    assert run([*words, "--resume"]) == 0
    assert solver.asked == [2, 4, 10, 4]


def test_bug_resume_after_a_cut_line_lost_a_row(folder: Path, solver: Solver, tmp_path: Path) -> None:
    """The first new row was added to the end of a line that a crash had cut, and both were lost."""
    results = tmp_path / "results.jsonl"
    bench_set(folder, LIMITS, results=results)
    results.write_bytes(results.read_bytes()[:-30])
    bench_set(folder, LIMITS, results=results, resume=True)
    bench_set(folder, LIMITS, results=results, resume=True)
    assert solver.asked == [2, 4, 10, 10]


def test_results_cut_in_the_first_line(folder: Path, solver: Solver, tmp_path: Path) -> None:
    """A crash in the first row leaves a file of results all the same."""
    results = tmp_path / "results.jsonl"
    bench_set(folder, LIMITS, results=results, match="m2")
    results.write_bytes(results.read_bytes()[:40])
    assert len(bench_set(folder, LIMITS, results=results, resume=True)) == 3


def test_bug_update_found_out_late(folder: Path, solver: Solver, capsys: pytest.CaptureFixture[str]) -> None:
    """A record that cannot be written was found out after a run of hours, and the table was lost."""
    (folder / "best_known.csv").mkdir()
    assert run(["bench", str(folder), "--update"]) == 2
    assert "--update " in capsys.readouterr().err
    assert solver.asked == []


def test_bug_update_wrote_to_a_name_that_others_could_guess(folder: Path, tmp_path: Path) -> None:
    """``best_known.tmp`` was followed where it was a symbolic link, and stayed after a failure."""
    other = tmp_path / "other.txt"
    other.write_text("kept")
    (folder / "best_known.tmp").symlink_to(other)
    assert len(update_best_known(folder, [row()], TODAY)) == 1
    assert other.read_text() == "kept"
    assert read_best_known(folder)["m2", Objective.MAKESPAN].value == 9


def test_command_prints_a_table(folder: Path, solver: Solver, capsys: pytest.CaptureFixture[str]) -> None:
    """Value 14 and bound 4 of m4 beside zb's 16: gap 10/14, ratio 14/16; --update records all three."""
    assert run(["bench", str(folder), "--time-limit", "5", "--update"]) == 0
    printed = capsys.readouterr()
    cells = [line.split() for line in printed.out.splitlines()]
    assert ["m4", "14", "4", "71.43", "%", "bound:load", "zb", "16", "0.8750", "0.50", "new"] in cells
    assert "0 of 3 proved optimal; largest gap 83.33 %; above the best peer in 0 of 1" in printed.out
    assert "zbopt: 2 of 3: m4: feasible, value 14, bound 4, 0.5 s" in printed.err
    assert len(read_best_known(folder)) == 3
    assert run(["bench", str(folder), "--time-limit", "5"]) == 0
    assert capsys.readouterr().out.count("same") == 3


def test_command_prints_what_the_other_engine_makes(
    folder: Path, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 s over 0.5 s is 40 times; milp proves one of three, does not prove the second, does not state the third."""
    solver.milp = {2: (12, 12, 20.0), 4: (14, 5, 60.0)}
    assert run(["bench", str(folder), "--against", "milp"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[-3:] for line in printed.splitlines()[1:3]] == [["12", "20.00", "40.0"], ["new", "5", "60.00"]]
    assert printed.splitlines()[3].endswith("failed")
    assert "milp proves 1 of 3; of these 0 are proved here, 40.0 times faster in the median (40.0 to 40.0)" in printed
    assert run(["bench", str(folder), "--against", "milp", "--engine", "milp"]) == 2
    assert "against = milp: that engine solves the set already" in capsys.readouterr().err


def test_command_prints_json(folder: Path, solver: Solver, capsys: pytest.CaptureFixture[str]) -> None:
    """One object on stdout; a failed instance is in it and makes the exit code 1, Ctrl-C is said."""
    solver.faults[2] = RuntimeError("broken")
    solver.interrupted_at = 4
    assert run(["bench", str(folder), "--json", "--objective", "max-stage-span"]) == 1
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert (record["instances"], record["interrupted"]) == (3, True)
    failed, found = record["rows"]
    assert (failed["error"], failed["value"], failed["gap"]) == ("RuntimeError: broken", None, None)
    assert (found["objective"], found["lower_bound"], found["ratio"]) == ("max_stage_span", 4, 14 / 12.5)
    assert found["best_peer"] == {"scheduler": "zb", "value": 12.5}
    assert "zbopt: interrupted after 2 of 3 instances; --resume goes on" in printed.err


def test_wrong_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong call gives exit code 2 and one line."""
    assert run(["bench", str(tmp_path)]) == 2
    assert "holds no instance file that matches '*'" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--workers", "0"], ["--time-limit", "-1"], ["--engine", "milp", "--deterministic"]])
def test_limits_are_refused_before_the_first_instance(
    folder: Path, solver: Solver, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row used to fail with the same error, one after the other."""
    assert run(["bench", str(folder), *wrong]) == 2
    assert solver.asked == []
    assert capsys.readouterr().err.startswith("zbopt: ")
