"""The flags of the commands: each set a record, so that ``solve`` and ``compare`` take the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from zbopt.cli.memory_flags import MemoryFlags
from zbopt.cli.options import flag_maker, seconds, switch, whole
from zbopt.problem.schedule import Engine


class ObjectiveFlag(StrEnum):
    """Values of ``--objective``, with the hyphens of a command line."""

    MAKESPAN = "makespan"
    MAX_STAGE_SPAN = "max-stage-span"
    PERIOD = "period"


class BarrierFlag(StrEnum):
    """Values of ``--barrier``, with the hyphens of a command line."""

    NONE = "none"
    GLOBAL = "global"
    POST_VALIDATION = "post-validation"


_problem, _search = flag_maker("The problem"), flag_maker("The search")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFlags(MemoryFlags):
    """An instance by its file or by its fields. ``None``: not given."""

    instance: Annotated[
        Path | None,
        typer.Argument(
            metavar="INSTANCE",
            help="Instance file (.json or .toml), instead of the flags. It alone has matrices of links, collectives, "
            "routes, and times of single microbatches.",
        ),
    ] = None
    stages: Annotated[
        int | None, _problem("--stages", "Devices of the pipeline (p). Sets stages.", False, "N", whole)
    ] = None
    micro: Annotated[
        int | None, _problem("--micro", "Microbatches of the step (m). Sets microbatches.", False, "N", whole)
    ] = None
    placement: Annotated[
        str | None,
        _problem(
            "--placement",
            "Stage of each virtual stage: linear, interleaved (round robin), v (down and back up), bidirectional (two "
            "replicas, half the microbatches each way), or a comma list in forward order (0,1,2,2,0). auto: solve each "
            "under one cap, and say which is best. Sets stage_of and routes.",
            "linear; interleaved with --virtual",
            "NAME|STAGE,...",
        ),
    ] = None
    virtual: Annotated[
        int | None,
        _problem("--virtual", "Virtual stages of each stage.", "1 where linear, else 2", "N", whole),
    ] = None
    forward: Annotated[
        str | None,
        _problem(
            "--forward",
            "Time of F of a virtual stage: whole ticks (3) or with a unit (18.522ms); one for all, or a comma list by "
            "virtual stage (3,3,4,4). With --placement auto: of a whole stage. Sets forward_ticks.",
            "1",
            "TIME[,...]",
        ),
    ] = None
    backward: Annotated[
        str | None,
        _problem(
            "--backward",
            "Time of B, the gradient of the input. 'none,1,1,1': the first stage has no B. Sets backward_ticks.",
            "1",
            "TIME[,...]",
        ),
    ] = None
    weight: Annotated[
        str | None,
        _problem("--weight", "Time of W, the gradient of the weights. Sets weight_ticks.", "1", "TIME[,...]"),
    ] = None
    fused_backward: Annotated[
        str | None,
        _problem(
            "--fused-backward",
            "Time of BW, B and W in one op. Alone: the backward is never split. Beside --backward and --weight: a "
            "schedule may fuse. Sets fused_backward_ticks.",
            metavar="TIME[,...]",
        ),
    ] = None
    overlapped: Annotated[
        str | None,
        _problem(
            "--overlapped",
            "Time of an F and a BW of two microbatches as one op of a stage (DualPipe). Only handcrafted schedules "
            "have such ops. Sets overlapped_ticks.",
            metavar="TIME[,...]",
        ),
    ] = None
    comm: Annotated[
        str | None,
        _problem("--comm", "Latency of a transfer between two stages (0.601ms). Sets comm_ticks.", "0", "TIME"),
    ] = None
    mem_limit: Annotated[
        str | None,
        _problem(
            "--mem-limit",
            "Most live activations of a stage: 6, 4.5, or by stage 8,6,4,4. An activation of a virtual stage counts "
            "as its share of its stage. Sets memory_cap.",
            "no limit",
            "AMOUNT[,...]",
        ),
    ] = None
    weight_share: Annotated[
        str | None,
        _problem(
            "--weight-share",
            "Share of an activation that is held from the end of B until the end of W, 0 to 1 (0.5, 48/131). "
            "Sets weight_share.",
            "1",
            "SHARE[,...]",
        ),
    ] = None
    objective: Annotated[
        ObjectiveFlag | None,
        _problem(
            "--objective",
            "What is minimised: last end minus first start over all stages, the largest one of any stage, or the time "
            "between starts of iterations (with --iterations). Sets objective.",
            "makespan",
        ),
    ] = None
    barrier: Annotated[
        BarrierFlag | None,
        _problem(
            "--barrier",
            "What the optimizer step O of a stage waits for: it is not modelled, every W of all stages, or the W of "
            "its own stage. Sets barrier.",
            "none",
        ),
    ] = None
    optimizer: Annotated[
        str | None,
        _problem("--optimizer", "Time of O, with a barrier. Sets optimizer_ticks.", "0", "TIME[,...]"),
    ] = None
    tick: Annotated[
        str | None,
        _problem(
            "--tick",
            "Length of a tick (10us); times are rounded up to it. Sets tick.",
            "the finest decimal given",
            "DURATION",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFlags:
    """What the search may use."""

    time_limit: Annotated[
        float,
        _search(
            "--time-limit",
            "Seconds for the whole search. A first schedule is made in any case: of 100,000 ops in some seconds.",
            "60",
            "SECONDS",
            seconds,
        ),
    ] = 60.0
    workers: Annotated[int | None, _search("--workers", "Threads of CP-SAT.", "all processors", "N", whole)] = None
    seed: Annotated[int, _search("--seed", "Of the engine's random choices.", "0", "N", whole)] = 0
    deterministic: Annotated[
        bool,
        _search(
            "--deterministic",
            "Same value and bound on every machine: one worker, and --time-limit in CP-SAT's deterministic seconds.",
            metavar="",
        ),
    ] = False


EngineFlag = Annotated[
    Engine,
    _search(
        "--engine",
        "What searches: CP-SAT between heuristics and closed bounds; or the published integer program, the reference "
        "to compare with, from the best heuristic on (one virtual stage a stage, split backward, one thread).",
        "cp-sat",
    ),
]
JsonFlag = Annotated[bool, switch("--json", "Print one JSON object instead of the page.")]
OutputFlag = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the schedule to this file, as JSON.")
]
