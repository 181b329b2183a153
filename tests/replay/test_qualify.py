"""The report's parts by hand-made traces, without torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Schedule
from zbopt.replay.qualify import Outcome, Proof, Report, baseline_of, dependencies, memory, numbers, performance
from zbopt.replay.spec import Network, Training
from zbopt.replay.trace import Trace, TraceEvent, TraceStep
from zbopt.validator import validate

pytestmark = pytest.mark.alone


def _trace(
    plan: Schedule, tick_ns: int = 1000, *, processes: int = 1, kind: str = "mlp", memory_bytes: int = 0
) -> Trace:
    events = tuple(
        TraceEvent(
            kind=e.kind,
            stage=e.stage,
            virtual_stage=e.virtual_stage,
            microbatch=e.microbatch,
            asked=e.start * tick_ns,
            start=e.start * tick_ns,
            end=e.end * tick_ns,
            memory_bytes=memory_bytes,
        )
        for e in plan.events
    )
    return Trace(
        plan=plan,
        network=Network(kind=kind),  # type: ignore[arg-type]
        training=Training(),
        device="cpu",
        processes=processes,
        simulated=kind == "wait",
        steps=(TraceStep(step=0, events=events),),
    )


def test_dependencies(plans: SimpleNamespace) -> None:
    plan = plans.zb_h1(2, 2)
    assert dependencies(plan, _trace(plan)).outcome is Outcome.PASSED
    assert dependencies(plan, None).outcome is Outcome.NOT_RUN
    cut = plan.model_copy(update={"events": plan.events[1:]})
    assert dependencies(cut, None).outcome is Outcome.FAILED
    assert dependencies(plan, _trace(cut)).outcome is Outcome.FAILED


@pytest.mark.parametrize(("observed", "outcome"), [(300, Outcome.PASSED), (301, Outcome.FAILED)])
def test_memory_against_the_ledger(plans: SimpleNamespace, observed: int, outcome: Outcome) -> None:
    """ZB-H1 p=3 m=6 holds at most three microbatches on every stage; of 100 bytes each, all until W, that is 300."""
    plan = plans.zb_h1(3, 6)
    trace = _trace(plan, processes=3, memory_bytes=observed)
    part = memory(plan, trace, {"activation_bytes": [100] * 3, "held_bytes": [100] * 3})
    assert part.figures["ledger_bytes"] == [300, 300, 300]
    assert part.outcome is outcome


def test_what_is_released_at_b_is_not_in_the_ledger(plans: SimpleNamespace) -> None:
    """GPipe's order, one stage, two microbatches, a quarter kept until W: 2 F's hold 200 bytes, two B's leave 50."""
    plan = plans.all_forward((0,), 2)
    part = memory(plan, _trace(plan, memory_bytes=200), {"activation_bytes": [100], "held_bytes": [25]})
    assert part.figures["ledger_bytes"] == [200]
    assert part.outcome is Outcome.PASSED


def test_performance(plans: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero bubble against 1F1B, p=2 m=4 at F=B=W=1: 13 and 15 ticks, as planned, of ops that only wait."""
    zero, one = plans.zb_h1(2, 4), plans.one_f_one_b(2, 4)
    fast, slow = (_trace(plan, processes=2, kind="wait") for plan in (zero, one))
    assert (fast.median_step().makespan_ns, slow.median_step().makespan_ns) == (13_000, 15_000)
    assert performance(fast, slow).outcome is Outcome.PASSED
    assert performance(slow, fast).outcome is Outcome.FAILED
    assert "of ops that only wait" in performance(fast, slow).sentence
    assert performance(fast, None).outcome is Outcome.NOT_RUN
    assert performance(_trace(zero), slow).sentence.startswith("all stages share one process")
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    shared = performance(_trace(zero, processes=2), _trace(one, processes=2))
    assert shared.outcome is Outcome.NOT_RUN
    assert shared.sentence.startswith("2 processes share 1 cores")


def test_the_steady_window_by_hand(plans: SimpleNamespace) -> None:
    """1F1B p=2 m=4, F=1 BW=2: stage 1 works from 1 to 13, stage 0 from 0 to 15; in 1..13 stage 1 is never idle, and
    stage 0 does its work of 12 less F0 before it and BW3 after it: 9 of 12 ticks. Idle 3 of 24.
    """
    one = plans.one_f_one_b(2, 4)
    figures = performance(_trace(one, processes=2, kind="wait"), _trace(one, processes=2, kind="wait")).figures
    assert figures["candidate"]["steady_window_ns"] == 12_000
    assert figures["candidate"]["steady_idle_share"] == pytest.approx(3 / 24)


def test_nothing_passes_by_default() -> None:
    assert numbers(None).outcome is Outcome.NOT_RUN
    passed, missing = Proof("a", Outcome.PASSED, ""), Proof("b", Outcome.NOT_RUN, "")
    failed = Proof("c", Outcome.FAILED, "")
    assert Report("s", None, (passed,)).verdict == "qualified"
    assert Report("s", None, (passed, missing)).verdict == "incomplete"
    assert Report("s", None, (passed, missing, failed)).verdict == "failed"


@pytest.mark.parametrize(("placement", "virtual"), [("linear", 1), ("interleaved", 2), ("v", 2)])
def test_the_baseline_is_1f1b_on_the_same_layers(placement: str, virtual: int) -> None:
    """Two slices of F=B=W=1 a stage become one of 2: 1F1B lasts (m + p - 1) (F + BW) = (6 + 2) 3 and twice that."""
    instance = Instance.uniform(stages=3, microbatches=6, placement=placement, virtual=virtual, memory_cap=2)
    baseline = baseline_of(instance)
    assert baseline is not None
    assert baseline.instance.stage_of == (0, 1, 2)
    assert validate(baseline.instance, baseline).valid
    assert max(e.end for e in baseline.events) == (6 + 3 - 1) * 3 * virtual
    assert {e.kind for e in baseline.events} <= {Kind.F, Kind.B, Kind.W, Kind.BW}


@pytest.mark.parametrize(
    "fields",
    [
        {"gradient_state": [1, 2, 3, 4]},
        {"boundary": 1},
        {"reduction_ticks": 2},
        {"recompute": "always", "recompute_ticks": 1},
        {"offload": "always", "offload_ticks": 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_the_baseline_joins_every_field_of_virtual_stages(fields: dict[str, object]) -> None:
    """A whole stage has what its slices have together: the sum of each time and amount, and their common choice."""
    instance = Instance.uniform(stages=2, microbatches=4, placement="v").replace(**fields)
    baseline = baseline_of(instance)
    assert baseline is not None
    joined = baseline.instance
    assert joined.stage_of == (0, 1)
    assert validate(joined, baseline).valid
    assert (joined.gradient_state, joined.boundary) == (
        None if instance.gradient_state is None else (3, 7),
        None if instance.boundary is None else (1, 1),
    )
    for whole, sliced in (
        (joined.reduction_ticks, instance.reduction_ticks),
        (joined.recompute_ticks, instance.recompute_ticks),
        (joined.offload_ticks, instance.offload_ticks),
    ):
        assert whole == (
            None if sliced is None else tuple(a + b for a, b in zip(sliced[::2], sliced[1::2], strict=True))
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"placement": "bidirectional"},
        {"microbatch_times": [{"microbatches": [1], "forward_ticks": [1, 2, 3, 4]}]},
        {"boundary": [1, 2, 3, 4]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_the_baseline_keeps_virtual_stages_that_cannot_be_joined(fields: dict[str, object]) -> None:
    """Two ways, unlike microbatches and boundaries that differ have no value for a whole stage: nothing is refused."""
    fields = dict(fields)
    plain = Instance.uniform(stages=2, microbatches=4, placement=str(fields.pop("placement", "v")))
    baseline = baseline_of(plain.replace(**fields))
    assert baseline is None or baseline.instance.stage_of == plain.stage_of
