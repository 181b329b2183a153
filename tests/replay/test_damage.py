"""Damage behind the checks is found by the numbers; processes that die or halt end the run, which goes on later."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")

from zbopt.problem.schedule import write_schedule
from zbopt.replay.launch import GRACE_S, ReplayError, launch, patience_ends
from zbopt.replay.spec import Job, Network, Training

QUIET = ("missing-w", "late-w", "no-reduction", "swapped-microbatch", "stale-buffer")


@pytest.fixture(scope="module")
def damaged(plans: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Run each damage that raises no error by itself, and no damage, on GPipe's order in one process.

    A mean squared error keeps the output, which the engine detaches, so that a swap raises; cross entropy does not.
    """
    path = tmp_path_factory.mktemp("damage") / "plan.json"
    write_schedule(plans.all_forward((0, 1, 2, 3), 4), path)
    jobs = [
        Job(
            task="prove",
            schedule=str(path),
            network=Network(kind="gpt", tied=False) if damage == "swapped-microbatch" else Network(kind="mlp"),
            training=Training(steps=2),
            single_process=True,
            damage=damage,
        )
        for damage in (*QUIET, None)
    ]
    return dict(zip((*QUIET, "none"), launch(jobs, 1), strict=True))


def test_without_damage_nothing_differs(damaged: dict[str, dict[str, Any]]) -> None:
    assert damaged["none"]["first_difference"] is None


@pytest.mark.parametrize(
    ("damage", "step", "parameter", "error"),
    [
        ("missing-w", 0, "v2.block2.down.weight", None),
        ("late-w", 0, "v2.block2.down.weight", None),
        ("no-reduction", 0, "v2.block2.", 3.0),
        ("swapped-microbatch", 0, "v0.", None),
        ("stale-buffer", 1, "v0.block0.", None),
    ],
)
def test_damage_is_named(
    damaged: dict[str, dict[str, Any]], damage: str, step: int, parameter: str, error: float | None
) -> None:
    """The first parameter that differs; a step without the reduction has m = 4 times the mean, which is off by 3."""
    first = damaged[damage]["first_difference"]
    assert (first["step"], first["what"]) == (step, "gradient")
    assert first["parameter"].startswith(parameter)
    assert first["error"] > 1e-3
    if error is not None:
        assert first["error"] == pytest.approx(error)


def test_a_backward_without_its_forward_ends_the_run(plans: SimpleNamespace, tmp_path: Path) -> None:
    """ZB-H1's last stage runs F0 B0 F1 B1: with F0 after F1, its first backward has nothing to go back through."""
    write_schedule(plans.zb_h1(2, 4), tmp_path / "plan.json")
    job = Job(task="prove", schedule=str(tmp_path / "plan.json"), single_process=True, damage="swapped-microbatch")
    with pytest.raises(ReplayError, match=r"process 0 of 1 failed in step 0 1I0: "):
        launch([job], 1)


def _job(folder: Path, name: str, **more: Any) -> Job:
    return Job(
        task="replay",
        schedule=str(folder / "plan.json"),
        network=Network(kind="gpt"),
        training=Training(steps=5, overflow_at=(1,), clip_norm=1.0),
        checkpoint_dir=str(folder / name),
        checkpoint_every=2,
        **more,
    )


def test_a_killed_process_ends_the_others_and_resuming_gives_the_same_weights(
    plans: SimpleNamespace, tmp_path: Path
) -> None:
    """Stage 1 dies in step 3; the last checkpoint has two steps."""
    write_schedule(plans.zb_h1(2, 4), tmp_path / "plan.json")
    timeout_s = 60.0
    text = r"process 1 of 2 was killed by SIGKILL in step 3 1\w+\d; .*--resume; the others ended (\d+\.\d) s later"
    with pytest.raises(ReplayError, match=text) as failure:
        launch([_job(tmp_path, "cut", damage="killed:1:3")], 2, timeout_s=timeout_s)
    found = re.search(text, str(failure.value))
    assert found is not None
    assert float(found[1]) < timeout_s
    again, whole = (
        launch([_job(tmp_path, "cut", resume=True)], 2, timeout_s=timeout_s)[0],
        launch([_job(tmp_path, "whole")], 2, timeout_s=timeout_s)[0],
    )
    assert (again["first_step"], whole["first_step"]) == (2, 0)
    assert again["weights"] == whole["weights"]
    assert len(again["weights"]) == 2 * 11 + 5


def test_a_halted_process_is_named(plans: SimpleNamespace, tmp_path: Path) -> None:
    """No process dies by itself here: the other one runs into its timeout, and the halted one is killed."""
    write_schedule(plans.zb_h1(2, 2), tmp_path / "plan.json")
    with pytest.raises(ReplayError, match=r"process 1 of 2 does not answer in step 1 1\w+\d for \d+\.\d s; resume"):
        launch([_job(tmp_path, "none", damage="stopped:1:1")], 2, timeout_s=5.0)


def test_bug_a_halted_process_was_given_a_second_timeout() -> None:
    """Halted at 100 s, noticed by the other's timeout of 30 s at 130: given up with it, after the grace, not at 160.

    One that turned to its op only at 120 may still wait for another until 150; of one before its first op nothing is
    known, and it has the whole timeout.
    """
    assert patience_ends(130, 100, 30) == 130 + GRACE_S
    assert patience_ends(130, 120, 30) == 150 + GRACE_S
    assert patience_ends(130, None, 30) == 160 + GRACE_S
    assert patience_ends(130, 131, 30) == 160 + GRACE_S
