"""The memory ledger: every tensor's life, counted by hand, and the commands that print it and explain a schedule."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from zbopt.analysis.idle import Cause, explain
from zbopt.analysis.ledger import stage_ledgers
from zbopt.analysis.metrics import figures
from zbopt.cli import run
from zbopt.costs.runtimes import NODE_GRADIENTS, Runtime, run_by
from zbopt.formats.jaxpp import to_jaxpp
from zbopt.formats.order import order_of_schedule
from zbopt.formats.sail_zb import to_sail_zb
from zbopt.graph.memory import Tensor
from zbopt.heuristics import HEURISTICS
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event, Provenance, Schedule, Status, write_schedule
from zbopt.reports.ledger import ledger_page
from zbopt.reports.page import asked_rows
from zbopt.validator import Code, validate

ONE = {"stages": 1, "microbatches": 1, "forward_ticks": 2, "backward_ticks": 3, "weight_ticks": 1}


def _schedule(instance: Instance, *ops: tuple[Kind, int, int]) -> Schedule:
    """Events (kind, start, end) of microbatch 0 on virtual stage 0."""
    events = tuple(Event(kind, 0, 0, 0, start, end) for kind, start, end in ops)
    return Schedule(instance=instance, provenance=Provenance(source="hand"), events=events)


def test_every_tensor_has_its_life() -> None:
    """F [0, 2), R [5, 7), B [7, 10), W [12, 13) with activation 8, half of it for W, checkpoint 1, output 2, 3 from B.

    The activation: 1 for W from 0 to 13; 7 more during F, from 5 on 4 until B ends and 3 until W does. The output from
    0 to 10; what B adds from 7 to 13. Parameters 5 always. Live: 15 from 0, 8 from 2, 15 from 5, 18 from 7, 12 from 10.
    """
    instance = Instance.model_validate(
        ONE
        | {"activation": 8, "weight_share": 0.5, "recompute": "always", "checkpoint": 1, "boundary": 2}
        | {"gradient_state": 3, "parameters": 5}
    )
    schedule = _schedule(instance, (Kind.F, 0, 2), (Kind.R, 5, 7), (Kind.B, 7, 10), (Kind.W, 12, 13))
    assert validate(instance, schedule).violations == ()
    (ledger,) = stage_ledgers(schedule)
    lives = {(life.tensor, life.amount, life.begin, life.end) for life in ledger.lives}
    assert lives == {
        (Tensor.PARAMETERS, 5, 0, None),
        (Tensor.ACTIVATION, 1, 0, 13),
        (Tensor.ACTIVATION, 7, 0, 2),
        (Tensor.ACTIVATION, 4, 5, 10),
        (Tensor.ACTIVATION, 3, 5, 13),
        (Tensor.OUTPUT, 2, 0, 10),
        (Tensor.GRADIENT_STATE, 3, 7, 13),
    }
    assert ledger.curve == ((0, 15), (2, 8), (5, 15), (7, 18), (10, 12), (13, 5))
    assert (ledger.peak, ledger.peak_at) == (18, 7)
    assert sum(life.amount for life in ledger.holders) == 18
    assert figures(schedule).peak_memory == validate(instance, schedule).peak_memory == (18,)


def test_an_offloaded_activation_goes_at_the_end_of_out_and_comes_at_the_start_of_in() -> None:
    """Activation 8 of which 2 stays: 8 until OUT ends at 5, 2 until IN starts at 6, 8 until W ends at 14."""
    fields = {"activation": 8, "offload": "always", "offload_ticks": 3, "reload_ticks": 2, "offload_rest": 2}
    instance = Instance.model_validate(ONE | fields)
    ops = ((Kind.F, 0, 2), (Kind.OUT, 2, 5), (Kind.IN, 6, 8), (Kind.B, 8, 11), (Kind.W, 13, 14))
    schedule = _schedule(instance, *ops)
    assert validate(instance, schedule).violations == ()
    (ledger,) = stage_ledgers(schedule)
    assert ledger.curve == ((0, 8), (5, 2), (6, 8), (14, 0))
    assert {(life.amount, life.begin, life.end) for life in ledger.lives} == {(2, 0, 14), (6, 0, 5), (6, 6, 14)}


def test_receive_buffers_are_kept_for_as_many_microbatches() -> None:
    """Three stages, boundary 2: the ends receive one kind of tensor, the middle two; for 3 microbatches 6, 12, 6."""
    fields = {"stages": 3, "microbatches": 4, "forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1}
    for buffers, each in ((3, 6), ("all", 8), (9, 8)):
        instance = Instance.model_validate(fields | {"boundary": 2, "receive_buffers": buffers})
        ledgers = stage_ledgers(HEURISTICS["1f1b-split"](instance))
        static = [sum(life.amount for life in ledger.lives if life.taken_by is None) for ledger in ledgers]
        assert static == [each, 2 * each, each]


def test_commands_print_ledger_and_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ZB-H1 of 4 stages and 8 microbatches at unit times: stage 0 holds 4 activations, and idles 3 ticks of 27."""
    path = tmp_path / "schedule.json"
    instance = Instance.uniform(stages=4, microbatches=8, memory_cap=4)
    write_schedule(HEURISTICS["zb-h1"](instance), path)
    assert run(["ledger", str(path)]) == 0
    assert "stage 0: peak 4 of 4 from tick 3" in capsys.readouterr().out
    assert run(["ledger", str(path), "--stage", "3", "--json"]) == 0
    (stage,) = json.loads(capsys.readouterr().out)["stages"]
    assert (stage["stage"], stage["cap"], stage["peak"]) == (3, 4, max(amount for _, amount in stage["curve"]))
    assert len(stage["lives"]) == 8
    assert sum(life["amount"] for life in stage["holders"]) == stage["peak"]
    assert run(["explain", str(path)]) == 0
    page = capsys.readouterr().out
    assert "shares are of 108 ticks, 11.11 % of them idle" in " ".join(page.split())
    assert "critical path" in page
    assert run(["explain", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    whole, steady = record["whole_iteration"], record["steady_window"]
    assert (whole["denominator"], whole["idle"], sum(whole["by_cause"].values())) == (108, 12, 12)
    assert (steady["by_cause"]["fill"], steady["by_cause"]["drain"]) == (0, 0)
    assert steady["denominator"] == 4 * (steady["end"] - steady["begin"])
    assert record["critical_path"][-1]["end"] == 27
    assert run(["ledger", str(path), "--stage", "9"]) == 2
    assert "--stage 9: there is no such stage; give 0 to 3" in capsys.readouterr().err


def test_waiting_for_a_busy_host_link_is_named() -> None:
    """One stage, two microbatches that are offloaded over one link, OUT and IN of 3 ticks each.

    F0 [0,1) F1 [1,2), OUT0 [1,4), OUT1 [4,7), IN0 [7,10): B0 waits from 2 to 7 for the link and to 10 for the reload.
    """
    instance = Instance.model_validate(
        {"stages": 1, "microbatches": 2, "forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1}
        | {"offload": "always", "offload_ticks": 3}
    )
    ops = [(Kind.F, 0, 0), (Kind.F, 1, 1), (Kind.B, 0, 10), (Kind.W, 0, 11), (Kind.B, 1, 13), (Kind.W, 1, 14)]
    hosts = [(Kind.OUT, 0, 1), (Kind.OUT, 1, 4), (Kind.IN, 0, 7), (Kind.IN, 1, 10)]
    events = [Event(kind, 0, 0, j, start, start + 1) for kind, j, start in ops]
    events += [Event(kind, 0, 0, j, start, start + 3) for kind, j, start in hosts]
    schedule = Schedule(instance=instance, provenance=Provenance(source="hand"), events=tuple(events))
    assert validate(instance, schedule).violations == ()
    first, second, *_ = explain(schedule).idle
    assert (first.start, first.end, first.cause) == (2, 7, Cause.LINK)
    assert (second.start, second.end, second.cause) == (7, 10, Cause.TRANSFER)


def test_torch_splits_no_backward_on_the_first_stage() -> None:
    """F=1, B=2, W=1 on 2 stages: stage 0 has no B, and a W of 3; B of stage 1 adds 0.68 of the activation."""
    instance = Instance.uniform(stages=2, microbatches=4, backward_ticks=2, weight_share="1/2", memory_cap=6)
    instance = instance.model_copy(update={"boundary": (Fraction(1, 8),) * 2})
    torch = run_by(instance, Runtime.TORCH)
    assert (torch.backward_ticks, torch.weight_ticks) == ((None, 2), (3, 1))
    assert (torch.weight_share, torch.gradient_state) == ((1, 1), (NODE_GRADIENTS,) * 2)
    assert torch.receive_buffers == "all"
    result = solve(torch, time_limit_s=20, workers=1)
    assert result.schedule is not None
    assert validate(torch, result.schedule).valid
    queued = run_by(instance, Runtime.DEFERRED_WEIGHT)
    assert (queued.backward_ticks, queued.weight_share, queued.gradient_state) == ((2, 2), (1, 1), None)
    with pytest.raises(ValueError, match="runtime torch: the backward is never split"):
        run_by(
            Instance.uniform(stages=1, microbatches=1, backward_ticks=None, weight_ticks=None, fused_backward_ticks=1),
            Runtime.TORCH,
        )


@pytest.mark.parametrize("runtime", Runtime)
def test_a_runtime_leaves_what_is_given(runtime: Runtime) -> None:
    """Own figures of what B adds and of receive buffers stand, whatever a runtime would have."""
    given = {"gradient_state": (Fraction(1, 2),) * 2, "boundary": (Fraction(1, 8),) * 2, "receive_buffers": 3}
    instance = Instance.uniform(stages=2, microbatches=4).model_copy(update=given)
    made = run_by(instance, runtime)
    assert {name: getattr(made, name) for name in given} == given


def test_an_activation_goes_one_way_at_most() -> None:
    """Always recomputed and perhaps offloaded is refused; and the validator refuses R and OUT of one microbatch."""
    both = {"recompute": "always", "offload": "choose", "offload_ticks": 1}
    with pytest.raises(ValueError, match="virtual stage 0: recompute is always and offload is choose"):
        Instance.model_validate(ONE | both)
    instance = Instance.model_validate(ONE | both | {"recompute": "choose"})
    ops = ((Kind.F, 0, 2), (Kind.R, 2, 4), (Kind.OUT, 2, 3), (Kind.IN, 3, 4), (Kind.B, 4, 7), (Kind.W, 7, 8))
    (violation,) = validate(instance, _schedule(instance, *ops)).violations
    assert violation.code is Code.DROPPED_TWICE


@pytest.mark.parametrize("write", [order_of_schedule, to_jaxpp, to_sail_zb])
def test_tables_refuse_dropped_activations(write: Callable[[Schedule], object]) -> None:
    """No runtime's table has an R: what cannot be said is refused, not left out."""
    instance = Instance.model_validate(ONE | {"recompute": "always"})
    with pytest.raises(ValueError, match=r"it0/s0/v0/mb0/R: .* has no R; a runtime that recomputes"):
        write(HEURISTICS["list"](instance))


def test_flags_set_the_memory_fields_of_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag ends in its field, as the written file shows; ``--runtime`` sets what the split makes of them."""
    path = tmp_path / "schedule.json"
    flags = (
        "--stages 2 --micro 2 --activation 4 --mem-limit 40 --gradient-state 1,2 --boundary 0.5 --receive-buffers all"
    )
    flags += " --parameters 3 --gradients 3,4 --optimizer-state 6 --workspace 1 --reserve 2 --memory-unit GiB"
    flags += " --recompute choose,never --recompute-time 2 --checkpoint 1 --offload choose --offload-time 3"
    flags += f" --reload-time 2,4 --offload-rest 0.5 --host-link 0,0 --time-limit 5 --workers 1 -o {path}"
    assert run(["solve", *flags.split()]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "choose; OUT 3; IN 2, 4; 0.5 GiB stays" in page
    assert "by stage: static state, workspace, reserve and receive buffers" in page
    fields = json.loads(path.read_text())["instance"]
    assert {name: fields[name] for name in MEMORY} == MEMORY
    assert run(["solve", "--stages", "2", "--micro", "2", "--runtime", "torch", "--json"]) == 0
    instance = json.loads(capsys.readouterr().out)["instance"]
    assert (instance["backward_ticks"], instance["weight_ticks"]) == ([None, 1], [2, 1])
    for wrong, said in (
        ("--host-link 0,x", "'x' is not a whole number; write it as 8"),
        ("--offload choose", "offload and offload_ticks go together; give both, or neither"),
        ("--recompute sometimes", "recompute[0] = 'sometimes': must be 'never', 'always' or 'choose'"),
        ("--checkpoint 1", "checkpoint is given but recompute is not; set recompute to always or choose"),
        ("--recompute always --checkpoint 2", "checkpoint[0] = 2 is above the activation 1 of that virtual stage"),
        ("--recompute-time 2", "recompute_ticks is given but recompute is not; set recompute to always or choose"),
        (
            "--receive-buffers 2",
            "receive_buffers is given but boundary is not; give the memory of what a stage receives",
        ),
        ("--host-link 0", "reload_ticks or host_link is given but offload is not; give offload and offload_ticks too"),
    ):
        assert run(["solve", "--stages", "1", "--micro", "2", *wrong.split()]) == 2
        assert said in capsys.readouterr().err


MEMORY = {
    "activation": [4, 4],
    "gradient_state": [1, 2],
    "boundary": [0.5, 0.5],
    "receive_buffers": "all",
    "parameters": [3, 3],
    "gradients": [3, 4],
    "optimizer_state": [6, 6],
    "workspace": [1, 1],
    "reserve": [2, 2],
    "memory_unit": "GiB",
    "recompute": ["choose", "never"],
    "recompute_ticks": [2, 2],
    "checkpoint": [1, 1],
    "offload": ["choose", "choose"],
    "offload_ticks": [3, 3],
    "reload_ticks": [2, 4],
    "offload_rest": [0.5, 0.5],
    "host_link": [0, 0],
}


def test_infeasible_counts_what_dropping_leaves() -> None:
    """Two slices of 1 on a stage: kept they need 2; with checkpoints of 1/4 the first leaves 1/4 beside a whole 1."""
    fields = {"stages": 1, "stage_of": [0, 0], "microbatches": 2, "activation": 1}
    fields |= {"forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1, "memory_cap": "6/5"}
    for more, needed in (({}, 2), ({"recompute": "choose", "checkpoint": "1/4"}, Fraction(5, 4))):
        result = solve(Instance.model_validate(fields | more), workers=1)
        assert result.status is Status.INFEASIBLE
        assert result.infeasible is not None
        assert result.infeasible.needed == needed


def test_pages_carry_units_and_iterations() -> None:
    """The peak with its unit and time; of several iterations, which one a tensor is of."""
    fields = {"stages": 1, "microbatches": 1, "forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1, "tick": "2ms"}
    fields |= {"memory_unit": "GiB", "activation": 3, "memory_cap": 4, "iterations": 2, "barrier": "global"}
    made = HEURISTICS["1f1b-split"](Instance.model_validate(fields))
    page = list(ledger_page(made.instance, stage_ledgers(made), whole=True))
    assert page[0] == "stage 0: peak 3 of 4 GiB from tick 0"
    assert any("activation  it1/v0/mb0" in line for line in page)
    assert dict(asked_rows(made.instance))["memory cap"] == "4 GiB on each stage"


def test_bug_validate_rounded_peaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``validate --json`` gave a peak of 7/3 as 2.333..., ``ledger --json`` as it is: 2, and 1/3 from a B to its W."""
    path = tmp_path / "schedule.json"
    write_schedule(HEURISTICS["zb-h1"](Instance.uniform(stages=2, microbatches=3, weight_share="1/3")), path)
    assert run(["ledger", str(path), "--json"]) == 0
    peaks = [stage["peak"] for stage in json.loads(capsys.readouterr().out)["stages"]]
    assert any("/3" in str(peak) for peak in peaks)
    assert run(["validate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_memory"] == peaks
