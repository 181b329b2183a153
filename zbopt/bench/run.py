"""A run: each instance of a set in turn, beside what is known of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from zbopt.bench.files import append_result, asked_of, instance_files, read_best_known, read_peers, read_results
from zbopt.bench.locks import alone
from zbopt.bench.rows import BenchRow, Key, Known, Peer, Reference
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
    """Solve each instance of a set in turn; rows in the order of the files.

    An instance that fails gives a row with its ``error``. Ctrl-C ends the run with the best schedule so far.

    Args:
        folder: The set.
        limits: Of each solve.
        objective: Minimise this; ``None``: what each instance says.
        match: Only files whose name without suffix matches this pattern, such as ``p4-*``.
        against: Solve each instance with this engine too, under the same limits, and put it beside; ``None``: no other.
        results: Each row is added to this file (JSON lines) when it is done; ``None``: to none.
        resume: Take rows from ``results`` where they are done under the same limits, instead of solving again.
        on_row: Told each row when it is done.
        on_progress: Told the instance's name and the state of its search.

    Raises:
        ValueError: The folder holds no such instance, a file beside them cannot be read, another run writes into
            ``results``, or an engine that is to be compared is the same or cannot keep the limits.
    """
    other = None if against is None else _limits_of(against, limits)
    files = instance_files(folder, match)
    known, peers = read_best_known(folder), read_peers(folder)
    asked = asked_of(limits, against)
    rows: list[BenchRow] = []
    with nullcontext() if results is None else alone(results):
        done = read_results(results, asked) if results is not None and resume else {}
        if results is not None and not resume:
            results.write_text("", encoding="utf-8")
        try:
            for file in files:
                task = _Task(file, objective, limits, other, partial(on_progress, file.stem))
                solved = task.row(done)
                row = _beside(solved, known, peers)
                if results is not None and solved is not done.get(solved.key):
                    append_result(results, row, asked)
                rows.append(row)
                on_row(row)
                if row.interrupted:
                    break
        except KeyboardInterrupt:
            log.info("interrupted between two instances")
    return rows


def _limits_of(engine: Engine, limits: Limits) -> Limits:
    """The limits, for the engine to compare with; milp runs on one thread whatever the other has."""
    if engine is limits.engine:
        raise ValueError(f"against = {engine.value}: that engine solves the set already; name the other one")
    return replace(limits, engine=engine, workers=None)


@dataclass(frozen=True)
class _Task:
    """One file of a run. ``other`` are the limits of the engine to compare with, if any."""

    file: Path
    objective: Objective | None
    limits: Limits
    other: Limits | None
    on_progress: Callable[[Progress], None]

    def row(self, done: Mapping[Key, BenchRow]) -> BenchRow:
        """The row of the file, from ``done`` if it is there. Whatever goes wrong becomes its error."""
        name, wanted = self.file.stem, self.objective or Objective.MAKESPAN
        try:
            instance = read_instance(self.file)
            wanted = self.objective or instance.objective
            instance = instance.model_copy(update={"objective": wanted})
            asked, before = _fingerprint(instance), done.get((name, wanted))
            if before is not None and before.asked == asked:
                return before
            row = replace(_row(name, self._solved(instance, self.limits)), asked=asked)
            return row if row.interrupted or self.other is None else self._compared(row, instance, self.other)
        except Exception as error:  # one instance that fails must not end a run of hours
            log.warning("%s: %s", name, error, exc_info=not isinstance(error, ValueError))
            return BenchRow(instance=name, objective=wanted, status=Status.UNKNOWN, error=_text(error))

    def _compared(self, row: BenchRow, instance: Instance, other: Limits) -> BenchRow:
        """The row with what the other engine makes of the instance; an error where the two contradict each other."""
        try:
            result = self._solved(instance, other)
        except Exception as error:  # what one engine does not state is no fault of the other's
            log.info("%s: %s", row.instance, error, exc_info=not isinstance(error, ValueError))
            return replace(row, reference=Reference(engine=other.engine, error=_text(error)))
        theirs = _row(row.instance, result)
        reference = Reference(
            engine=other.engine,
            status=theirs.status,
            value=theirs.value,
            bound=theirs.bound,
            wall_time_s=theirs.wall_time_s,
        )
        contradiction = _contradiction(row, theirs, other.engine)
        return replace(row, reference=reference, interrupted=theirs.interrupted, error=contradiction)

    def _solved(self, instance: Instance, limits: Limits) -> Result:
        return solve(instance, **asdict(limits), on_progress=self.on_progress)


def _fingerprint(instance: Instance) -> str:
    """The same for equal instances alone, whatever their files are called."""
    return sha256(instance.model_dump_json(exclude={"name"}).encode()).hexdigest()[:16]


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


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


def _contradiction(ours: BenchRow, theirs: BenchRow, engine: Engine) -> str | None:
    """How two results of one instance exclude each other; ``None``: they do not."""
    if {ours.status, theirs.status} == {Status.INFEASIBLE, Status.OPTIMAL}:
        text = f"{ours.status.value} here, {theirs.status.value} by {engine.value}"
    elif ours.value is not None and theirs.bound is not None and ours.value < theirs.bound:
        text = f"value {ours.value} is below the lower bound {theirs.bound} of {engine.value}"
    elif theirs.value is not None and ours.bound is not None and theirs.value < ours.bound:
        text = f"lower bound {ours.bound} ({ours.proved_by}) is above the value {theirs.value} of {engine.value}"
    else:
        return None
    return f"{text}: one of the two is wrong"


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
