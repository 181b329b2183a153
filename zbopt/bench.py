"""Solve a set of instances and hold the results against what is known of it.

A set is a folder of instance files, with best_known.csv (best bound and value by instance and objective) and peers.csv
(what published schedulers reach on the instance) beside them, if there are any.
"""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from zbopt.instance import Instance, Objective, read_instance
from zbopt.portfolio import Limits, solve
from zbopt.result import Progress, Result
from zbopt.schedule import Status, versions

log = logging.getLogger(__name__)

BEST_KNOWN = "best_known.csv"
PEERS = "peers.csv"
RESULTS = "results.jsonl"
_KNOWN_COLUMNS = ("instance", "objective", "lower_bound", "value", "proved_by", "version", "date")
_PEER_COLUMNS = ("instance", "scheduler", "makespan", "max_stage_span")

_Row = TypeVar("_Row")

Key = tuple[str, Objective]
"""An instance's file name without its suffix, and what is minimised."""


@dataclass(frozen=True, slots=True)
class Known:
    """Best bound (and what proved it) and value on record, in ticks; ``value`` is ``None`` where no schedule is."""

    lower_bound: int
    value: int | None
    proved_by: str
    version: str
    date: str


@dataclass(frozen=True, slots=True)
class Peer:
    """What a published scheduler reaches, in ticks (a fraction where it halves a stage)."""

    scheduler: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One instance of a run. Values in ticks, ``None`` where there is none; ``error`` says why it failed.

    ``known`` is what was on record before the run, ``peer`` the best published scheduler under the same objective.
    """

    instance: str
    objective: Objective
    status: Status
    value: int | None = None
    bound: int | None = None
    proved_by: str | None = None
    found_by: str | None = None
    wall_time_s: float = 0.0
    known: Known | None = None
    peer: Peer | None = None
    interrupted: bool = False
    error: str | None = None

    @property
    def key(self) -> Key:
        """What the row is filed under."""
        return self.instance, self.objective

    @property
    def gap(self) -> float | None:
        """(value - bound) / value; ``None`` without a value."""
        return None if self.value is None or self.bound is None else (self.value - self.bound) / self.value

    @property
    def ratio(self) -> float | None:
        """Value over the peer's; ``None`` without either."""
        return None if self.value is None or self.peer is None else self.value / self.peer.value

    @property
    def better_value(self) -> bool:
        """The value is below the one on record, or there was none."""
        known = self.known.value if self.known is not None else None
        return self.value is not None and (known is None or self.value < known)

    @property
    def better_bound(self) -> bool:
        """The bound is above the one on record, or there was none."""
        return self.bound is not None and (self.known is None or self.bound > self.known.lower_bound)


def bench_set(
    folder: Path,
    limits: Limits,
    *,
    objective: Objective | None = None,
    match: str = "*",
    results: Path | None = None,
    resume: bool = False,
    on_row: Callable[[BenchRow], None] = lambda row: None,
    on_progress: Callable[[str, Progress], None] = lambda name, progress: None,
) -> list[BenchRow]:
    """Solve each instance of a set in turn; rows in the order of the files.

    An instance that fails gives a row with its ``error``. Ctrl-C ends the run with the best schedule so far.

    Args:
        folder: The set.
        limits: Of each solve.
        objective: Minimise this; ``None``: what each instance says.
        match: Only files whose name without suffix matches this pattern, such as ``p4-*``.
        results: Each row is added to this file (JSON lines) when it is done; ``None``: to none.
        resume: Take rows from ``results`` where they are done under the same limits, instead of solving again.
        on_row: Told each row when it is done.
        on_progress: Told the instance's name and the state of its search.

    Raises:
        ValueError: The folder holds no such instance, or a file beside them cannot be read.
    """
    files = instance_files(folder, match)
    known, peers = read_best_known(folder), read_peers(folder)
    done = read_results(results, limits) if results is not None and resume else {}
    if results is not None and not resume:
        results.write_text("", encoding="utf-8")
    rows: list[BenchRow] = []
    try:
        for file in files:
            row = _solve_file(file, limits, objective, done, partial(on_progress, file.stem))
            row = _beside(row, known, peers)
            if results is not None and row.key not in done:
                _append(results, row, limits)
            rows.append(row)
            on_row(row)
            if row.interrupted:
                break
    except KeyboardInterrupt:
        log.info("interrupted between two instances")
    return rows


def instance_files(folder: Path, match: str = "*") -> list[Path]:
    """The instance files of a set, numbers in their names by size.

    Raises:
        ValueError: There is no such folder, or no instance in it whose name matches.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such directory; give a set of instances such as instances/unit")
    files = [f for f in folder.iterdir() if f.suffix in (".json", ".toml") and not f.name.endswith(".events.json")]
    files = [file for file in files if Path(file.stem).match(match)]
    if not files:
        raise ValueError(f"{folder}: holds no instance file that matches {match!r}; give another set or --match")
    return sorted(files, key=lambda file: _by_size(file.stem))


def _by_size(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _solve_file(
    file: Path,
    limits: Limits,
    objective: Objective | None,
    done: Mapping[Key, BenchRow],
    on_progress: Callable[[Progress], None],
) -> BenchRow:
    """The row of one file, from ``done`` if it is there. Whatever goes wrong becomes its error."""
    wanted = objective or Objective.MAKESPAN
    try:
        instance = read_instance(file)
        wanted = objective or instance.objective
        if (file.stem, wanted) in done:
            return done[file.stem, wanted]
        instance = instance.model_copy(update={"objective": wanted})
        return _row(file.stem, _solved(instance, limits, on_progress))
    except Exception as error:  # one instance that fails must not end a run of hours
        log.warning("%s: %s", file.stem, error, exc_info=not isinstance(error, ValueError))
        text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return BenchRow(instance=file.stem, objective=wanted, status=Status.UNKNOWN, error=text)


def _solved(instance: Instance, limits: Limits, on_progress: Callable[[Progress], None]) -> Result:
    return solve(
        instance,
        time_limit_s=limits.time_limit_s,
        workers=limits.workers,
        seed=limits.seed,
        deterministic=limits.deterministic,
        engine=limits.engine,
        on_progress=on_progress,
    )


def _row(name: str, result: Result) -> BenchRow:
    infeasible = result.status is Status.INFEASIBLE
    return BenchRow(
        instance=name,
        objective=result.instance.objective,
        status=result.status,
        value=result.value,
        bound=None if infeasible else result.bound.value,
        proved_by=None if infeasible else result.bound.proved_by,
        found_by=None if result.schedule is None else result.schedule.provenance.source,
        wall_time_s=round(result.wall_time_s, 3),
        interrupted=result.interrupted,
    )


def _beside(row: BenchRow, known: Mapping[Key, Known], peers: Mapping[Key, Sequence[Peer]]) -> BenchRow:
    """The row with what is on record of its instance; an error where the two contradict each other."""
    record = known.get(row.key)
    row = replace(row, known=record, peer=min(peers.get(row.key, ()), key=lambda peer: peer.value, default=None))
    if record is None or row.error is not None:
        return row
    if row.value is not None and row.value < record.lower_bound:
        text = f"value {row.value} is below the lower bound {record.lower_bound} on record ({record.proved_by})"
    elif row.bound is not None and record.value is not None and row.bound > record.value:
        text = f"lower bound {row.bound} ({row.proved_by}) is above the value {record.value} on record"
    else:
        return row
    return replace(row, error=f"{text}: one of the two is wrong")


def read_best_known(folder: Path) -> dict[Key, Known]:
    """What is on record of a set; nothing where it has no such file.

    Raises:
        ValueError: A line cannot be read; the message names it.
    """

    def read(row: Mapping[str, str]) -> tuple[Key, Known]:
        value = int(row["value"]) if row["value"] else None
        known = Known(int(row["lower_bound"]), value, row["proved_by"], row["version"], row["date"])
        return (row["instance"], Objective(row["objective"])), known

    return dict(_read_table(folder / BEST_KNOWN, _KNOWN_COLUMNS, read))


_MEASURED = (Objective.MAKESPAN, Objective.MAX_STAGE_SPAN)
"""Objectives under which published schedulers were measured."""


def read_peers(folder: Path) -> dict[Key, list[Peer]]:
    """What published schedulers reach, by instance and objective; nothing where the set has no such file.

    Raises:
        ValueError: A line cannot be read; the message names it.
    """

    def read(row: Mapping[str, str]) -> list[tuple[Key, Peer]]:
        return [((row["instance"], o), Peer(row["scheduler"], float(row[o.value]))) for o in _MEASURED]

    found: dict[Key, list[Peer]] = {}
    for pairs in _read_table(folder / PEERS, _PEER_COLUMNS, read):
        for key, peer in pairs:
            found.setdefault(key, []).append(peer)
    return found


def _read_table(path: Path, columns: Iterable[str], read: Callable[[Mapping[str, str]], _Row]) -> Iterator[_Row]:
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path}: has no column {missing[0]}; its head must name {', '.join(columns)}")
        for row in reader:
            try:
                yield read(row)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {reader.line_num}: {error}; mend or delete the line") from None


def update_best_known(folder: Path, rows: Iterable[BenchRow], today: date) -> list[Key]:
    """Write into best_known.csv what ``rows`` improve, value and bound apart; the keys of what was improved.

    Rows with an error change nothing. The file is replaced in one step, so that no crash leaves half of it.
    """
    known = read_best_known(folder)
    improved = []
    for row in rows:
        better = _improved(row, known.get(row.key), today)
        if better is not None:
            known[row.key] = better
            improved.append(row.key)
    if improved:
        path = folder / BEST_KNOWN
        with path.with_suffix(".tmp").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_KNOWN_COLUMNS)
            for (name, objective), k in sorted(known.items(), key=lambda item: (item[0][1], _by_size(item[0][0]))):
                writer.writerow((name, objective.value, k.lower_bound, k.value, k.proved_by, k.version, k.date))
        path.with_suffix(".tmp").replace(path)
    return improved


def _improved(row: BenchRow, before: Known | None, today: date) -> Known | None:
    """What is on record after ``row``; ``None`` where it improves nothing."""
    row = replace(row, known=before)
    if row.error is not None or row.bound is None or not (row.better_value or row.better_bound):
        return None
    bound, proved_by = (row.bound, row.proved_by or "") if before is None else (before.lower_bound, before.proved_by)
    if row.better_bound:
        bound, proved_by = row.bound, row.proved_by or ""
    value = row.value if row.better_value else None if before is None else before.value
    return Known(bound, value, proved_by, versions().get("zbopt", ""), today.isoformat())


def _append(results: Path, row: BenchRow, limits: Limits) -> None:
    record = {k: v for k, v in asdict(row).items() if k not in ("known", "peer")}
    line = json.dumps(record | {"limits": asdict(limits), "versions": versions()})
    with results.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_results(results: Path, limits: Limits) -> dict[Key, BenchRow]:
    """The rows of an earlier run that count again: done, without error, under the same limits and versions.

    A line that a crash cut short is left out.
    """
    found: dict[Key, BenchRow] = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        row = _parse(line, {"limits": asdict(limits), "versions": versions()})
        if row is not None and not row.interrupted and row.error is None:
            found[row.key] = row
    return found


def _parse(line: str, expected: Mapping[str, Any]) -> BenchRow | None:
    try:
        record: dict[str, Any] = json.loads(line)
        if {name: record.pop(name) for name in expected} != expected:
            return None
        record |= {"objective": Objective(record["objective"]), "status": Status(record["status"])}
        return BenchRow(**record)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
