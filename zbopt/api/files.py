"""Writing instances and schedules, and exchanging schedules with other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from zbopt.analysis.metrics import memory_curve, value_of
from zbopt.api.given import schedule_of
from zbopt.formats.chrome_trace import from_chrome_trace, is_ours, to_chrome_trace
from zbopt.formats.event_list import event_list_from_document
from zbopt.formats.jaxpp import from_jaxpp, to_jaxpp
from zbopt.formats.megatron_layout import spread, write_layout
from zbopt.formats.order import Cell, Order, order_of, require_one_route
from zbopt.formats.profiler import from_profiler
from zbopt.formats.sail_zb import from_sail_zb, to_sail_zb
from zbopt.formats.torch_csv import compute_only, order_from_csv, rows_text
from zbopt.portfolio.result import Result
from zbopt.problem.atomic import write_text
from zbopt.problem.documents import read_document, read_foreign_document, read_text, require_writable
from zbopt.problem.instance import Instance, Kind, write_instance
from zbopt.problem.schedule import Provenance, Schedule, versions, write_schedule
from zbopt.replay.checks import CannotReplayError, checked_actions
from zbopt.timing import schedule_of_orders
from zbopt.validator import validate

ExportFormat = Literal["torch-csv", "chrome-trace", "megatron-layout", "jaxpp", "sail-zb"]
"""Forms in which other programs read a schedule, or for ``megatron-layout`` a placement."""
ImportFormat = Literal["torch-csv", "chrome-trace", "jaxpp", "sail-zb", "event-list"]
"""Forms in which other programs write a schedule."""
Op = tuple[Kind | Literal["F", "B", "W", "BW", "R"], int, int]
"""One op of an order: its kind, virtual stage and microbatch."""


def write(what: Instance | Schedule | Result, path: str | PathLike[str]) -> None:
    """Write an instance, a schedule, or the schedule of a result as JSON.

    Args:
        what: What to write; ``read_instance`` and ``read_schedule`` read it back.
        path: The file to write.

    Raises:
        ValueError: A result has no schedule, or the file cannot be written.
    """
    target = Path(path)
    require_writable(target, flag="path")
    if isinstance(what, Instance):
        write_instance(what, target)
    else:
        write_schedule(schedule_of(what), target)


def schedule(instance: Instance, orders: Sequence[Sequence[Op]], *, name: str = "own") -> Schedule:
    """Build the schedule that runs an order of ops on each stage, each op as early as it can start.

    It need not be valid: ``validate`` says whether every op is there and memory is within the cap.

    Args:
        instance: The problem.
        orders: For each stage the ops of one iteration, as (kind, virtual stage, microbatch), in the order in which
            they run. The optimizer step follows by itself.
        name: What ``Schedule.provenance.source`` says.

    Raises:
        ValueError: The orders wait for each other, name an op that does not exist, or are not one for each stage.

    Example:
        >>> import zbopt
        >>> step = zbopt.instance(stages=1, microbatches=2)
        >>> serial = [[(kind, 0, j) for j in range(2) for kind in ("F", "B", "W")]]
        >>> zbopt.metrics(zbopt.schedule(step, serial)).makespan
        6
    """
    if len(orders) != instance.stages:
        raise ValueError(f"{len(orders)} orders for {instance.stages} stages; give one for each stage")
    ops = [[(Kind(kind), virtual_stage, microbatch) for kind, virtual_stage, microbatch in order] for order in orders]
    _require_known_ops(instance, ops)
    return schedule_of_orders(instance, ops, Provenance(source=name, versions=versions()))


def _require_known_ops(instance: Instance, orders: Sequence[Sequence[tuple[Kind, int, int]]]) -> None:
    for stage, order in enumerate(orders):
        seen = set()
        for op in order:
            kind, virtual_stage, microbatch = op
            known = 0 <= virtual_stage < instance.virtual_stages and instance.stage_of[virtual_stage] == stage
            where = f"stage {stage}: {kind.value} of virtual stage {virtual_stage} and microbatch {microbatch}"
            if not known:
                raise ValueError(f"{where}: the stage holds virtual stages {instance.virtual_stages_of(stage)} only")
            passes = microbatch in instance.microbatches_of(virtual_stage)
            if not passes or instance.op_ticks(kind, virtual_stage, microbatch) is None:
                raise ValueError(f"{where}: the instance has no such op; leave it out")
            if op in seen:
                raise ValueError(f"{where}: the order has it twice; leave one out")
            seen.add(op)


def export(
    what: Schedule | Result | Instance,
    format: ExportFormat,
    path: str | PathLike[str] | None = None,
    *,
    comms: bool = False,
    layers: int | Sequence[int] | None = None,
) -> str:
    """Return a schedule in the form that another program reads, and write it to a file.

    ``torch-csv`` is the table of PyTorch's pipeline runtime, ``chrome-trace`` a trace for ui.perfetto.dev,
    ``megatron-layout`` the string of Megatron-LM's ``--pipeline-model-parallel-layout``; ``jaxpp`` and ``sail-zb`` are
    task tables as JSON.

    Args:
        what: A valid schedule, or a result that has one; for ``megatron-layout`` an instance too.
        format: The form.
        path: The file to write; ``None``: none is written.
        comms: For ``torch-csv``: with transfers, in an order in which no two ranks wait for each other.
        layers: For ``megatron-layout``: decoder layers of each virtual stage, or all of them where they divide evenly.

    Returns:
        The text of the file.

    Raises:
        ValueError: The schedule breaks a rule, the form cannot say it, the program would compute something else, or the
            file cannot be written.

    Example:
        >>> import zbopt
        >>> step = zbopt.instance(stages=2, microbatches=2)
        >>> print(zbopt.export(zbopt.heuristics.gpipe(step), "torch-csv").splitlines()[0])
        0F0,0F1,0B0,0B1
    """
    if format not in get_args(ExportFormat):
        raise ValueError(f"format = {format!r}: give {', '.join(get_args(ExportFormat))}")
    if comms and format != "torch-csv":
        raise ValueError(f"comms goes with torch-csv only; leave it out for {format}")
    if layers is not None and format != "megatron-layout":
        raise ValueError(f"layers goes with megatron-layout only; leave it out for {format}")
    target = None if path is None else Path(path)
    if target is not None:
        require_writable(target, flag="path")
    text = _layout(what, layers) if format == "megatron-layout" else _exported(what, format, comms)
    if target is not None:
        write_text(target, text)
    return text


def _layout(what: Schedule | Result | Instance, layers: int | Sequence[int] | None) -> str:
    instance = what if isinstance(what, Instance) else what.instance
    if layers is None:
        raise ValueError("layers is missing; give the decoder layers of each virtual stage, such as [8, 8, 7, 7]")
    require_one_route(instance, "Megatron's layout")
    return write_layout(spread([layers] if isinstance(layers, int) else list(layers), instance.stage_of)) + "\n"


def _exported(what: Schedule | Result | Instance, format: ExportFormat, comms: bool) -> str:
    if isinstance(what, Instance):
        raise ValueError(f"an instance has no order to export to {format}; give a schedule, or the result of solve")
    schedule = schedule_of(what)
    violations = validate(schedule.instance, schedule).violations
    if violations:
        raise ValueError(f"the schedule is not valid: {violations[0]}")
    if format == "torch-csv":
        return _torch_csv(schedule, comms)
    return _WRITERS[format](schedule)


def _torch_csv(schedule: Schedule, comms: bool) -> str:
    """Return the table, refused where PyTorch would compute something else without a word."""
    try:
        actions_by_rank = checked_actions(schedule, single_process=False)
    except CannotReplayError as error:
        raise ValueError(str(error.refusals[0])) from None
    return rows_text(actions_by_rank if comms else compute_only(actions_by_rank))


def _chrome_trace(schedule: Schedule) -> str:
    return to_chrome_trace(schedule, [memory_curve(schedule.instance, row) for row in schedule.holders_by_stage()])


_WRITERS: Mapping[str, Callable[[Schedule], str]] = {
    "chrome-trace": _chrome_trace,
    "jaxpp": to_jaxpp,
    "sail-zb": to_sail_zb,
}


def import_(path: str | PathLike[str], format: ImportFormat, instance: Instance | None = None) -> Schedule:
    """Read a schedule that another program wrote.

    An order without times is timed by the instance, each op as early as it can start. A trace of torch.profiler keeps
    its measured times, and an event list keeps those it has.

    Args:
        path: The file.
        format: The form.
        instance: The problem whose times the order gets; ``None``: F, B and W take 1 tick and BW 2, without a cap, or
            what the file itself says.

    Raises:
        ValueError: One line that names the file, the place in it and what is wrong there.
    """
    file = Path(path)
    if format not in get_args(ImportFormat):
        raise ValueError(f"format = {format!r}: give {', '.join(get_args(ImportFormat))}")
    if format == "event-list":
        return _event_list(file, instance)
    if format == "chrome-trace":
        return _trace(file, instance)
    read = _order_reader(file, format, instance)
    return _timed(_named(file, read), instance, format)


def _order_reader(file: Path, format: str, instance: Instance | None) -> Callable[[], Order]:
    if format == "torch-csv":
        text = read_text(file, "a table of PyTorch's actions")
        return lambda: order_from_csv(text, instance)
    document = read_document(file)
    read = from_jaxpp if format == "jaxpp" else from_sail_zb
    return lambda: read(document, instance)


def _event_list(file: Path, instance: Instance | None) -> Schedule:
    listed = event_list_from_document(read_document(file), str(file))
    if listed.faults:
        raise ValueError(f"{file}: {listed.faults[0].message}")
    return listed.schedule if instance is None else listed.schedule.model_copy(update={"instance": instance})


def _trace(file: Path, instance: Instance | None) -> Schedule:
    """Return a trace of zbopt as it was written, one of torch.profiler as it ran; with an instance the order, timed."""
    document = read_foreign_document(file)
    found = (
        from_chrome_trace(document, str(file)) if is_ours(document) else from_profiler({str(file): document}).schedule
    )
    if instance is None:
        return found
    rows = [
        [
            Cell((e.kind, e.virtual_stage, e.microbatch), e.id)
            for e in row
            if e.virtual_stage is not None and e.microbatch is not None
        ]
        for row in found.by_stage()
    ]
    return _timed(_named(file, lambda: order_of(rows, instance)), instance, "chrome-trace")


def _named(file: Path, read: Callable[[], Order]) -> Order:
    try:
        return read()
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _timed(order: Order, instance: Instance | None, format: str) -> Schedule:
    provenance = Provenance(source=f"import:{format}", versions=versions())
    timed = schedule_of_orders(instance or order.unit_instance(), order.rows, provenance)
    return timed.model_copy(update={"provenance": provenance.model_copy(update={"value": value_of(timed)})})
