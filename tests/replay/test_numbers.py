"""Every gradient, weight and optimizer state against a plain loop, on four processes.

Five AdamW steps each: an overflow in step 1, clipping in step 3, everything stopped and resumed before step 2.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")

from zbopt.heuristics import HEURISTICS
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule, write_schedule
from zbopt.replay.launch import launch
from zbopt.replay.spec import Job, Network, Training

FULL = Training(steps=5, overflow_at=(1,), clip_norm=0.05, clip_at=(3,), loss_scale=1024.0, growth_interval=2)
DECISIONS = ["step", "skip", "step", "clip", "step"]


def _schedules(plans: SimpleNamespace) -> dict[str, Schedule]:
    unit = Instance.uniform(stages=4, microbatches=8)
    fused = {"backward_ticks": None, "weight_ticks": None, "fused_backward_ticks": 2}
    looped = Instance.uniform(stages=4, microbatches=8, placement="interleaved", virtual=2, **fused)  # type: ignore[arg-type]
    found = {
        "1f1b": HEURISTICS["1f1b"](Instance.uniform(stages=4, microbatches=8, **fused)),  # type: ignore[arg-type]
        "zb-h1": HEURISTICS["zb-h1"](unit),
        "interleaved": HEURISTICS["interleaved"](looped),
        "v": plans.greedy(Instance.uniform(stages=4, microbatches=8, placement="v", virtual=2)),
        "odd": plans.all_forward((0, 1, 1, 0, 2, 3, 3, 3, 2, 0), 4),
        "w-backwards": plans.all_forward((0, 1, 2, 3), 4, [3, 2, 1, 0]),
        "post": plans.zb_h1(4, 8, barrier="post_validation"),
        "v-post": plans.greedy(
            Instance.uniform(stages=4, microbatches=8, placement="v", virtual=2, barrier="post_validation")
        ),
        "pair": plans.zb_h1(2, 4),
        "pair-post": plans.zb_h1(2, 4, barrier="post_validation"),
    }
    for cap in (3, 4, 6):
        result = solve(Instance.uniform(stages=4, microbatches=8, memory_cap=cap), time_limit_s=30, workers=1)
        assert result.schedule is not None
        found[f"optimum-{cap}"] = result.schedule
    return found


MLP, GPT, UNTIED = Network(kind="mlp"), Network(kind="gpt"), Network(kind="gpt", tied=False)
CASES: dict[str, tuple[str, Network, Training]] = {
    f"{name} {network.kind}": (name, network, FULL)
    for name in ("1f1b", "zb-h1", "optimum-3", "optimum-4", "optimum-6", "interleaved", "v")
    for network in (MLP, GPT)
} | {
    "untied": ("zb-h1", UNTIED, FULL),
    "odd placement": ("odd", MLP, FULL),
    "W backwards": ("w-backwards", MLP, FULL),
    "W backwards, tied": ("w-backwards", GPT, FULL),
    "W backwards, engine's split": ("w-backwards", UNTIED, FULL.model_copy(update={"split": "engine"})),
    "W backwards, two passes": ("w-backwards", MLP, FULL.model_copy(update={"accumulation": 2})),
    "engine's split": ("zb-h1", UNTIED, FULL.model_copy(update={"split": "engine"})),
    "accumulation": ("v", UNTIED, FULL.model_copy(update={"accumulation": 2})),
    "post-validation": ("post", UNTIED, FULL.model_copy(update={"accumulation": 2})),
    "post-validation, clipped at every step": ("post", MLP, Training(steps=5, clip_norm=0.01)),
    "post-validation, V placement, tied": ("v-post", GPT, FULL),
    "two replicas": ("pair", UNTIED, FULL.model_copy(update={"data_parallel": 2})),
    "two replicas, tied, post-validation": ("pair-post", GPT, FULL.model_copy(update={"data_parallel": 2})),
    "float32": ("v", Network(kind="mlp", dtype="float32"), FULL),
    "bfloat16": ("zb-h1", Network(kind="gpt", dtype="bfloat16", tied=False), FULL),
}
"""Name -> (schedule, network, training)."""


@pytest.fixture(scope="module")
def proofs(plans: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Prove all cases in one start of four processes."""
    folder: Path = tmp_path_factory.mktemp("proofs")
    for name, schedule in _schedules(plans).items():
        write_schedule(schedule, folder / f"{name}.json")
    jobs = [
        Job(
            task="prove",
            schedule=str(folder / f"{name}.json"),
            network=network,
            training=training,
            resume_at=2,
            checkpoint_dir=str(folder / f"checkpoint{i}"),
        )
        for i, (name, network, training) in enumerate(CASES.values())
    ]
    return dict(zip(CASES, launch(jobs, 4), strict=True))


EXACT = [case for case, (name, network, _) in CASES.items() if not network.is_tied and name != "w-backwards"]


@pytest.mark.parametrize("case", EXACT)
def test_no_bit_differs_where_w_runs_in_microbatch_order(proofs: dict[str, dict[str, Any]], case: str) -> None:
    found = proofs[case]
    assert found["bit_equality_expected"]
    assert found["first_difference"] is None
    assert found["worst"] == {"gradient": 0.0, "weight": 0.0, "optimizer": 0.0}


@pytest.mark.parametrize("case", sorted(CASES.keys() - set(EXACT)))
def test_the_order_of_addition_is_all_that_differs_elsewhere(proofs: dict[str, dict[str, Any]], case: str) -> None:
    """No bit from a loop that adds up in the same order (a difference would be named); from a plain loop gradients at
    most 1e-15 at the same weights, in every step, and weights 1e-12 after five.
    """
    found = proofs[case]
    assert not found["bit_equality_expected"]
    assert found["first_difference"] is None
    assert 0 < found["worst"]["gradient"] <= 1e-15
    assert 0 < found["worst"]["weight"] <= 1e-12


@pytest.mark.parametrize("case", sorted(CASES))
def test_every_gradient_was_compared(proofs: dict[str, dict[str, Any]], case: str) -> None:
    """Parameters by hand: an MLP block has 6 (norm, two Linears), an attention block 11 (two norms, three Linears, qkv
    without bias), the embedding 2, the head 3. Steps that overflow have no gradients to compare.
    """
    name, network, training = CASES[case]
    blocks = {"interleaved": 8, "v": 8, "v-post": 8, "odd": 10}.get(name, 2 if name.startswith("pair") else 4)
    of_block = {"mlp": 6, "gpt": 11}[network.kind]
    parameters = blocks * of_block + (5 if network.kind == "gpt" else 0)
    with_gradient = training.steps - len(training.overflow_at)
    assert proofs[case]["gradients_compared"] == parameters * with_gradient * training.data_parallel


@pytest.mark.parametrize("case", [case for case, (*_, training) in CASES.items() if training.overflow_at])
def test_overflow_skips_and_the_norm_clips(proofs: dict[str, dict[str, Any]], case: str) -> None:
    assert proofs[case]["decisions"] == DECISIONS


def test_post_validation_takes_back_what_it_must(proofs: dict[str, dict[str, Any]]) -> None:
    """The overflow and the clipped step, on every process; every step where all are clipped."""
    assert proofs["post-validation"]["rollbacks"] == [2] * 4
    assert proofs["post-validation, clipped at every step"]["rollbacks"] == [5] * 4
    assert proofs["zb-h1 mlp"]["rollbacks"] == [0] * 4
