"""Command ``zbopt export``: write a schedule in the format of another program."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from zbopt.analysis.metrics import memory_curve
from zbopt.cli import out
from zbopt.cli.check import INVALID, CheckedFile, read_checked
from zbopt.cli.formats import Format, refuse_flags
from zbopt.cli.options import switch
from zbopt.formats.chrome_trace import to_chrome_trace
from zbopt.formats.jaxpp import to_jaxpp
from zbopt.formats.megatron_layout import SCHEMA, Layers, layers_from_document, spread, write_layout
from zbopt.formats.order import require_one_route
from zbopt.formats.sail_zb import to_sail_zb
from zbopt.formats.torch_csv import compute_only, rows_text
from zbopt.problem.atomic import write_text
from zbopt.problem.documents import require_writable
from zbopt.problem.instance import Instance, placement_of, read_document
from zbopt.problem.schedule import Schedule
from zbopt.replay.checks import CannotReplayError, checked_actions


def export_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A schedule file of zbopt, or a plain list of events (.json); for megatron-layout also an instance or "
            "the table of layers that zbopt import writes.",
        ),
    ],
    to: Annotated[Format, typer.Option("--to", help="The format.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT", help="Write to this file.", show_default="standard output"),
    ] = None,
    comms: Annotated[
        bool,
        switch("--comms", "torch-csv: write transfers too, in an order in which no two ranks wait for each other."),
    ] = False,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            metavar="N[,...]",
            help="megatron-layout: decoder layers of each virtual stage, or their sum where it divides evenly.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Write a schedule in the format of another program.

    torch-csv: the table of PyTorch's pipeline runtime (torchtitan: pipeline_parallel_schedule_csv).
    chrome-trace: for ui.perfetto.dev and chrome://tracing. megatron-layout: the string of Megatron-LM's
    --pipeline-model-parallel-layout. jaxpp, sail-zb: task tables as JSON.

    Example: zbopt export schedule.json --to torch-csv -o schedule.csv

    Example: zbopt export instance.json --to megatron-layout --layers 8,8,7,7
    """
    exit_code = 0
    refuse_flags(to, {"--comms": comms, "--layers": layers is not None}, _FLAGS)
    if output is not None:
        require_writable(output, file)
    if to is Format.MEGATRON_LAYOUT:
        text = write_layout(_layers(file, layers)) + "\n"
    else:
        checked = read_checked(file)
        if not checked.valid:
            code, message = checked.violations[0]
            out.say(f"zbopt: {file}: invalid: {code}: {message}; see zbopt validate {file}")
            if to is not Format.CHROME_TRACE:  # a trace is for looking at, also at a schedule that is wrong
                return INVALID
            exit_code = INVALID
        text = _CONVERT[to](checked) if to is not Format.TORCH_CSV else _torch_csv(checked, comms)
    if output is None:
        out.page(text.splitlines())
    else:
        write_text(output, text)
        out.page([f"{output}: {to.value} of {file}"])
    return exit_code


_FLAGS = {"--comms": Format.TORCH_CSV, "--layers": Format.MEGATRON_LAYOUT}


def _torch_csv(checked: CheckedFile, comms: bool) -> str:
    """Return the table, or refuse it where PyTorch would silently compute something else."""
    schedule = checked.schedule
    try:
        actions_by_rank = checked_actions(schedule, single_process=False)
    except CannotReplayError as error:
        raise ValueError(f"{checked.file}: {error.refusals[0]}") from None
    if not comms and not _torchtitan_reads(schedule.instance):
        out.say(
            "zbopt: torchtitan reads interleaved placements, and v with two virtual stages a rank; this one loads "
            "in torch.distributed.pipelining only"
        )
    return rows_text(actions_by_rank if comms else compute_only(actions_by_rank))


def _torchtitan_reads(instance: Instance) -> bool:
    """Tell whether torchtitan derives the instance's placement from the number of ranks and virtual stages."""
    virtual, rest = divmod(instance.virtual_stages, instance.stages)
    names = ["interleaved", *(["v"] if virtual == 2 else [])]
    return not rest and any(instance.stage_of == placement_of(name, instance.stages, virtual) for name in names)


def _chrome_trace(checked: CheckedFile) -> str:
    schedule = checked.schedule
    return to_chrome_trace(schedule, [memory_curve(schedule.instance, row) for row in schedule.holders_by_stage()])


def _naming_file(convert: Callable[[Schedule], str]) -> Callable[[CheckedFile], str]:
    """Let the errors of ``convert`` begin with the name of the schedule's file."""

    def named(checked: CheckedFile) -> str:
        try:
            return convert(checked.schedule)
        except ValueError as error:
            raise ValueError(f"{checked.file}: {error}") from None

    return named


_CONVERT = {
    Format.CHROME_TRACE: _chrome_trace,
    Format.JAXPP: _naming_file(to_jaxpp),
    Format.SAIL_ZB: _naming_file(to_sail_zb),
}


def _layers(file: Path, counts: str | None) -> Layers:
    """Return the layers of a table of layers, or those of ``--layers`` on the file's virtual stages."""
    document = read_document(file)
    schema = str(document.get("schema", "")) if isinstance(document, dict) else ""
    if schema == SCHEMA:
        if counts is not None:
            raise ValueError(f"--layers with {file}: the table has the layers; change it, or leave --layers out")
        try:
            return layers_from_document(document)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    if counts is None:
        raise ValueError("--layers is missing; give the decoder layers of each virtual stage, such as --layers 8,8,7,7")
    return spread(_counts(counts), _stage_of(file, document, schema))


def _stage_of(file: Path, document: object, schema: str) -> tuple[int, ...]:
    """Return the stage of each virtual stage of the instance or schedule in a file."""
    if not schema.startswith("zbopt.instance") and not (isinstance(document, dict) and "forward_ticks" in document):
        instance = read_checked(file).schedule.instance
    else:
        try:
            instance = Instance.model_validate(document)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    try:
        require_one_route(instance, "Megatron's layout")
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return instance.stage_of


_COUNT = re.compile(r"0*([0-9]{1,5}|100000)")
"""A number of layers up to 100,000, more than any model has."""


def _counts(text: str) -> list[int]:
    """Parse the numbers of layers in ``--layers``."""
    numbers = [number.strip() for number in text.split(",")]
    for number in numbers:
        if not _COUNT.fullmatch(number):
            raise ValueError(f"--layers {text[:40]}: {number[:20]!r} is not a number of layers; write it as 8,8,7,7")
    return [int(number) for number in numbers]
