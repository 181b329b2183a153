"""Tables of ``zbopt export --to torch-csv`` in PyTorch's own loader and runtime, with no code of zbopt in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")

from zbopt.cli import run
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule, write_schedule
from zbopt.replay.lowering import addition_order

RANKS, MICROBATCHES = 4, 8
UNIT = {"forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1}
ODD = (0, 1, 1, 0, 2, 3, 3, 3, 2, 0)
"""Unequal numbers of virtual stages, neighbours on one rank, and a rank that comes back."""


def _schedules() -> dict[str, Schedule]:
    shape = {"stages": RANKS, "microbatches": MICROBATCHES}
    whole = {"backward_ticks": None, "weight_ticks": None, "fused_backward_ticks": 2}
    loop = {"placement": "interleaved", "virtual": 2}
    return {
        "1f1b": HEURISTICS["1f1b"](Instance.uniform(**shape, **whole)),  # type: ignore[arg-type]
        "zb-h1": HEURISTICS["zb-h1"](Instance.uniform(**shape)),
        "interleaved": HEURISTICS["interleaved"](Instance.uniform(**shape, **loop, **whole)),  # type: ignore[arg-type]
        "v": HEURISTICS["list"](Instance.uniform(**shape, placement="v", virtual=2)),
        "odd": HEURISTICS["list"](Instance.model_validate(shape | UNIT | {"stage_of": ODD})),
    }


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Map each case to its bit-equal gradients, of all ranks together. One start of four processes runs all cases."""
    folder: Path = tmp_path_factory.mktemp("tables")
    cases = []
    for name, schedule in _schedules().items():
        assert addition_order(schedule).by_microbatch, "gradients of another order differ in their last bits"
        write_schedule(schedule, folder / f"{name}.json")
        for form, flags in (("compute_only", []), ("compute_comms", ["--comms"])):
            table = f"{name}.{form}.csv"
            wanted = [str(folder / f"{name}.json"), "--to", "torch-csv", "-o", str(folder / table), *flags]
            assert run(["export", *wanted]) == 0
            cases.append((table, form, schedule.instance.stage_of, MICROBATCHES))
    (folder / "cases.json").write_text(json.dumps(cases))
    worker = str(Path(__file__).with_name("csv_worker.py"))
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, worker, str(folder), str(rank), str(RANKS)],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=900)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0] * RANKS, "\n".join(text[-1500:] for text in said)
    counts = [json.loads((folder / f"equal{rank}.json").read_text()) for rank in range(RANKS)]
    return {case[0]: sum(column) for case, column in zip(cases, zip(*counts, strict=True), strict=True)}


@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved", "v", "odd"])
def test_the_table_runs_with_every_gradient_equal_to_the_bit(equal: dict[str, int], name: str, form: str) -> None:
    """A virtual stage has two Linears with bias: 4 gradients; 4, 8 or 10 virtual stages."""
    virtual_stages = {"interleaved": 8, "v": 8, "odd": len(ODD)}.get(name, RANKS)
    assert equal[f"{name}.{form}.csv"] == 4 * virtual_stages
