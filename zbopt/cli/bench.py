"""Command ``zbopt bench``: solve a set of instances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from zbopt.bench import BEST_KNOWN, RESULTS, BenchRow, bench_set, instance_files, require_updatable, update_best_known
from zbopt.cli import out
from zbopt.cli.flag_records import takes
from zbopt.cli.flags import EngineFlag, JsonFlag, ObjectiveFlag, SearchFlags
from zbopt.cli.options import switch
from zbopt.portfolio.limits import Limits
from zbopt.portfolio.result import Progress
from zbopt.problem.instance import Objective
from zbopt.problem.schedule import Engine, Status, versions
from zbopt.reports.record import Record
from zbopt.reports.words import percent, table

FAILED = 1
_HEAD = ("instance", "value", "bound", "gap", "proved by", "best peer", "ratio", "seconds", "best known")

FolderArgument = Annotated[
    Path, typer.Argument(metavar="SET", help="Folder of instance files, such as instances/unit.")
]
MatchFlag = Annotated[str, typer.Option("--match", metavar="GLOB", help="Solve only instances whose name matches.")]
UpdateFlag = Annotated[bool, switch("--update", f"Write better values and bounds into {BEST_KNOWN} of the set.")]
ResumeFlag = Annotated[bool, switch("--resume", "Keep what the results file has under the same limits.")]
ResultsFlag = Annotated[
    Path | None,
    typer.Option(
        "--results",
        metavar="FILE",
        help="File that each row is added to when it is done. A new run empties it.",
        show_default=f"SET/{RESULTS}",
    ),
]
AgainstFlag = Annotated[
    Engine | None,
    typer.Option(
        "--against",
        help="Solve each instance with this engine too, under the same limits, and say which one proves it faster.",
        show_default=False,
    ),
]
AnyObjectiveFlag = Annotated[
    ObjectiveFlag | None,
    typer.Option("--objective", help="Minimise this instead of the objective of each instance.", show_default=False),
]


@takes(SearchFlags)
def bench_command(
    search: SearchFlags,
    folder: FolderArgument,
    engine: EngineFlag = Engine.CP_SAT,
    match: MatchFlag = "*",
    objective: AnyObjectiveFlag = None,
    against: AgainstFlag = None,
    update: UpdateFlag = False,
    resume: ResumeFlag = False,
    results: ResultsFlag = None,
    json: JsonFlag = False,
) -> int:
    """Solve a set of instances, and compare the results with the best known ones and with published schedulers.

    Example: zbopt bench instances/unit --match 'p4-*' --time-limit 10

    Ctrl-C ends the run and shows what was found; --resume goes on from there.
    """
    limits = Limits(search.time_limit, search.workers, search.seed, search.deterministic, engine)
    count = len(instance_files(folder, match))
    if update:
        require_updatable(folder)
    with BenchBar(count) as bar:
        rows = bench_set(
            folder,
            limits,
            objective=None if objective is None else Objective[objective.name],
            match=match,
            against=against,
            results=results or folder / RESULTS,
            resume=resume,
            on_row=bar.row,
            on_progress=bar.progress,
        )
    if len(rows) < count or (rows and rows[-1].interrupted):
        out.say(f"zbopt: interrupted after {len(rows)} of {count} instances; --resume goes on")
    if json:
        out.record(bench_record(folder, limits, rows, count))
    else:
        out.page(bench_page(rows))
    if update:  # after the page: a record that cannot be written must not lose it
        improved = update_best_known(folder, rows, datetime.now(UTC).date())
        if not json:
            out.say(f"zbopt: {len(improved)} of {len(rows)} rows are better than on record; see {folder / BEST_KNOWN}")
    return FAILED if any(row.error is not None or row.status is Status.INFEASIBLE for row in rows) else 0


class BenchBar:
    """Show on stderr how far the run is: a bar on a terminal, a line for each instance in a log."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.done = 0
        console = Console(stderr=True, highlight=False)
        self.shown = console.is_terminal and not console.is_dumb_terminal
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self.bar = Bar(*columns, console=console, transient=True, disable=not self.shown, redirect_stdout=False)
        self.task = self.bar.add_task("", total=count)

    def __enter__(self) -> BenchBar:
        self.bar.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.bar.stop()

    def progress(self, instance: str, state: Progress) -> None:
        """Show the newest state of the instance that is being solved."""
        best = "none yet" if state.value is None else state.value
        self.bar.update(self.task, description=f"{instance}: best {best}, bound {state.bound}, {state.time_s:.0f} s")

    def row(self, row: BenchRow) -> None:
        """Show that a row is done."""
        self.done += 1
        self.bar.update(self.task, completed=self.done)
        if not self.shown:
            what = row.error or f"{row.status.value}, value {row.value}, bound {row.bound}, {row.wall_time_s:.1f} s"
            out.say(f"zbopt: {self.done} of {self.count}: {row.instance}: {what}")


def bench_page(rows: Sequence[BenchRow]) -> Iterator[str]:
    """Yield the lines that ``zbopt bench`` prints."""
    if not rows:
        return
    other = next((row.reference.engine for row in rows if row.reference is not None), None)
    if other is None:
        yield from table([_HEAD, *map(_cells, rows)], indent="")
    else:
        head = (*_HEAD, f"{other.value} bound", f"{other.value} seconds", "times faster")
        yield from table([head, *((*_cells(row), *_other_engine_cells(row)) for row in rows)], indent="")
    yield ""
    yield summary(rows)
    if other is not None:
        yield comparison(rows, other)
    yield from (f"{row.instance}: {row.error}" for row in rows if row.error is not None)


def summary(rows: Sequence[BenchRow]) -> str:
    """Say how many instances are proved, the worst gap, and how many values are above the best peer's."""
    proved = sum(row.status is Status.OPTIMAL for row in rows)
    gaps = [row.gap for row in rows if row.gap is not None]
    ratios = [row.ratio for row in rows if row.ratio is not None]
    above = sum(ratio > 1 for ratio in ratios)
    worst = percent(max(gaps, default=None))
    peers = f"; above the best peer in {above} of {len(ratios)}" if ratios else ""
    return f"{proved} of {len(rows)} proved optimal; largest gap {worst}{peers}"


def comparison(rows: Sequence[BenchRow], engine: Engine) -> str:
    """Say how many instances the other engine proves, how many of these this one proves, and how much faster."""
    proved = [row for row in rows if row.times_faster is not None]
    text = f"{engine.value} proves {len(proved)} of {len(rows)}"
    if not proved:
        return text
    ours = sum(row.status is Status.OPTIMAL for row in proved)
    faster = [row.times_faster or 0.0 for row in proved]
    return (
        f"{text}; of these {ours} are proved here, {median(faster):.1f} times faster in the median "
        f"({min(faster):.1f} to {max(faster):.1f})"
    )


def _other_engine_cells(row: BenchRow) -> tuple[str, str, str]:
    """Return the cells of the other engine: bound, seconds, and how much faster this one was."""
    other = row.reference
    if other is None or other.error is not None:
        return "", "" if other is None else "failed", ""
    bound = "none" if other.bound is None else str(other.bound)
    return bound, f"{other.wall_time_s:.2f}", "" if row.times_faster is None else f"{row.times_faster:.1f}"


def _cells(row: BenchRow) -> tuple[str, ...]:
    """Return the cells of a row of the table."""
    peer = "" if row.peer is None else f"{row.peer.scheduler} {row.peer.value:.1f}".removesuffix(".0")
    return (
        row.instance,
        "none" if row.value is None else str(row.value),
        "none" if row.bound is None else str(row.bound),
        _gap_text(row),
        row.proved_by or "",
        peer,
        "" if row.ratio is None else f"{row.ratio:.4f}",
        f"{row.wall_time_s:.2f}",
        _beside_record(row),
    )


def _gap_text(row: BenchRow) -> str:
    if row.error is not None:
        return "failed"
    return row.status.value if row.gap is None else percent(row.gap)


def _beside_record(row: BenchRow) -> str:
    """Say what is better or worse than on record."""
    if row.error is not None or row.value is None or row.bound is None:
        return ""
    if row.known is None:
        return "new"
    better = {"value": row.better_value, "bound": row.better_bound}
    worse = {
        "value": row.known.value is not None and row.value > row.known.value,
        "bound": row.bound < row.known.lower_bound,
    }
    for word, changed in (("better", better), ("worse", worse)):
        names = [name for name, is_changed in changed.items() if is_changed]
        if names:
            return f"{word} {' and '.join(names)}"
    return "same"


def bench_record(folder: Path, limits: Limits, rows: Sequence[BenchRow], count: int) -> Record:
    """Return what ``zbopt bench --json`` prints."""
    return {
        "set": str(folder),
        "instances": count,
        "interrupted": len(rows) < count or any(row.interrupted for row in rows),
        "limits": asdict(limits),
        "versions": versions(),
        "rows": [_row_record(row) for row in rows],
    }


def _row_record(row: BenchRow) -> dict[str, Any]:
    """Return a row as JSON, with the figures that derive from it."""
    own = {name: value for name, value in asdict(row).items() if name not in ("bound", "known", "peer", "asked")}
    return own | {
        "lower_bound": row.bound,
        "gap": row.gap,
        "best_known": None if row.known is None else asdict(row.known),
        "best_peer": None if row.peer is None else asdict(row.peer),
        "ratio": row.ratio,
        "times_faster": row.times_faster,
    }
