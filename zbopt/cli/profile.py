"""Command ``zbopt profile``: measure a small network on this device, and write the costs as an instance."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from zbopt.cli import out
from zbopt.cli.flag_records import takes
from zbopt.cli.flags import JsonFlag
from zbopt.cli.replay_flags import NetworkFlags, RunFlags, SplitFlag, TrainingFlags
from zbopt.problem.documents import require_writable
from zbopt.problem.instance import Instance, placement_of, write_instance
from zbopt.replay.launch import costs_of
from zbopt.reports.words import table


@takes(NetworkFlags, RunFlags)
def profile_command(
    network: NetworkFlags,
    run: RunFlags,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Instance file to write.")],
    stages: Annotated[int, typer.Option("--stages", min=1, help="Number of stages (devices) of the pipeline.")],
    micro: Annotated[int, typer.Option("--micro", min=1, help="Microbatches of a step.")] = 8,
    placement: Annotated[str, typer.Option("--placement", help="linear, interleaved or v.")] = "linear",
    virtual: Annotated[
        int | None,
        typer.Option("--virtual", min=1, help="Virtual stages of each stage.", show_default="1 where linear, else 2"),
    ] = None,
    mem_limit: Annotated[
        int | None, typer.Option("--mem-limit", help="Largest memory of activations on a stage, in bytes.")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="How often each op is measured.")] = 9,
    split: Annotated[
        SplitFlag, typer.Option("--split", help="How W is split off: deferred products, or PyTorch's runtime (engine).")
    ] = (SplitFlag.DEFERRED),
    as_json: JsonFlag = False,
) -> int:
    """Measure F, B, W, BW and memory of each virtual stage on this device, and write an instance.

    Example: zbopt profile --network gpt --stages 4 -o measured.json
    """
    require_writable(output)
    if placement not in ("linear", "interleaved", "v"):
        raise ValueError(f"--placement {placement}: choose linear, interleaved or v")
    stage_of = placement_of(placement, stages, virtual or (1 if placement == "linear" else 2))
    _require_size(stages, stage_of, micro, mem_limit)
    job = run.job("profile", None, network.build(), TrainingFlags(split=split).build(1), repeats=repeats)
    if job.network.kind == "wait":
        raise ValueError("--network wait computes nothing that could be measured; choose mlp or gpt")
    costs = costs_of(job, len(stage_of), run.timeout)
    name = f"profile of {job.network.kind} on {job.device}"
    instance = _instance(costs, stage_of, micro, mem_limit, name, no_first_b=split is SplitFlag.ENGINE)
    write_instance(instance, output)
    if as_json:
        out.measured(costs)
        return 0
    out.page(_page(costs, output, stage_of))
    return 0


def _page(costs: dict[str, Any], output: Path, stage_of: tuple[int, ...]) -> Iterator[str]:
    """Yield the lines that ``zbopt profile`` prints."""
    yield f"{output}: times in us, memory of a microbatch in bytes"
    rows: list[tuple[str, ...]] = [("virtual stage", "stage", "F", "B", "W", "BW", "activation", "kept until W")]
    for v, stage in enumerate(stage_of):
        times = (f"{costs[f'{op}_ns'][v] / 1000:.0f}" for op in ("forward", "backward", "weight", "fused_backward"))
        memory = (str(costs[f"{name}_bytes"][v]) for name in ("activation", "held"))
        rows.append((str(v), str(stage), *times, *memory))
    yield from table(rows)


def _require_size(stages: int, stage_of: tuple[int, ...], micro: int, mem_limit: int | None) -> None:
    """Refuse a size that no instance can have, before anything is measured."""
    fields = {"stages": stages, "stage_of": stage_of, "microbatches": micro, "memory_cap": mem_limit}
    Instance.model_validate(fields | {"forward_ticks": 1, "fused_backward_ticks": 1})


def _instance(
    costs: dict[str, Any], stage_of: tuple[int, ...], micro: int, mem_limit: int | None, name: str, *, no_first_b: bool
) -> Instance:
    """Build an instance from the measured costs, in microseconds and bytes, with times rounded up.

    With the split of PyTorch's runtime the first virtual stage has no B (``no_first_b``): its W is the whole backward.
    """

    def ticks(key: str) -> list[int]:
        return [-(-value // 1000) for value in costs[key]]

    def without_first_b(key: str) -> list[int | None]:
        return [None if no_first_b and v == 0 else value for v, value in enumerate(ticks(key))]

    fields: dict[str, Any] = {
        "name": name,
        "stages": max(stage_of) + 1,
        "microbatches": micro,
        "stage_of": stage_of,
        "tick": "1us",
        "forward_ticks": ticks("forward_ns"),
        "backward_ticks": without_first_b("backward_ns"),
        "weight_ticks": ticks("weight_ns"),
        "fused_backward_ticks": without_first_b("fused_backward_ns"),
        "memory_unit": "B",
        "activation": costs["activation_bytes"],
        "weight_share": [
            str(Fraction(held, activation)) if activation else 0
            for activation, held in zip(costs["activation_bytes"], costs["held_bytes"], strict=True)
        ],
    }
    return Instance.model_validate(fields | {"memory_cap": mem_limit})
