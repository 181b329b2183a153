"""The public API: what it builds, changes, measures, compares, draws and exchanges, and what it refuses."""

import doctest
import inspect
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import zbopt
from zbopt.analysis.metrics import figures
from zbopt.costs.amounts import parse_amounts
from zbopt.heuristics import HEURISTICS
from zbopt.problem.facts import declared, flags_by_field
from zbopt.problem.instance import COMPUTE

DOCUMENTED = ("api.comparison", "api.figures", "api.files", "api.instances", "api.pictures", "problem.checked_model")


def refusal(call: Callable[[], object]) -> str:
    """The message of the ``ValueError`` that ``call`` raises; it has one line."""
    with pytest.raises(ValueError, match=r"\S") as caught:
        call()
    assert type(caught.value).__name__ != "ValidationError"
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The package


def test_every_public_name_is_there_and_no_module_stands_in_for_it() -> None:
    """After every module is loaded each name still is what it was: a module of that name would have replaced it."""
    code = (
        "import zbopt, pkgutil, importlib, types\n"
        "for found in pkgutil.walk_packages(zbopt.__path__, 'zbopt.'):\n"
        "    if '__main__' not in found.name:\n"
        "        importlib.import_module(found.name)\n"
        "print([n for n in zbopt.__all__ if n != 'heuristics' and isinstance(getattr(zbopt, n), types.ModuleType)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout == "[]\n", done.stderr


def test_names_are_found_before_they_are_loaded() -> None:
    """``dir`` and ``__all__`` agree, and an unknown name is refused as any module refuses it."""
    assert set(zbopt.__all__) <= set(dir(zbopt))
    with pytest.raises(AttributeError, match="no attribute 'solver'"):
        zbopt.__getattr__("solver")


def test_public_heuristics_are_all_that_there_are() -> None:
    """Each named heuristic can be imported by the name of its function, which type checkers need in ``__all__``."""
    functions = {heuristic.__name__ for heuristic in HEURISTICS.values()}
    assert functions <= set(zbopt.heuristics.__all__)


@pytest.mark.parametrize("module", ["", *DOCUMENTED])
def test_examples_in_docstrings(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example says what it prints."""
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(import_module(f"zbopt.{module}".rstrip(".")))
    assert found.attempted > 0
    assert found.failed == 0


# Building


def without_argument() -> set[str]:
    """Return the fields that ``zbopt.instance`` does not take, by their own name or by that of their flag."""
    arguments = set(inspect.signature(zbopt.instance).parameters)
    flags = flags_by_field(zbopt.Instance)
    taken = {name for name, flag in flags.items() if flag.parameter in arguments}
    return set(zbopt.Instance.model_fields) - taken - arguments


def test_every_flag_is_an_argument() -> None:
    """``zbopt.instance`` takes what the command line takes, under the flag's name but for two that it writes out.

    Only fields without a flag may have no argument. That ``Instance.replace`` sets each of them is a law of fields.
    """
    arguments = set(inspect.signature(zbopt.instance).parameters)
    written_out = {"micro": "microbatches", "mem_limit": "memory_cap"}
    flags = flags_by_field(zbopt.Instance)
    assert {written_out.get(flag.parameter, flag.parameter) for flag in flags.values()} <= arguments
    assert without_argument() & set(flags) == set()


def test_scalars_lists_and_arrays_build_the_same() -> None:
    """A scalar, a list, a tuple and numpy's arrays, which a column of a table is, give one instance."""
    scalar = zbopt.instance(stages=2, microbatches=4, forward=3, backward=2, weight=1, memory_cap=2)
    for form in (lambda *v: list(v), lambda *v: tuple(v), lambda *v: np.array(v)):
        listed = zbopt.instance(
            stages=2,
            microbatches=4,
            forward=form(3, 3),
            backward=form(2, 2),
            weight=form(1, 1),
            memory_cap=form(2.0, 2.0),
        )
        assert listed == scalar


def test_times_with_units_share_a_tick() -> None:
    """The finest decimal place written is that of 600us: 18.5 ms are 18500 ticks; a longer tick rounds times up."""
    step = zbopt.instance(stages=2, microbatches=2, forward="18.5ms", backward="18ms", weight="9ms", comm="600us")
    assert (step.tick, step.forward_ticks, step.comm_ticks) == ("1us", (18500, 18500), 600)
    coarse = zbopt.instance(stages=2, microbatches=2, forward="18.5ms", backward="18ms", weight="9ms", tick="1ms")
    assert (coarse.forward_ticks, coarse.rounding_ticks) == ((19, 19), Fraction(1, 2))


def test_every_argument_sets_its_field() -> None:
    """Arguments that few instances use reach the field of their name, or the field in ticks."""
    step = zbopt.instance(
        stages=2,
        microbatches=2,
        fused_backward=[3, 2],
        backward=2,
        weight=1,
        barrier="global",
        optimizer=[1, 2],
        barrier_time=3,
        iterations=2,
        objective="period",
        loss=2,
        input_ready=[0, 0, 1, 5],
        reduction=2,
        reduction_occupies="node",
        communication="link",
        transfer_occupies="link",
        boundary="1/2",
        bandwidth=2,
        stages_per_node=2,
        node_comm=1,
        node_bandwidth=4,
        gradient_state=0.5,
        receive_buffers="all",
        parameters=[1, 2],
        gradients=1,
        optimizer_state=2,
        workspace=1,
        reserve=1,
        recompute=["choose", "never"],
        recompute_time=2,
        checkpoint=0.25,
        offload="choose",
        offload_time=3,
        reload_time=4,
        offload_rest=0.5,
        host_link=[0, 0],
        name="all of it",
    )
    assert step.fused_backward_ticks == (3, 2)
    assert (step.optimizer_ticks, step.barrier_ticks, step.iterations) == ((1, 2), 3, 2)
    assert (step.loss_ticks, step.input_ready_ticks, step.reduction_ticks) == (2, (0, 0, 1, 5), (2, 2))
    assert (step.node_comm_ticks, step.bandwidth, step.node_bandwidth) == (1, 2, 4)
    assert (step.recompute_ticks, step.offload_ticks, step.reload_ticks) == ((2, 2), (3, 3), (4, 4))
    assert (step.host_link, step.parameters, step.name) == ((0, 0), (1, 2), "all of it")
    fields = declared(type(step)).items()
    may_be_absent = {name for name, entry in fields if entry.default is None and not entry.is_required}
    unset = (without_argument() & may_be_absent) | {"memory_cap", "overlapped_ticks"}
    assert {name for name in type(step).model_fields if getattr(step, name) is None} == unset
    pairs = zbopt.instance(stages=2, microbatches=2, fused_backward=2, overlapped=[3, None])
    assert (pairs.overlapped_ticks, pairs.backward_ticks) == ((3, None), None)


@pytest.mark.parametrize(
    ("placement", "stage_of"),
    [
        ("linear", (0, 1)),
        ("interleaved", (0, 1, 0, 1)),
        ("v", (0, 1, 1, 0)),
        ("bidirectional", (0, 1, 1, 0)),
        ([1, 0, 0, 1], (1, 0, 0, 1)),
    ],
)
def test_placements_need_no_number_of_virtual_stages(placement: str | list[int], stage_of: tuple[int, ...]) -> None:
    """A named placement has its usual number, also in ``Instance.uniform``."""
    step = zbopt.instance(stages=2, microbatches=2, placement=placement)
    assert step.stage_of == stage_of
    assert (step.routes is not None) == (placement == "bidirectional")
    if isinstance(placement, str):
        assert zbopt.Instance.uniform(stages=2, microbatches=2, placement=placement) == step


def test_whole_stages_are_cut_into_slices() -> None:
    """Each of the two slices of a stage takes half its time and memory; a transfer and the cap stay whole."""
    step = zbopt.instance(
        stages=2,
        microbatches=2,
        forward=["3ms", "5ms"],
        backward="4ms",
        weight="2ms",
        comm="1ms",
        activation="6GiB",
        memory_cap="12GiB",
        placement="v",
        times_of="stage",
    )
    assert (step.tick, step.comm_ticks) == ("500us", 2)
    assert step.forward_ticks == (3, 3, 5, 5)
    assert (step.memory_unit, step.activation, step.memory_cap) == ("GiB", (3,) * 4, (12, 12))
    whole = zbopt.instance(stages=2, microbatches=2, forward=4, backward=4, weight=2)
    cut = zbopt.instance(stages=2, microbatches=2, forward=4, backward=4, weight=2, placement="v", times_of="stage")
    assert (whole.tick, cut.tick, cut.forward_ticks) == ("unit", "unit", (2,) * 4)


def test_thirds_of_a_coarse_tick_round_up_by_little() -> None:
    """1 ms in three slices, which no tick of whole ns holds, is at most 0.1 % longer than a third of 1 ms."""
    step = zbopt.instance(
        stages=2,
        microbatches=2,
        forward="1ms",
        backward="1ms",
        weight="1ms",
        placement="interleaved",
        virtual=3,
        times_of="stage",
    )
    assert (step.tick, step.forward_ticks) == ("100ns", (3334,) * 6)


def test_placements_of_one_model_share_tick_and_work() -> None:
    """Every stage of every placement computes as long as before the cut: 3 + 3 + 3 units, in ticks of a half each."""
    step = zbopt.instance(stages=2, microbatches=2, forward=3, backward=3, weight=3, memory_cap=2)
    placed = zbopt.placements(step)
    assert list(placed) == ["linear", "interleaved", "v", "bidirectional"]
    for instance in placed.values():
        found = figures(zbopt.heuristics.list_schedule(instance))
        assert found.busy_ticks == (2 * 2 * 9,) * 2
        assert instance.memory_cap == (2, 2)
    assert "bidirectional" not in zbopt.placements(step.replace(microbatches=1))


def test_memory_with_units() -> None:
    """Amounts count in the largest unit that is written; 0 needs none."""
    step = zbopt.instance(stages=2, microbatches=2, memory_cap=["1.5TiB", "8GiB"], activation="512MiB", reserve=0)
    assert (step.memory_unit, step.memory_cap, step.activation) == ("GiB", (1536, 8), (Fraction(1, 2),) * 2)
    assert step.reserve == (0, 0)
    counted = zbopt.instance(stages=1, microbatches=1, memory_cap="1GiB", activation="1MiB", memory_unit="KiB")
    assert (counted.memory_unit, counted.memory_cap) == ("KiB", (2**20,))
    assert parse_amounts({"memory_cap": ["1TiB"]}).unit == "GiB"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": 0}, "stages = 0: must be at least 1"),
        ({"microbatches": 0}, "microbatches = 0: must be at least 1"),
        ({"forward": [1, 2, 3]}, "forward_ticks has 3 values for 2 virtual stages"),
        ({"forward": []}, "forward: an empty list"),
        ({"forward": 1.5}, "a time without a unit counts whole ticks"),
        ({"forward": ["1,2", 1]}, "not a time"),
        ({"forward": [True, 1]}, "not a time"),
        ({"forward": "1ms"}, "forward has a unit of time and backward has none"),
        ({"comm": [1, 2]}, "comm: 2 times; give one"),
        ({"memory_cap": "2GB", "activation": "1GiB"}, "unit 'GB' is unknown"),
        ({"memory_cap": ["2GiB", 1], "activation": "1GiB"}, "memory_cap = 1 has no unit"),
        ({"memory_cap": "2GiB"}, "activation is missing beside amounts with a unit"),
        (
            {"memory_cap": "2GiB", "activation": "1GiB", "memory_unit": "activation"},
            "memory_unit = 'activation' beside",
        ),
        ({"memory_cap": "much"}, "memory_cap[0] = 'much': not a number"),
        ({"placement": "w"}, "placement = 'w': give linear, interleaved"),
        ({"placement": "v", "virtual": 3}, "placement 'v' with 3 virtual stages a stage is unknown"),
        ({"placement": "linear", "virtual": 2}, "virtual = 2 with placement linear"),
        ({"placement": [0, 1], "virtual": 1}, "virtual = 1 beside a list of stages"),
        ({"placement": "bidirectional", "microbatches": 1}, "give a microbatch for each way"),
        ({"placement": [0, 1], "times_of": "stage"}, 'times_of = "stage" beside a list'),
        ({"placement": "v", "forward": 3, "times_of": "stage"}, "do not divide into 2 slices of whole ticks"),
        ({"placement": "v", "backward": [None, 2], "times_of": "stage"}, "backward_ticks[0] is null: with times_of"),
        ({"times_of": "layer"}, "times_of = 'layer': give virtual_stage or stage"),
        ({"objective": "speed"}, "objective = 'speed': must be 'makespan'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    """Each is refused in one line that names the argument."""
    known: dict[str, object] = {"stages": 2, "microbatches": 2}
    assert message in refusal(lambda: zbopt.instance(**(known | arguments)))  # type: ignore[arg-type]


def test_placements_refuse_what_cannot_be_cut() -> None:
    """A placement of several virtual stages a stage cannot be cut again, and one slice is no interleaving."""
    step = zbopt.instance(stages=2, microbatches=2)
    assert "virtual = 1" in refusal(lambda: zbopt.placements(step, virtual=1))
    assert "linear pipeline" in refusal(
        lambda: zbopt.placements(zbopt.instance(stages=2, microbatches=2, placement="v"))
    )


# Changing


def test_replace_checks_and_spreads() -> None:
    """A scalar stands for every stage, ``None`` takes a field back, all else stays, and the old one is as it was."""
    step = zbopt.instance(stages=4, microbatches=8, forward=[1, 2, 3, 4], memory_cap=6)
    changed = step.replace(memory_cap=4, weight_share=0.5)
    assert (changed.memory_cap, changed.weight_share) == ((4,) * 4, (Fraction(1, 2),) * 4)
    assert changed.forward_ticks == (1, 2, 3, 4)
    assert step.memory_cap == (6,) * 4
    assert changed.replace(memory_cap=None).memory_cap is None
    assert step.replace() == step
    assert "give 1 or 4" in refusal(lambda: step.replace(memory_cap=[4, 4]))
    assert "did you mean memory_cap?" in refusal(lambda: step.replace(memory_capp=4))
    assert "microbatches = None" not in refusal(lambda: step.replace(microbatches=None))


def test_replace_keeps_what_has_a_structure() -> None:
    """Routes, times of single microbatches and matrices come through unchanged."""
    step = zbopt.instance(stages=2, microbatches=4, placement="bidirectional").replace(
        microbatch_times=[{"microbatches": [1], "forward_ticks": 5}], comm_matrix=[[0, 1], [2, 0]]
    )
    changed = step.replace(memory_cap=4)
    assert (changed.routes, changed.microbatch_times) == (step.routes, step.microbatch_times)
    assert changed.comm_matrix == ((0, 1), (2, 0))


def test_bug_model_copy_broke_inside_solve() -> None:
    """``model_copy(update={"memory_cap": 4})`` checks nothing, and ``solve`` failed on the number far inside."""
    step = zbopt.instance(stages=2, microbatches=2)
    assert zbopt.solve(step.model_copy(update={"memory_cap": 2})).value == 7
    assert "memory_cap[0] = -2" in refusal(lambda: zbopt.solve(step.model_copy(update={"memory_cap": -2})))


@pytest.mark.parametrize("build", [zbopt.Instance, lambda **fields: zbopt.Instance.model_validate(fields)])
def test_instances_refuse_in_one_line(build: Callable[..., object]) -> None:
    """The class itself, and what builds one from a file's content."""
    assert refusal(lambda: build(stages=2)) == "microbatches: is missing; give it"
    assert "stages = 0" in refusal(lambda: build(stages=0, microbatches=1, forward_ticks=1, backward_ticks=1))


def test_schedules_refuse_in_one_line() -> None:
    """A part of a wrong type is named, as in a file."""
    step = zbopt.instance(stages=1, microbatches=1)
    gpipe = zbopt.heuristics.gpipe(step)
    message = refusal(lambda: zbopt.Schedule(instance=step, provenance=gpipe.provenance, events=[1]))  # type: ignore[list-item]
    assert "events[0]" in message
    document = gpipe.model_dump(mode="json") | {"instance": {"stages": 2}}
    assert refusal(lambda: zbopt.Schedule.model_validate(document)).startswith("instance.")


# Measuring


def test_metrics_of_gpipe() -> None:
    """GPipe with p = 2, m = 4, unit times: (m + p - 1) * 3 ticks, of which each stage computes m * 3."""
    step = zbopt.instance(stages=2, microbatches=4, forward="1ms", backward="1ms", weight="1ms", memory_cap=3)
    found = zbopt.metrics(zbopt.heuristics.gpipe(step.replace(memory_cap=None)))
    assert (found.makespan, found.value, found.makespan_s) == (15, 15, 0.015)
    assert found.bubble_over_makespan == pytest.approx(1 / 5)
    assert [stage.idle_ticks for stage in found.stages] == [3, 3]
    assert (found.peak_memory, found.fits) == (4, True)
    capped = zbopt.metrics(zbopt.heuristics.gpipe(step.replace(memory_cap=None)).model_copy(update={"instance": step}))
    assert (capped.fits, [stage.fits for stage in capped.stages]) == (False, [False, False])
    assert found.record()["makespan_s"] == 0.015
    assert [set(row) for row in found.stage_records()] == [set(found.stage_records()[0])] * 2


def test_a_result_stands_for_its_schedule() -> None:
    """Whatever takes a schedule takes a result; one without a schedule is refused with the reason."""
    step = zbopt.instance(stages=2, microbatches=4, memory_cap=2)
    result = zbopt.solve(step)
    assert result.require_schedule() is result.schedule
    assert zbopt.metrics(result) == zbopt.metrics(result.require_schedule())
    nothing = zbopt.solve(step.replace(memory_cap=0.5))
    assert refusal(lambda: zbopt.metrics(nothing)) == (
        "infeasible: stage 0: memory cap 1/2 is below the 1 that one microbatch needs; raise it to 1"
    )


# Comparing


def test_comparison_has_a_row_for_each_known_schedule() -> None:
    """1F1B with a split backward takes m(F + B + W) + 2(p - 1) = 30 ticks at p = 4, m = 8; the optimum is no longer."""
    comparison = zbopt.compare(zbopt.instance(stages=4, microbatches=8, memory_cap=4), time_limit_s=5)
    names = [row.name for row in comparison.rows]
    assert set(HEURISTICS) - {"zb-auto"} < set(names)
    assert {"zb-1p", "zb-2p"} < set(names)
    known = comparison.row("1f1b-split")
    assert (known.makespan, known.peak_memory, known.fits) == (30, 4, True)
    assert comparison.row("gpipe").fits is False
    missing = comparison.row("zb-v")
    assert missing.schedule is None
    assert missing.makespan is None
    assert missing.reason
    best = comparison.rows[-1]
    assert best.makespan == comparison.result.value
    assert best.schedule is not None
    assert [record["schedule"] for record in comparison.records()] == names
    assert str(comparison).splitlines()[0].split() == ["schedule", "makespan", "bubble", "peak", "fits"]
    assert "no row of the comparison" in refusal(lambda: comparison.row("zb"))


def test_comparison_of_an_infeasible_instance_says_why() -> None:
    """The row of the optimum has the reason in place of figures."""
    comparison = zbopt.compare(zbopt.instance(stages=2, microbatches=2, memory_cap=0.5), time_limit_s=5)
    assert "raise it to 1" in str(comparison.row("optimum").reason)


def test_comparison_of_instances_counts_their_ticks() -> None:
    """The best is the least time, not the least number of ticks, and bare units do not compare with times."""
    fast = zbopt.instance(stages=1, microbatches=2, forward="1ms", backward="1ms", weight="1ms", tick="1us")
    slow = zbopt.instance(stages=1, microbatches=2, forward="2ms", backward="2ms", weight="2ms", tick="1ms")
    comparison = zbopt.compare({"slow": slow, "fast": fast}, time_limit_s=5)
    assert comparison.best == "fast"
    assert comparison.row("optimum", "fast").makespan_s == 0.006
    bare = zbopt.instance(stages=1, microbatches=2)
    assert "give all of them one" in refusal(lambda: zbopt.compare({"slow": slow, "bare": bare}))
    assert "no instance is given" in refusal(lambda: zbopt.compare({}))


# Building schedules from orders


def test_a_schedule_from_orders() -> None:
    """A serial order of one stage has no gaps, so that its makespan is the sum of all times."""
    step = zbopt.instance(stages=1, microbatches=3, forward=2, backward=3, weight=1)
    order = [(kind, 0, j) for j in range(3) for kind in (zbopt.Kind.F, zbopt.Kind.B, zbopt.Kind.W)]
    made = zbopt.schedule(step, [order], name="mine")
    assert zbopt.validate(step, made).valid
    assert made.provenance.source == "mine"
    assert zbopt.metrics(made).makespan == 18
    assert all(a.end == b.start for a, b in pairwise(made.by_stage()[0]))


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ([], "0 orders for 1 stages"),
        ([[("F", 0, 0), ("F", 0, 0)]], "the order has it twice"),
        ([[("F", 1, 0)]], "the stage holds virtual stages (0,) only"),
        ([[("F", 0, 9)]], "no such op"),
        ([[("BW", 0, 0)]], "no such op"),
        ([[("X", 0, 0)]], "'X' is not a valid Kind"),
        ([[("B", 0, 0), ("F", 0, 0)]], "wait"),
    ],
)
def test_wrong_orders(orders: list[list[tuple[str, int, int]]], message: str) -> None:
    """Each is refused with the op that is wrong."""
    step = zbopt.instance(stages=1, microbatches=2)
    assert message in refusal(lambda: zbopt.schedule(step, orders))  # type: ignore[arg-type]


# Drawing


def test_pages_and_pictures(tmp_path: Path) -> None:
    """One schedule, a list, and several by name are drawn; the page has the names, the picture one chart for each."""
    step = zbopt.instance(stages=2, microbatches=4)
    gpipe, best = zbopt.heuristics.gpipe(step), zbopt.solve(step)
    for number, given in enumerate((gpipe, best, [gpipe, best], {"GPipe": gpipe, "ours": best})):
        zbopt.report(given, tmp_path / f"{number}.html")
        zbopt.plot(given, tmp_path / f"{number}.svg")
    page = (tmp_path / "3.html").read_text()
    assert "GPipe" in page
    assert "ours" in page
    figure = zbopt.plot({"GPipe": gpipe, "ours": best})
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["GPipe", "ours"]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim() == (0, 15)
    again = tmp_path / "again.svg"
    zbopt.plot(gpipe, again)
    assert again.read_bytes() == (tmp_path / "0.svg").read_bytes()


def test_pictures_on_given_axes() -> None:
    """The figure is the caller's, and each schedule needs its axes."""
    from matplotlib.figure import Figure

    step = zbopt.instance(stages=2, microbatches=2)
    gpipe = zbopt.heuristics.gpipe(step)
    figure = Figure()
    axes = figure.subplots(2, 1)
    assert zbopt.plot([gpipe, gpipe], ax=list(axes)) is figure
    assert zbopt.plot(gpipe, ax=axes[0]) is figure
    assert (
        refusal(lambda: zbopt.plot(gpipe, ax=list(axes)))
        == "ax: 2 axes are given, 1 is needed; give one for each schedule"
    )


def test_pictures_refused(tmp_path: Path) -> None:
    """Schedules without a common axis are refused, and files that cannot be written."""
    step = zbopt.instance(stages=2, microbatches=2)
    gpipe = zbopt.heuristics.gpipe(step)
    timed = zbopt.heuristics.gpipe(step.replace(tick="1us"))
    assert "no common axis" in refusal(lambda: zbopt.plot([gpipe, timed]))
    assert "no picture's" in refusal(lambda: zbopt.plot(gpipe, tmp_path / "a.txt"))
    assert "there is no directory" in refusal(lambda: zbopt.plot(gpipe, tmp_path / "no" / "a.svg"))
    assert "out of range" in refusal(lambda: zbopt.plot(gpipe, width_inches=100))
    assert "no schedule is given" in refusal(lambda: zbopt.plot([]))
    assert "is a directory" in refusal(lambda: zbopt.report(gpipe, tmp_path))


def test_a_page_says_what_is_wrong_and_what_is_proved(tmp_path: Path) -> None:
    """A schedule with an op too few is shown with its violation, a claim of its file with the file's argument."""
    step = zbopt.instance(stages=2, microbatches=2)
    gpipe = zbopt.heuristics.gpipe(step)
    broken = gpipe.model_copy(update={"events": gpipe.events[1:]})
    zbopt.report(broken, tmp_path / "broken.html")
    assert "missing_task" in (tmp_path / "broken.html").read_text()
    claim = {"lower_bound": 9, "proved_by": "somebody"}
    claimed = gpipe.model_copy(update={"provenance": gpipe.provenance.model_copy(update=claim)})
    zbopt.report(claimed, tmp_path / "claimed.html")
    assert "somebody" in (tmp_path / "claimed.html").read_text()


# Files


def test_write_and_read(tmp_path: Path) -> None:
    """An instance, a schedule and the schedule of a result are read back equal to what was written."""
    step = zbopt.instance(stages=2, microbatches=2, forward="1ms", backward="1ms", weight="1ms", memory_cap=2)
    result = zbopt.solve(step)
    zbopt.write(step, tmp_path / "step.json")
    zbopt.write(result, str(tmp_path / "schedule.json"))
    assert zbopt.read_instance(tmp_path / "step.json") == step
    assert zbopt.read_schedule(tmp_path / "schedule.json") == result.schedule
    assert "is a directory" in refusal(lambda: zbopt.write(step, tmp_path))


@pytest.mark.parametrize("form", ["torch-csv", "chrome-trace", "jaxpp", "sail-zb"])
def test_exported_schedules_come_back(form: str, tmp_path: Path) -> None:
    """Every op runs at the time that it had before."""
    step = zbopt.instance(stages=2, microbatches=4, forward=2, backward=3, weight=1)
    made = zbopt.heuristics.zb_h1(step)
    text = zbopt.export(made, form, tmp_path / "file")  # type: ignore[arg-type]
    assert (tmp_path / "file").read_text() == text
    again = zbopt.import_(tmp_path / "file", form, step)  # type: ignore[arg-type]
    assert again.by_stage() == made.by_stage()
    alone = zbopt.import_(tmp_path / "file", form)  # type: ignore[arg-type]
    assert {e.kind for e in alone.events} <= COMPUTE
    assert sum(e.kind is zbopt.Kind.F for e in alone.events) == 8


def test_exports_with_options() -> None:
    """A table with transfers has more actions; a layout spreads layers over virtual stages, of a schedule or not."""
    step = zbopt.instance(stages=2, microbatches=2)
    made = zbopt.heuristics.gpipe(step)
    assert len(zbopt.export(made, "torch-csv", comms=True)) > len(zbopt.export(made, "torch-csv"))
    assert zbopt.export(step, "megatron-layout", layers=[3, 2]) == zbopt.export(made, "megatron-layout", layers=[3, 2])
    assert zbopt.export(step, "megatron-layout", layers=6).count("t") in (1, 2, 6)


def test_event_lists_are_read(tmp_path: Path) -> None:
    """Times are those of the list; one that contradicts itself is refused."""
    file = tmp_path / "events.json"
    events = (
        '[{"id": "f", "stage": 0, "micro": 0, "kind": "F", "start": 0, "end": 1, "dependsOn": []},'
        '{"id": "b", "stage": 0, "micro": 0, "kind": "B", "start": 1, "end": 3, "dependsOn": ["f"]}]'
    )
    file.write_text(f'{{"stages": 1, "events": {events}}}')
    assert zbopt.metrics(zbopt.import_(file, "event-list")).makespan == 3
    file.write_text(f'{{"stages": 1, "events": {events.replace("f", "g", 1)}}}')
    assert "events.json" in refusal(lambda: zbopt.import_(file, "event-list"))


def test_exchanges_refused(tmp_path: Path) -> None:
    """Forms that there are not, options of another form, and schedules that another program would run wrongly."""
    step = zbopt.instance(stages=2, microbatches=2)
    made = zbopt.heuristics.gpipe(step)
    broken = made.model_copy(update={"events": made.events[1:]})
    assert "format = 'csv'" in refusal(lambda: zbopt.export(made, "csv"))  # type: ignore[arg-type]
    assert "format = 'csv'" in refusal(lambda: zbopt.import_("file", "csv"))  # type: ignore[arg-type]
    assert "comms goes with torch-csv" in refusal(lambda: zbopt.export(made, "jaxpp", comms=True))
    assert "layers goes with megatron-layout" in refusal(lambda: zbopt.export(made, "jaxpp", layers=3))
    assert "layers is missing" in refusal(lambda: zbopt.export(made, "megatron-layout"))
    assert "the schedule is not valid: missing_task" in refusal(lambda: zbopt.export(broken, "torch-csv"))
    assert "an instance has no order" in refusal(lambda: zbopt.export(step, "torch-csv"))
    (tmp_path / "table.csv").write_text("1F0\n0F0\n")
    assert "table.csv" in refusal(lambda: zbopt.import_(tmp_path / "table.csv", "torch-csv"))
    recomputed = zbopt.solve(step.replace(recompute="always"))
    assert "recompute" in refusal(lambda: zbopt.export(recomputed, "torch-csv")).lower()
