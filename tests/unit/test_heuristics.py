"""Heuristics against closed forms, published cases, brute bounds and the validator."""

from fractions import Fraction
from random import Random

import pytest

from zbopt.analysis.metrics import figures
from zbopt.graph import expand
from zbopt.heuristics import BASELINES, HEURISTICS, PLAN_FOR_THE_CAP, CannotFitError, NotApplicableError, candidates_of
from zbopt.heuristics.tools import build
from zbopt.problem.instance import Instance, Kind, Objective
from zbopt.timing import earliest_starts, least_span_starts, starts_of
from zbopt.validator import validate

uniform = Instance.uniform


def fused(p, m, forward=1, backward=2, **fields):
    """Return a linear instance whose backward is never split."""
    return uniform(
        stages=p,
        microbatches=m,
        forward_ticks=forward,
        backward_ticks=None,
        weight_ticks=None,
        fused_backward_ticks=backward,
        **fields,
    )


def run(name, instance):
    schedule = HEURISTICS[name](instance)
    assert validate(instance, schedule).violations == ()
    found = figures(schedule)
    assert schedule.provenance.source == f"heuristic:{name}"
    assert schedule.provenance.value == found.value(instance.objective)
    return found


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 5), (4, 1), (4, 2), (4, 8), (6, 12), (5, 3)])
@pytest.mark.parametrize("split", [False, True])
def test_gpipe_and_1f1b_closed_forms(p, m, split):
    """Makespan (m + p - 1)(F + BW); live activations m, and min(m, p - s) on stage s. B + W back to back is a BW."""
    instance = uniform(stages=p, microbatches=m, backward_ticks=2, weight_ticks=3) if split else fused(p, m, 1, 5)
    gpipe, one_f_one_b = run("gpipe", instance), run("1f1b", instance)
    assert gpipe.makespan == one_f_one_b.makespan == (m + p - 1) * 6
    assert gpipe.peak_memory == (m,) * p
    assert one_f_one_b.peak_memory == tuple(min(m, p - s) for s in range(p))


@pytest.mark.parametrize(("p", "m", "makespan", "bubble"), [(4, 8, 33, 3 / 11), (6, 12, 51, 5 / 17)])
def test_1f1b_bubble_ratio(p, m, makespan, bubble):
    """F = 1, BW = 2: 3(m + p - 1), bubble (p - 1)/(m + p - 1) of the makespan."""
    found = run("1f1b", fused(p, m))
    assert found.makespan == makespan
    assert found.bubble_over_makespan == pytest.approx(bubble)


def test_cases_of_the_pipeline_parallelism_tutor():
    """ezyang/pipeline-parallelism-tutor, engine tests 1 and 2: F = BW = 1, p=4 m=8: 22, peaks 4 3 2 1 and 8."""
    assert run("1f1b", fused(4, 8, backward=1)).makespan == 22
    assert run("1f1b", fused(4, 8, backward=1)).peak_memory == (4, 3, 2, 1)
    assert run("gpipe", fused(4, 8, backward=1)).makespan == 22
    assert run("gpipe", fused(4, 8, backward=1)).peak_memory == (8, 8, 8, 8)


def test_fewer_microbatches_than_stages_and_one_stage():
    """pytorch/torchtitan#775: p=4 m=2 must not hang, (m + p - 1)(F + BW) = 10. One stage: the load, 5 * 3 = 15."""
    assert run("1f1b", fused(4, 2, backward=1)).makespan == 10
    one_stage = uniform(stages=1, microbatches=5)
    two_streams = {"chimera", "dualpipe", "dualpipe-v"}
    round_robin = {"interleaved", "looped-bfs", "interleaved-zb", "interleaved-auto", "gis", "gis-h"}
    v = {"1f1b-v", "v-min", "v-half", "zb-v", "v-auto"}
    for name in HEURISTICS.keys() - round_robin - v - two_streams:
        assert run(name, one_stage).makespan == 15


def test_split_1f1b_sends_the_gradient_before_w():
    """p=2 m=1: F F B | B W, so 5 ticks; in one piece the gradient waits for W and it takes F F B W B W, 6."""
    instance = uniform(stages=2, microbatches=1)
    assert run("1f1b-split", instance).makespan == 5
    assert run("1f1b", instance).makespan == 6


@pytest.mark.parametrize(
    ("p", "v", "m", "makespan"), [(4, 2, 8, 57), (4, 2, 16, 105), (8, 4, 16, 213), (4, 3, 12, 117)]
)
def test_interleaved_closed_forms(p, v, m, makespan):
    """Megatron-LM, arXiv 2104.04473: (m v + p - 1)(F + BW) at F=1 BW=2 a chunk; 2(p-s-1) + (v-1)p + 1 chunks."""
    found = run("interleaved", fused(p, m, placement="interleaved", virtual=v))
    assert found.makespan == makespan == (m * v + p - 1) * 3
    assert [peak * v for peak in found.peak_memory] == [2 * (p - s - 1) + (v - 1) * p + 1 for s in range(p)]


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7, 9, 10, 11])
def test_interleaved_with_any_number_of_microbatches(m):
    """p=4 v=2: (m v + p - 1)(F + BW) from m = 4 on; Megatron refuses m = 10 (NVIDIA/Megatron-LM schedules.py)."""
    found = run("interleaved", fused(4, m, backward=1, placement="interleaved", virtual=2))
    assert found.makespan == (max(m, 4) * 2 + 3) * 2 if m >= 4 else found.makespan <= (4 * 2 + 3) * 2


@pytest.mark.parametrize(
    ("p", "m", "times"), [(4, 8, (1, 1, 1)), (8, 16, (1, 1, 1)), (4, 12, (10, 11, 8)), (1, 3, (2, 1, 3))]
)
def test_zb_h1_and_zb_h2_closed_forms(p, m, times):
    """arXiv 2401.10241, section 2: bubble (p-1)(F+B-W) at p activations; (p-1)(F+B-2W) at 2p - 1."""
    forward, backward, weight = times
    instance = uniform(
        stages=p,
        microbatches=m,
        forward_ticks=forward,
        backward_ticks=backward,
        weight_ticks=weight,
        objective="max_stage_span",
    )
    load = m * sum(times)
    h1, h2 = run("zb-h1", instance), run("zb-h2", instance)
    assert h1.max_stage_span - load == (p - 1) * (forward + backward - weight)
    assert h2.max_stage_span - load == max(0, (p - 1) * (forward + backward - 2 * weight))
    assert max(h1.peak_memory) == p
    assert max(h2.peak_memory) == 2 * p - 1


def test_zero_bubble_at_p4_m8():
    """Unit times: ZB-H1 27, the floor m(F+B+W) + (p-1)F; ZB-H2 span 24, no bubble; the automatic one no worse."""
    instance = uniform(stages=4, microbatches=8, objective="max_stage_span")
    assert run("zb-h1", instance).makespan == 27
    assert run("zb-h2", instance).max_stage_span == 24
    at = {cap: instance.model_copy(update={"memory_cap": (Fraction(cap),) * 4}) for cap in (4, 7)}
    assert run("zb-auto", at[4]).max_stage_span == 27
    assert run("zb-auto", at[7]).max_stage_span == 24


@pytest.mark.parametrize(
    ("p", "m", "cap", "optimum"),
    [
        (4, 16, 3, 57),
        (8, 8, 4, 43),
        (8, 16, 6, 61),
        (8, 16, 4, 79),
        (16, 32, 12, 123),
        (16, 32, 8, 155),
        (8, 16, 8, 55),
    ],
)
def test_list_stays_near_the_optimum_below_cap_p(p, m, cap, optimum):
    """Unit times, held until W; optima proved by plain CP-SAT. Within 3% of them, and never below."""
    found = run("list", uniform(stages=p, microbatches=m, memory_cap=cap))
    assert optimum <= found.makespan <= 1.03 * optimum


def test_list_serialises_where_one_microbatch_fills_the_cap():
    """Cap 1, p=3 m=4: one microbatch at a time on stage 0, F F F B B B W: 4 * 7."""
    assert run("list", uniform(stages=3, microbatches=4, memory_cap=1)).makespan == 28


@pytest.mark.parametrize("placement", ["interleaved", "v"])
def test_list_with_the_memory_of_one_microbatch_on_several_virtual_stages(placement):
    """Each stage holds two halves at once: cap 1 lets one microbatch through at a time, and locks nothing up."""
    found = run("list", uniform(stages=3, microbatches=4, memory_cap=1, placement=placement, virtual=2))
    assert max(found.peak_memory) == 1


@pytest.mark.parametrize(("p", "m"), [(4, 4), (4, 8), (4, 16), (8, 16)])
def test_list_on_v_placement_is_as_good_as_zb_v(p, m):
    """ZB-V at unit times a slice (arXiv 2405.15362): load 6m and (p - 1) F, 6m + p - 1, at p activations."""
    found = run("list", uniform(stages=p, microbatches=m, placement="v", virtual=2, memory_cap=p))
    assert found.makespan <= 6 * m + p - 1


def test_baselines_and_what_plans_for_the_cap_are_all():
    """Each heuristic is either a published schedule or plans for the memory cap."""
    assert {*BASELINES} | {*PLAN_FOR_THE_CAP} == {*HEURISTICS}
    assert not {*BASELINES} & {*PLAN_FOR_THE_CAP}


@pytest.mark.parametrize(
    ("fields", "left_out"),
    [
        ({}, {"1f1b-split", "gpipe", "1f1b"}),
        ({"backward_ticks": None, "weight_ticks": None, "fused_backward_ticks": 2}, {"1f1b-split"}),
        ({"communication": "link", "comm_ticks": 1}, set()),
        ({"recompute": "always", "recompute_ticks": 1}, set()),
        ({"fused_backward_ticks": 2, "overlapped_ticks": 3}, set()),
    ],
    ids=["plain", "plain-and-whole", "links", "dropped", "overlapped"],
)
def test_candidates_are_those_that_are_sometimes_best(fields, left_out):
    """Five baselines were never best; three more only where more than the ops of a step has to be placed.

    bench/README.md, "Which heuristics solve tries".
    """
    instance = Instance.model_validate(uniform(stages=4, microbatches=8).model_dump() | fields)
    never = {"looped-bfs", "interleaved-zb", "gis", "gis-h", "1f1b-v"}
    assert {*HEURISTICS} - {*candidates_of(instance)} == never | left_out


def test_every_heuristic_is_valid_on_random_instances():
    """Uneven times, all placements, caps, shares, barriers, both objectives, first virtual stage without B."""
    random = Random(7)
    ran = dict.fromkeys(HEURISTICS, 0)
    for _ in range(150):
        instance = _random_instance(random)
        for name in HEURISTICS:
            try:
                run(name, instance)
            except (CannotFitError, NotApplicableError):
                assert name != "list", "list runs wherever one microbatch fits"
                continue
            ran[name] += 1
    elsewhere = {"chimera", "dualpipe", "dualpipe-v"}  # tests/property/test_routes.py has instances for these
    assert min(count for name, count in ran.items() if name not in elsewhere) >= 10, ran


def _random_instance(random):
    p = random.randint(1, 4)
    stage_of = random.choice([[*range(p)], [*range(p)], [*range(p)] * 2, [*range(p), *reversed(range(p))]])
    if random.random() < 0.2:
        random.shuffle(stage_of)
    n = len(stage_of)

    def ticks(high=6):
        return [random.randint(1, high) for _ in range(n)]

    activation = [random.randint(1, 3) for _ in range(n)]
    fields = {"backward_ticks": ticks(), "weight_ticks": ticks(), "fused_backward_ticks": ticks(10)}
    if random.random() < 0.2:
        fields["backward_ticks"][0] = fields["fused_backward_ticks"][0] = None
    dropped = random.choice([(), ("fused_backward_ticks",), ("backward_ticks", "weight_ticks")])
    if fields["backward_ticks"][0] is None:
        dropped = ("fused_backward_ticks",)
    barrier = random.choice(["none", "global", "post_validation"])
    factor = random.choice([1, "5/4", 2, 5, None])
    return Instance(
        stages=p,
        microbatches=random.randint(1, 6),
        stage_of=stage_of,
        forward_ticks=ticks(),
        comm_ticks=random.choice([0, 1, 4]),
        activation=activation,
        weight_share=[Fraction(random.randint(0, 3), 3) for _ in range(n)],
        objective=random.choice([Objective.MAKESPAN, Objective.MAX_STAGE_SPAN]),
        barrier=barrier,
        optimizer_ticks=None if barrier == "none" else [random.randint(0, 3) for _ in range(p)],
        memory_cap=factor
        and [
            Fraction(factor) * sum(a for a, held in zip(activation, stage_of, strict=True) if held == s)
            for s in range(p)
        ],
        **{key: value for key, value in fields.items() if key not in dropped},
    )


def test_least_span_starts_is_least():
    """The largest cycle mean equals the least span that a plain search over T, from the load up, finds feasible."""
    random = Random(3)
    for _ in range(60):
        instance = _random_instance(random).model_copy(update={"memory_cap": None, "objective": Objective.MAKESPAN})
        schedule = HEURISTICS["list"](instance)
        graph = expand(instance)
        starts = starts_of(graph, schedule)
        rows = [[i for i in row if i in starts] for row in graph.resources]
        orders = [sorted(row, key=lambda i: (starts[i], graph.tasks[i].kind is Kind.O)) for row in rows]
        assert _span(graph, orders, least_span_starts(graph, orders)) == _least_span(graph, orders)


def _span(graph, orders, starts):
    return max(starts[row[-1]] + graph.tasks[row[-1]].duration_ticks - starts[row[0]] for row in orders)


def _least_span(graph, orders):
    """Raise each stage's first start to its last end less T until nothing moves; T fails once it moves too often."""
    span = max(sum(graph.tasks[i].duration_ticks for i in row) for row in orders)
    while True:
        release = {row[0]: 0 for row in orders}
        for _ in range(len(orders) + 1):
            starts = earliest_starts(graph, orders, release)
            ends = {row[0]: starts[row[-1]] + graph.tasks[row[-1]].duration_ticks for row in orders}
            raised = {first: max(starts[first], end - span) for first, end in ends.items()}
            if all(raised[first] == starts[first] for first in raised):
                return span
            release = raised
        span += 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "gpipe",
            "gpipe: stage 0 holds 8 at its peak, above its memory cap 3; raise the cap to 8 or take another schedule",
        ),
        (
            "1f1b",
            "1f1b: stage 0 holds 4 at its peak, above its memory cap 3; raise the cap to 4 or take another schedule",
        ),
        (
            "zb-h1",
            "zb-h1: stage 0 holds 4 at its peak, above its memory cap 3; raise the cap to 4 or take another schedule",
        ),
        (
            "zb-h2",
            "zb-h2: stage 0 holds 7 at its peak, above its memory cap 3; raise the cap to 7 or take another schedule",
        ),
    ],
)
def test_cap_errors_name_stage_peak_cap_and_way_out(name, text):
    with pytest.raises(CannotFitError) as error:
        HEURISTICS[name](uniform(stages=4, microbatches=8, memory_cap=3))
    assert str(error.value) == text
    assert (error.value.stage, error.value.cap) == (0, 3)


@pytest.mark.parametrize("name", ["list", "zb-auto"])
def test_cap_below_one_microbatch(name):
    with pytest.raises(CannotFitError) as error:
        HEURISTICS[name](uniform(stages=2, microbatches=2, memory_cap="1/2"))
    assert str(error.value) == (
        f"{name}: stage 0 holds 1 at its peak, above its memory cap 1/2; raise the cap to 1 or take another schedule"
    )


def test_schedules_that_are_not_defined_say_why():
    never_split, two_each = fused(2, 2), uniform(stages=2, microbatches=2, placement="v", virtual=2)
    for name in ("1f1b-split", "zb-h1", "zb-h2", "zb-auto"):
        with pytest.raises(NotApplicableError, match=f"{name}: the backward is never split; give backward_ticks and"):
            HEURISTICS[name](never_split)
    for name in ("1f1b", "1f1b-split", "zb-h1", "zb-h2", "zb-auto"):
        with pytest.raises(NotApplicableError, match=f"{name}: 4 virtual stages on 2 stages; it needs one"):
            HEURISTICS[name](two_each)
    with pytest.raises(NotApplicableError, match="interleaved: the placement is not round robin"):
        HEURISTICS["interleaved"](two_each)


def test_bug_what_b_adds_counted_from_f():
    """Two stages, four microbatches, unit times, two activations and what one B adds: 20 ticks instead of 14.

    Nothing is below 14: the last stage begins at 1 and has 12 ticks of work, of which only the W of its last B may
    follow that B, since another W that waits would hold 2 beside its 2; then the first stage has B and W to do:
    1 + 11 + 2.
    """
    instance = Instance.model_validate(
        {"stages": 2, "microbatches": 4, "memory_cap": 3, "gradient_state": 1}
        | dict.fromkeys(("forward_ticks", "backward_ticks", "weight_ticks"), 1)
    )
    for name in ("list", "zb-auto"):
        schedule = HEURISTICS[name](instance)
        assert validate(instance, schedule).violations == ()
        assert schedule.provenance.value == 14


def test_bug_a_graph_for_each_stage_above_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZB-H2 at p = 8 holds 2p - 1 - 2s: with room for 1 and a way to drop, all stages but the last are above at once.

    They were told one by one, each after a whole task graph: p of them. Two are enough, with every activation and
    with those dropped of all stages that were above.
    """
    fields = {"stages": 8, "microbatches": 16, "memory_cap": 1, "weight_share": 0, "recompute": "choose"}
    times = {"forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1}
    built = []
    monkeypatch.setattr(build, "expand", lambda instance: built.append(instance) or expand(instance))
    schedule = HEURISTICS["zb-h2"](Instance.model_validate(fields | times))
    assert validate(schedule.instance, schedule).valid
    assert len(built) == 2
