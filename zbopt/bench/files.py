"""The files of a set: instances, best_known.csv (best bound and value by instance and objective), peers.csv (what
published schedulers reach on the instance), and the rows of a run as JSON lines.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from zbopt.bench.locks import one_by_one
from zbopt.bench.rows import BenchRow, Key, Known, Peer, Reference
from zbopt.portfolio.limits import Limits
from zbopt.problem.instance import Objective
from zbopt.problem.schedule import Engine, Status, versions

BEST_KNOWN = "best_known.csv"
PEERS = "peers.csv"
RESULTS = "results.jsonl"
_KNOWN_COLUMNS = ("instance", "objective", "lower_bound", "value", "proved_by", "version", "date")
_PEER_COLUMNS = ("instance", "scheduler", "makespan", "max_stage_span")

_Row = TypeVar("_Row")


def instance_files(folder: Path, match: str = "*") -> list[Path]:
    """The instance files of a set, numbers in their names by size.

    Raises:
        ValueError: There is no such folder, no instance in it whose name matches, or two of one name.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such directory; give a set of instances such as instances/unit")
    files = [f for f in folder.iterdir() if f.suffix in (".json", ".toml") and not f.name.endswith(".events.json")]
    files = [file for file in files if Path(file.stem).match(match)]
    if not files:
        raise ValueError(f"{folder}: holds no instance file that matches {match!r}; give another set or --match")
    files.sort(key=lambda file: (_by_size(file.stem), file.suffix))
    for one, other in pairwise(files):
        if one.stem == other.stem:
            raise ValueError(f"{folder}: {one.name} and {other.name} have one name in a set; rename one of them")
    return files


def _by_size(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


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

    Rows with an error change nothing. The file is replaced in one step, so that no crash leaves half of it, and by one
    run at a time.
    """
    with one_by_one(folder):
        return _update_best_known(folder, rows, today)


def _update_best_known(folder: Path, rows: Iterable[BenchRow], today: date) -> list[Key]:
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


def append_result(results: Path, row: BenchRow, asked: dict[str, Any]) -> None:
    """Add a row to a file of results, with what was asked of it."""
    record = {k: v for k, v in asdict(row).items() if k not in ("known", "peer")}
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record | asked) + "\n")


def asked_of(limits: Limits, against: Engine | None) -> dict[str, Any]:
    """What has to be equal for a row of another run to count in this one."""
    return {"limits": asdict(limits), "against": against, "versions": versions()}


def read_results(results: Path, asked: Mapping[str, Any]) -> dict[Key, BenchRow]:
    """The rows of an earlier run that count again: done, without error, and ``asked`` the same.

    A line that a crash cut short is left out.
    """
    found: dict[Key, BenchRow] = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        row = _parse(line, asked)
        if row is not None and not row.interrupted and row.error is None:
            found[row.key] = row
    return found


def _parse(line: str, asked: Mapping[str, Any]) -> BenchRow | None:
    try:
        record: dict[str, Any] = json.loads(line)
        if {name: record.pop(name) for name in asked} != asked:
            return None
        record |= {"objective": Objective(record["objective"]), "status": Status(record["status"])}
        if record["reference"] is not None:
            named = {"engine": Engine(record["reference"]["engine"]), "status": Status(record["reference"]["status"])}
            record["reference"] = Reference(**record["reference"] | named)
        return BenchRow(**record)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
