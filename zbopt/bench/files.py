"""The files of a set, and the results of a run.

A set has instances, best_known.csv with the best bound and value of each instance and objective, and peers.csv with
what published schedulers reach. The results of a run are a file of JSON lines, one line for each instance.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from zbopt.bench.locks import update_lock
from zbopt.bench.rows import BenchRow, BestKnown, Key, OtherEngineResult, Peer
from zbopt.portfolio.limits import Limits
from zbopt.problem.atomic import errors_name, write_text
from zbopt.problem.documents import require_writable
from zbopt.problem.instance import Objective
from zbopt.problem.schedule import Engine, Status, versions

BEST_KNOWN = "best_known.csv"
PEERS = "peers.csv"
RESULTS = "results.jsonl"
_KNOWN_COLUMNS = ("instance", "objective", "lower_bound", "value", "proved_by", "version", "date")
_PEER_COLUMNS = ("instance", "scheduler", "makespan", "max_stage_span")

_Entry = TypeVar("_Entry")


def instance_files(folder: Path, match: str = "*") -> list[Path]:
    """Return the instance files of a set, with numbers in their names sorted by size.

    Raises:
        ValueError: There is no such folder, it has no instance whose name matches, or two instances of one name.
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
            raise ValueError(
                f"{folder}: {one.name} and {other.name} would be one instance of the set; rename one of them"
            )
    return files


def _by_size(name: str) -> list[tuple[int, str]]:
    """Return a sort key in which the numbers inside a name count by size: m2 before m10."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def read_best_known(folder: Path) -> dict[Key, BestKnown]:
    """Read what is on record of a set; an empty record where it has no such file.

    Raises:
        ValueError: A line cannot be read; the message names it.
    """

    def parse(row: Mapping[str, str]) -> tuple[Key, BestKnown]:
        value = int(row["value"]) if row["value"] else None
        known = BestKnown(int(row["lower_bound"]), value, row["proved_by"], row["version"], row["date"])
        return (row["instance"], Objective(row["objective"])), known

    return dict(_read_table(folder / BEST_KNOWN, _KNOWN_COLUMNS, parse))


_MEASURED = (Objective.MAKESPAN, Objective.MAX_STAGE_SPAN)
"""Objectives under which published schedulers were measured: the columns of peers.csv."""


def read_peers(folder: Path) -> dict[Key, list[Peer]]:
    """Read what published schedulers reach, by instance and objective; nothing where the set has no such file.

    Raises:
        ValueError: A line cannot be read; the message names it.
    """

    def parse(row: Mapping[str, str]) -> list[tuple[Key, Peer]]:
        return [((row["instance"], o), Peer(row["scheduler"], float(row[o.value]))) for o in _MEASURED]

    found: dict[Key, list[Peer]] = {}
    for pairs in _read_table(folder / PEERS, _PEER_COLUMNS, parse):
        for key, peer in pairs:
            found.setdefault(key, []).append(peer)
    return found


def _read_table(path: Path, columns: Iterable[str], parse: Callable[[Mapping[str, str]], _Entry]) -> Iterator[_Entry]:
    """Yield the parsed rows of a CSV file that has at least these columns; nothing where there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path}: has no column {missing[0]}; its first line must name {', '.join(columns)}")
        for row in reader:
            try:
                yield parse(row)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {reader.line_num}: {error}; correct or delete the line") from None


def require_updatable(folder: Path) -> None:
    """Refuse a set whose best_known.csv could not be written, before a run and not after it.

    Raises:
        ValueError: The message names the file and the reason.
    """
    require_writable(folder / BEST_KNOWN, flag="--update")


def update_best_known(folder: Path, rows: Iterable[BenchRow], today: date) -> list[Key]:
    """Write into best_known.csv what ``rows`` improve, and return the keys of the improved records.

    Value and bound improve independently. Rows with an error change nothing. The file is replaced in one step, so that
    no crash leaves half of it, and by one run at a time.
    """
    with update_lock(folder):
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
        write_text(folder / BEST_KNOWN, _table_of(known))
    return improved


def _table_of(known: Mapping[Key, BestKnown]) -> str:
    """Return the text of best_known.csv."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_KNOWN_COLUMNS)
    for (name, objective), k in sorted(known.items(), key=lambda item: (item[0][1], _by_size(item[0][0]))):
        writer.writerow((name, objective.value, k.lower_bound, k.value, k.proved_by, k.version, k.date))
    return text.getvalue()


def _improved(row: BenchRow, before: BestKnown | None, today: date) -> BestKnown | None:
    """Return the record after ``row``; ``None`` where the row improves nothing."""
    row = replace(row, known=before)
    if row.error is not None or row.bound is None or not (row.better_value or row.better_bound):
        return None
    bound, proved_by, value = row.bound, row.proved_by or "", row.value
    if before is not None and not row.better_bound:
        bound, proved_by = before.lower_bound, before.proved_by
    if before is not None and not row.better_value:
        value = before.value
    return BestKnown(bound, value, proved_by, versions().get("zbopt", ""), today.isoformat())


def append_result(results: Path, row: BenchRow, conditions: dict[str, Any]) -> None:
    """Add a row to a file of results, with the conditions that it was solved under."""
    record = {name: value for name, value in asdict(row).items() if name not in ("known", "peer")}
    line = json.dumps(record | conditions) + "\n"
    with errors_name(results), results.open("a+b") as file:
        if _is_cut(file):
            line = "\n" + line  # or the new row would be the end of the cut line, and be lost with it
        file.write(line.encode("utf-8"))


def _is_cut(file: BinaryIO) -> bool:
    """Tell whether the last line of ``file`` has no end, because a run was killed while it wrote."""
    if not file.seekable() or file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def require_results_file(path: Path) -> None:
    """Refuse a file that no run wrote: a new run empties it.

    Raises:
        ValueError: The file has content, and this does not begin with the result of an instance.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        line = file.readline(_LONGEST_LINE)
    if line.strip() and not _is_result(line):
        raise ValueError(f"{path}: is not a file of results, and bench would empty it; give --results another file")


_LONGEST_LINE = 2**20
"""Bytes of a line that are read to recognise a results file. A result has about 1,000."""


def _is_result(line: bytes) -> bool:
    """Tell whether a line holds the result of an instance, or the beginning of one that was cut short."""
    if not line.endswith(b"\n"):
        return line.startswith(b'{"instance": "')
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and {"instance", "objective", "status", "limits"} <= record.keys()


def conditions_of(limits: Limits, against: Engine | None) -> dict[str, Any]:
    """Return what has to be equal for a row of another run to count in this one."""
    return {"limits": asdict(limits), "against": against, "versions": versions()}


def read_results(results: Path, conditions: Mapping[str, Any]) -> dict[Key, BenchRow]:
    """Return the rows of an earlier run that count again: finished, without error, under the same conditions.

    A line that a crash cut short is left out.
    """
    found: dict[Key, BenchRow] = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        row = _parse(line, conditions)
        if row is not None and not row.interrupted and row.error is None:
            found[row.key] = row
    return found


def _parse(line: str, conditions: Mapping[str, Any]) -> BenchRow | None:
    """Return the row of a line; ``None`` where the line is no row, or of a run under other conditions."""
    try:
        record: dict[str, Any] = json.loads(line)
        if {name: record.pop(name) for name in conditions} != conditions:
            return None
        record |= {"objective": Objective(record["objective"]), "status": Status(record["status"])}
        if record["reference"] is not None:
            other = record["reference"]
            enums = {"engine": Engine(other["engine"]), "status": Status(other["status"])}
            record["reference"] = OtherEngineResult(**other | enums)
        return BenchRow(**record)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
