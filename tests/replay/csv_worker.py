"""One rank of ``test_torch_csv.py``: loads each table with PyTorch's own loader, runs it, compares every gradient.

Called as ``python csv_worker.py FOLDER RANK RANKS``; FOLDER/cases.json lists [file, format, stage_of, microbatches].
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, SAMPLES = 8, 2


class Block(nn.Module):
    """End in an addition: the runtime's own split of a backward cannot take a stage that ends in a view."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.back(torch.tanh(self.into(x)))


def network(virtual_stages: int) -> list[Block]:
    torch.manual_seed(0)
    return [Block().double() for _ in range(virtual_stages)]


def batch(microbatches: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (microbatches * SAMPLES, WIDTH)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))  # type: ignore[return-value]


def plain_loop(virtual_stages: int, microbatches: int) -> list[Block]:
    blocks = network(virtual_stages)
    for x, y in zip(*(tensor.chunk(microbatches) for tensor in batch(microbatches)), strict=True):
        nn.functional.mse_loss(nn.Sequential(*blocks)(x), y).backward()
    for block in blocks:
        for parameter in block.parameters():
            parameter.grad.div_(microbatches)  # type: ignore[union-attr]
    return blocks


def run(path: str, form: str, stage_of: list[int], microbatches: int, rank: int) -> int:
    """Count the gradients of this rank. Each equals the plain loop's to the bit, or it raises."""
    blocks = network(len(stage_of))
    hidden = torch.zeros(SAMPLES, WIDTH, dtype=torch.float64)
    stages = [
        PipelineStage(
            blocks[v],
            v,
            len(stage_of),
            torch.device("cpu"),
            input_args=(hidden.clone().requires_grad_(v > 0),),
            output_args=(hidden.clone().requires_grad_(),),
        )
        for v, held_by in enumerate(stage_of)
        if held_by == rank
    ]
    runtime = _PipelineScheduleRuntime(stages, microbatches, loss_fn=nn.functional.mse_loss)
    runtime._load_csv(path, format=form)
    x, y = batch(microbatches)
    runtime.step(*([x] if stage_of[0] == rank else []), target=y if stage_of[-1] == rank else None)
    equal = 0
    for v, expected in enumerate(plain_loop(len(stage_of), microbatches)):
        if stage_of[v] != rank:
            continue
        for found, wanted in zip(blocks[v].parameters(), expected.parameters(), strict=True):
            assert found.grad is not None, f"{path}: virtual stage {v} has no gradient"
            assert torch.equal(found.grad, wanted.grad), f"{path}: a gradient of virtual stage {v} differs"  # type: ignore[arg-type]
            equal += 1
    return equal


def main(folder: Path, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    cases = json.loads((folder / "cases.json").read_text())
    equal = [run(str(folder / name), form, stage_of, m, rank) for name, form, stage_of, m in cases]
    (folder / f"equal{rank}.json").write_text(json.dumps(equal))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
