"""The flags of the commands, each set of them a record, so that ``solve`` and ``compare`` take the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from zbopt.cli.field_flags import hyphenated
from zbopt.cli.flag_records import FIELD_FLAGS
from zbopt.cli.options import flag_maker, seconds, switch, whole
from zbopt.costs.runtimes import Runtime
from zbopt.problem.facts import Panel, flags_by_field
from zbopt.problem.instance import Instance, Objective
from zbopt.problem.schedule import Engine

ObjectiveFlag = hyphenated(Objective)
"""Values of ``--objective``, with the hyphens of a command line."""

_problem, _search, _memory = flag_maker(Panel.PROBLEM.value), flag_maker("The search"), flag_maker(Panel.MEMORY.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFlags:
    """Hold an instance by its file or by its fields. ``None``: not given.

    ``fields`` holds what the flags of single fields were given, by field, each as typed; those not given are left out.
    """

    instance: Annotated[
        Path | None,
        typer.Argument(
            metavar="INSTANCE",
            help="Instance file (.json or .toml), instead of the flags. It alone has matrices of links, collectives, "
            "routes, and times of single microbatches.",
        ),
    ] = None
    fields: Annotated[Mapping[str, Any], FIELD_FLAGS] = field(default_factory=dict)
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
    tick: Annotated[
        str | None,
        _problem(
            "--tick",
            "Length of a tick (10us); times are rounded up to it. Sets tick.",
            "the finest decimal given",
            "DURATION",
        ),
    ] = None
    runtime: Annotated[
        Runtime | None,
        _memory(
            "--runtime",
            "Whose split of the backward is modelled: torch (PyTorch's own: no B on the first stage, nothing freed "
            "before W) or deferred-weight. Sets weight_share, receive_buffers, and for torch backward_ticks, "
            "weight_ticks and gradient_state.",
        ),
    ] = None

    def given(self) -> list[str]:
        """Return the names of the flags that were given, as they are typed but for the hyphens."""
        names = [own.name for own in fields(self) if own.name != "fields"]
        own = [name for name in names if getattr(self, name) is not None]
        flags = flags_by_field(Instance)
        return [*own, *(flags[name].parameter for name in flags if name in self.fields)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFlags:
    """Hold what the search may use."""

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
