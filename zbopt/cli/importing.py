"""Command ``zbopt import``: read an order that another program wrote, and say how far it is from the best."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from zbopt.analysis.idle import explain
from zbopt.analysis.metrics import figures
from zbopt.cli import out
from zbopt.cli.check import INVALID
from zbopt.cli.ctrl_c import ignored
from zbopt.cli.distance import Distance, distance_of, distance_page, distance_record, idle_text
from zbopt.cli.flag_records import takes
from zbopt.cli.flags import JsonFlag, OutputFlag, SearchFlags
from zbopt.cli.formats import Format, refuse_flags
from zbopt.cli.options import switch
from zbopt.cli.solve import INFEASIBLE, search_for
from zbopt.formats.chrome_trace import from_chrome_trace, is_ours
from zbopt.formats.jaxpp import from_jaxpp
from zbopt.formats.megatron_layout import layers_document, read_layout
from zbopt.formats.order import Cell, Order, order_of
from zbopt.formats.profiler import from_profiler
from zbopt.formats.sail_zb import from_sail_zb
from zbopt.formats.torch_csv import order_from_csv
from zbopt.problem.atomic import write_text
from zbopt.problem.documents import read_foreign_document, read_text, require_writable
from zbopt.problem.instance import Instance, read_document, read_instance
from zbopt.problem.schedule import Event, Provenance, Schedule, versions, write_schedule
from zbopt.reports.explain import sums_record
from zbopt.reports.page import asked, figures_rows, lines_of
from zbopt.reports.record import Record, figures_record, tick_record
from zbopt.timing import schedule_of_orders
from zbopt.validator import Verdict, validate


@dataclass(frozen=True, slots=True)
class ImportedSchedule:
    """Hold a schedule from foreign files. ``verdict`` is ``None`` where its times were observed in a run."""

    files: tuple[Path, ...]
    schedule: Schedule
    verdict: Verdict | None

    @property
    def valid(self) -> bool:
        """Tell whether no rule is violated; an observed schedule is not checked."""
        return self.verdict is None or self.verdict.valid


FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="The file; from torch.profiler one file for each rank, or one for all."),
]
SourceFlag = Annotated[Format, typer.Option("--from", help="Format of the file.", show_default=False)]
InstanceFlag = Annotated[
    Path | None,
    typer.Option(
        "--instance",
        metavar="FILE",
        help="Instance with times, memory and cap: ops keep their order and start as early as it allows.",
        show_default="F = B = W = 1 and BW = 2 ticks, no cap",
    ),
]
StagesFlag = Annotated[
    int | None,
    typer.Option("--stages", metavar="N", min=1, help="megatron-layout: stages of the pipeline.", show_default=False),
]
ExplainFlag = Annotated[
    bool,
    switch("--explain", "Solve the instance too, and say how far this order is from the best, and why."),
]
BetterFlag = Annotated[
    Path | None,
    typer.Option("--better", metavar="FILE", help="With --explain: write the best schedule found to this file."),
]


@takes(SearchFlags)
def import_command(
    search: SearchFlags,
    files: FilesArgument,
    source: SourceFlag,
    instance: InstanceFlag = None,
    stages: StagesFlag = None,
    output: OutputFlag = None,
    explained: ExplainFlag = False,
    better: BetterFlag = None,
    json: JsonFlag = False,
) -> int:
    """Read an order that another program wrote, and say how good it is.

    torch-csv: a table of PyTorch's pipeline runtime, with or without transfers. chrome-trace: a trace that zbopt
    export wrote, or one of torch.profiler with PyTorch's names (PP:0F0), whose times are kept. megatron-layout: a file
    with the string of --pipeline-model-parallel-layout, of which zbopt prints the layers of each virtual stage.
    jaxpp, sail-zb: the task tables of zbopt export. Rows and cells count from 0.

    Example: zbopt import schedule.csv --from torch-csv --instance instance.json -o schedule.json

    Example: zbopt import schedule.csv --from torch-csv --explain --better better.json
    """
    refuse_flags(source, {"--stages": stages is not None}, {"--stages": Format.MEGATRON_LAYOUT})
    _require_consistent(source, files, stages, explained, better)
    if output is not None:
        require_writable(output, *files, instance)
    if better is not None:
        require_writable(better, *files, instance, flag="--better")
        if output is not None and output.resolve() == better.resolve():
            raise ValueError(f"--better {better}: -o writes to the same file; give another path")
    if source is Format.MEGATRON_LAYOUT:
        return _import_layout(files[0], stages or 1, output)
    costs = None if instance is None else read_instance(instance)
    imported = _imported(files, source, costs)
    if output is not None:
        with ignored():
            write_schedule(imported.schedule, output)
    if imported.valid and explained:
        return _explained(imported, search, better, output, json)
    return _show(imported, None, output, json)


def _explained(
    imported: ImportedSchedule, search: SearchFlags, better: Path | None, output: Path | None, json: bool
) -> int:
    """Solve the instance too, and print how far the order is from the best."""
    result = search_for(imported.schedule.instance, search)
    if result.schedule is None:
        _show(imported, None, output, json)
        out.say(f"zbopt: {'infeasible: ' + str(result.infeasible) if result.infeasible else 'no schedule was found'}")
        return INFEASIBLE
    if better is not None:
        with ignored():
            write_schedule(result.schedule, better)
    return _show(imported, distance_of(imported.schedule, result), output, json)


def _require_consistent(
    source: Format, files: list[Path], stages: int | None, explained: bool, better: Path | None
) -> None:
    """Refuse arguments that do not go together."""
    if len(files) > 1 and source is not Format.CHROME_TRACE:
        raise ValueError(f"{len(files)} files: {source.value} takes one; give one")
    if source is Format.MEGATRON_LAYOUT and (stages is None or explained):
        what = "--explain needs an order, and a layout has none" if explained else "--stages is missing"
        raise ValueError(f"{what}; write zbopt import FILE --from megatron-layout --stages 8")
    if better is not None and not explained:
        raise ValueError("--better goes with --explain; give both")


def _import_layout(file: Path, stages: int, output: Path | None) -> int:
    """Read a layout of Megatron-LM, and print or write the table of its layers."""
    try:
        document = layers_document(read_layout(read_text(file, "a file"), stages))
    except ValueError as error:
        raise ValueError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from None
    text = json_text.dumps(document, indent=1)
    if output is None:
        out.page(text.splitlines())
    else:
        write_text(output, text + "\n")
        counts = f"{document['decoder_layers']} decoder layers on {document['virtual_stages']} virtual stages"
        out.page([f"{output}: {counts}"])
    return 0


def _imported(files: list[Path], source: Format, instance: Instance | None) -> ImportedSchedule:
    """Read the schedule in ``files``, timed by ``instance`` if there is one."""
    if source is Format.CHROME_TRACE:
        return _imported_trace(files, instance)
    if source is Format.TORCH_CSV:
        text = read_text(files[0], "a file")
        order = _naming_file(files[0], lambda: order_from_csv(text, instance))
    else:
        document = read_document(files[0])
        read = from_jaxpp if source is Format.JAXPP else from_sail_zb
        order = _naming_file(files[0], lambda: read(document, instance))
    return _timed(files, order, instance or order.unit_instance(), source)


def _naming_file(file: Path, read: Callable[[], Order]) -> Order:
    """Let the errors of ``read`` begin with the file's name."""
    try:
        return read()
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _timed(files: list[Path], order: Order, instance: Instance, source: Format) -> ImportedSchedule:
    """Start every op of ``order`` as early as ``instance`` allows, and validate the schedule."""
    provenance = Provenance(source=f"import:{source.value}", versions=versions())
    schedule = schedule_of_orders(instance, order.rows, provenance)
    value = figures(schedule).value(instance.objective)
    schedule = schedule.model_copy(update={"provenance": provenance.model_copy(update={"value": value})})
    return ImportedSchedule(tuple(files), schedule, validate(instance, schedule))


def _imported_trace(files: list[Path], instance: Instance | None) -> ImportedSchedule:
    """Read a trace: of zbopt as it was written, of torch.profiler as it ran.

    With an instance only the order is taken from the trace, and timed by the instance.
    """
    documents = {str(file): read_foreign_document(file) for file in files}
    ours = next((name for name, document in documents.items() if is_ours(document)), None)
    if ours is not None and len(files) > 1:
        raise ValueError(f"{ours}: has all stages; give this file alone")
    observed = ours is None
    schedule = from_chrome_trace(documents[ours], ours) if ours else _observed(documents)
    if instance is None:
        return ImportedSchedule(tuple(files), schedule, None if observed else validate(schedule.instance, schedule))
    cells = [_cells(events) for events in schedule.by_stage()]
    return _timed(files, _naming_file(files[0], lambda: order_of(cells, instance)), instance, Format.CHROME_TRACE)


def _cells(events: Iterable[Event]) -> list[Cell]:
    """Return the order of one stage, without ops of the whole stage."""
    return [
        Cell((e.kind, e.virtual_stage, e.microbatch), e.id)
        for e in events
        if e.virtual_stage is not None and e.microbatch is not None
    ]


def _observed(documents: Mapping[str, object]) -> Schedule:
    """Read the schedule in traces of torch.profiler, by file name."""
    try:
        return from_profiler(documents).schedule
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith(tuple(documents)) else f"{', '.join(documents)}: {text}") from None


def _show(imported: ImportedSchedule, distance: Distance | None, output: Path | None, json: bool) -> int:
    """Print the imported schedule, and return the exit code."""
    if json:
        out.record(_record(imported, distance))
    else:
        out.page(_page(imported, distance, output))
    return 0 if imported.valid else INVALID


def _page(imported: ImportedSchedule, distance: Distance | None, output: Path | None) -> Iterator[str]:
    """Yield the lines that ``zbopt import`` prints."""
    schedule, width = imported.schedule, out.width()
    instance = schedule.instance
    yield _title(imported)
    if imported.verdict is not None:
        yield from (f"  {violation}" for violation in imported.verdict.violations)
    yield from asked(instance, (), width, "instance")
    yield "schedule:"
    known = figures(schedule)
    yield from lines_of(figures_rows(instance, known), width)
    yield from lines_of([("idle", idle_text(explain(schedule), known.makespan))], width)
    if output is not None:
        yield from lines_of([("written to", str(output))], width)
    if distance is not None:
        yield "how good:"
        yield from lines_of(distance_page(distance), width)


def _title(imported: ImportedSchedule) -> str:
    """Name the files, and say whether their schedule is valid."""
    files = imported.files
    name = f"{files[0]} and {len(files) - 1} more" if len(files) > 1 else str(files[0])
    if imported.verdict is None:
        return f"{name}: observed"
    return f"{name}: {'valid' if imported.valid else 'invalid'}"


def _record(imported: ImportedSchedule, distance: Distance | None) -> Record:
    """Return what ``zbopt import --json`` prints."""
    schedule, verdict = imported.schedule, imported.verdict
    known = figures(schedule)
    return {
        "files": [str(file) for file in imported.files],
        "observed": verdict is None,
        "valid": imported.valid,
        "violations": [{"code": v.code.value, "message": v.message} for v in (verdict.violations if verdict else ())],
        "objective": schedule.instance.objective.value,
        **figures_record(known),
        "idle": sums_record(explain(schedule).by_cause()),
        **tick_record(schedule.instance),
        "distance": None if distance is None else distance_record(distance),
        "instance": schedule.instance.model_dump(mode="json", exclude_none=True),
    }
