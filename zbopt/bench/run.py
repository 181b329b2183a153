"""A run over a set: solve each instance in turn, and compare it with what is on record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from zbopt.bench.files import (
    append_result,
    conditions_of,
    instance_files,
    read_best_known,
    read_peers,
    read_results,
    require_results_file,
)
from zbopt.bench.locks import results_lock
from zbopt.bench.rows import BenchRow, BestKnown, Key, OtherEngineResult, Peer
from zbopt.portfolio.limits import Limits
from zbopt.portfolio.result import Progress, Result
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Instance, Objective, read_instance
from zbopt.problem.schedule import Engine, Status

log = logging.getLogger(__name__)


def bench_set(
    folder: Path,
    limits: Limits,
    *,
    objective: Objective | None = None,
    match: str = "*",
    against: Engine | None = None,
    results: Path | None = None,
    resume: bool = False,
    on_row: Callable[[BenchRow], None] = lambda row: None,
    on_progress: Callable[[str, Progress], None] = lambda name, progress: None,
) -> list[BenchRow]:
    """Solve each instance of a set in turn, and return a row for each in the order of the files.

    An instance that fails gives a row with its ``error``. Ctrl-C ends the run with the best schedule so far.

    Args:
        folder: The set.
        limits: The limits of each solve.
        objective: What to minimise; ``None``: the objective of each instance.
        match: Pattern for the names of the files without suffix, such as ``p4-*``.
        against: Another engine that solves each instance too, under the same limits; ``None``: no other.
        results: File of JSON lines that each row is added to when it is done; ``None``: no file.
        resume: Whether rows in ``results`` that were solved under the same limits are taken from there.
        on_row: Called with each row when it is done.
        on_progress: Called with the name of an instance and the state of its search.

    Raises:
        ValueError: The folder holds no such instance, a file beside them cannot be read, ``results`` is not a file of
            results or another run writes into it, or ``against`` is the engine of ``limits`` or cannot keep them.
    """
    other = None if against is None else _limits_of(against, limits)
    files = instance_files(folder, match)
    known, peers = read_best_known(folder), read_peers(folder)
    conditions = conditions_of(limits, against)
    rows: list[BenchRow] = []
    with nullcontext() if results is None else results_lock(results):
        done = {} if results is None else _rows_done(results, conditions, resume=resume)
        try:
            for file in files:
                solve_of_file = _InstanceSolve(file, objective, limits, other, partial(on_progress, file.stem))
                solved = solve_of_file.row(done)
                row = _compared_with_record(solved, known, peers)
                if results is not None and solved is not done.get(solved.key):
                    append_result(results, row, conditions)
                rows.append(row)
                on_row(row)
                if row.interrupted:
                    break
        except KeyboardInterrupt:
            log.info("interrupted between two instances")
    return rows


def _rows_done(results: Path, conditions: Mapping[str, object], *, resume: bool) -> dict[Key, BenchRow]:
    """Return the rows that a resumed run takes from ``results``; empty the file for a new run."""
    require_results_file(results)
    if resume:
        return read_results(results, conditions)
    results.write_text("", encoding="utf-8")
    return {}


def _limits_of(engine: Engine, limits: Limits) -> Limits:
    """Return the limits for the engine to compare with; milp runs on one thread whatever the limits say."""
    if engine is limits.engine:
        raise ValueError(f"against = {engine.value}: that engine solves the set already; name the other one")
    return replace(limits, engine=engine, workers=None)


@dataclass(frozen=True)
class _InstanceSolve:
    """Solve the instance of one file. ``other`` holds the limits of the engine to compare with, if any."""

    file: Path
    objective: Objective | None
    limits: Limits
    other: Limits | None
    on_progress: Callable[[Progress], None]

    def row(self, done: Mapping[Key, BenchRow]) -> BenchRow:
        """Return the row of the file, from ``done`` if it is there. Whatever goes wrong becomes the row's error."""
        name, wanted = self.file.stem, self.objective or Objective.MAKESPAN
        try:
            instance = read_instance(self.file)
            wanted = self.objective or instance.objective
            instance = instance.model_copy(update={"objective": wanted})
            digest, before = _digest(instance), done.get((name, wanted))
            if before is not None and before.asked == digest:
                return before
            row = replace(_row(name, self._solved(instance, self.limits)), asked=digest)
            return row if row.interrupted or self.other is None else self._compared(row, instance, self.other)
        except Exception as error:  # one instance that fails must not end a run of hours
            log.warning("%s: %s", name, error, exc_info=not isinstance(error, ValueError))
            return BenchRow(instance=name, objective=wanted, status=Status.UNKNOWN, error=_text(error))

    def _compared(self, row: BenchRow, instance: Instance, other: Limits) -> BenchRow:
        """Add what the other engine makes of the instance; its row has an error where the two contradict each other."""
        try:
            result = self._solved(instance, other)
        except Exception as error:  # an instance that the other engine cannot model is no fault of this one
            log.info("%s: %s", row.instance, error, exc_info=not isinstance(error, ValueError))
            return replace(row, reference=OtherEngineResult(engine=other.engine, error=_text(error)))
        theirs = _row(row.instance, result)
        reference = OtherEngineResult(
            engine=other.engine,
            status=theirs.status,
            value=theirs.value,
            bound=theirs.bound,
            wall_time_s=theirs.wall_time_s,
            error=theirs.error,
        )
        failure = row.error or _contradiction(row, theirs, other.engine)
        return replace(row, reference=reference, interrupted=theirs.interrupted, error=failure)

    def _solved(self, instance: Instance, limits: Limits) -> Result:
        return solve(instance, **asdict(limits), on_progress=self.on_progress)


def _digest(instance: Instance) -> str:
    """Return a text that only equal instances share, whatever their names and files are."""
    return sha256(instance.model_dump_json(exclude={"name"}).encode()).hexdigest()[:16]


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _row(name: str, result: Result) -> BenchRow:
    """Return the row of a solve. Where the solver's process died, the row has an error: its value may be poor."""
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
        error=None if result.fault is None else f"the solver failed: {result.fault}",
    )


def _contradiction(ours: BenchRow, theirs: BenchRow, engine: Engine) -> str | None:
    """Say how two results of one instance exclude each other; ``None`` where they do not."""
    if {ours.status, theirs.status} == {Status.INFEASIBLE, Status.OPTIMAL}:
        text = f"{ours.status.value} here, {theirs.status.value} by {engine.value}"
    elif ours.value is not None and theirs.bound is not None and ours.value < theirs.bound:
        text = f"value {ours.value} is below the lower bound {theirs.bound} of {engine.value}"
    elif theirs.value is not None and ours.bound is not None and theirs.value < ours.bound:
        text = f"lower bound {ours.bound} ({ours.proved_by}) is above the value {theirs.value} of {engine.value}"
    else:
        return None
    return f"{text}: one of the two is wrong"


def _compared_with_record(
    row: BenchRow, known: Mapping[Key, BestKnown], peers: Mapping[Key, Sequence[Peer]]
) -> BenchRow:
    """Add what is on record of the row's instance; the row has an error where the two contradict each other."""
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
