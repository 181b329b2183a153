"""Orders of ops on each stage, without times, which most foreign formats hold, and the check that one is complete.

A reader turns its file into rows of ``Cell`` and hands them to ``order_of``, whose errors name the cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from zbopt.problem.instance import MAX_STAGES, Instance, Kind
from zbopt.problem.schedule import Schedule

OrderedOp = tuple[Kind, int, int]
"""Kind, virtual stage, microbatch."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Hold one op of a foreign file; ``where`` is its place, in words for an error."""

    step: OrderedOp
    where: str


@dataclass(frozen=True, slots=True)
class Order:
    """Hold a complete order: every op once, on one stage, after the ops that it needs. ``rows`` are by stage."""

    stage_of: tuple[int, ...]
    microbatches: int
    rows: tuple[tuple[OrderedOp, ...], ...]

    def unit_instance(self) -> Instance:
        """Return the instance of this placement with F = B = W = 1 and BW = 2 ticks, no cap, no communication time."""
        return Instance.model_validate(
            {
                "stages": len(self.rows),
                "microbatches": self.microbatches,
                "stage_of": self.stage_of,
                "forward_ticks": 1,
                "backward_ticks": 1,
                "weight_ticks": 1,
                "fused_backward_ticks": 2,
            }
        )


def require_one_route(instance: Instance, reader: str) -> None:
    """Refuse an instance whose microbatches pass different virtual stages.

    Args:
        instance: The problem.
        reader: What has only one route, for the error.

    Raises:
        ValueError: There are several routes.
    """
    if instance.routes is not None:
        raise ValueError(
            f"routes: {reader} sends every microbatch through all virtual stages, and here they take "
            f"{len(instance.routes)} routes; take a placement of one route"
        )


_WRITTEN = frozenset({Kind.F, Kind.B, Kind.W, Kind.BW, Kind.O, Kind.G, Kind.SEND_F, Kind.SEND_B})
"""Kinds that foreign tables have a word for, or leave to the runtime. A kind that is new is refused."""


def require_kept(schedule: Schedule, reader: str) -> None:
    """Refuse a schedule that drops activations.

    Args:
        schedule: What is to be written.
        reader: What has no word for that, for the error.

    Raises:
        ValueError: It has an R, an OUT or an IN.
    """
    found = next((e for e in schedule.events if e.kind not in _WRITTEN), None)
    if found is not None and found.kind not in (Kind.R, Kind.OUT, Kind.IN):
        raise ValueError(f"{found.id}: {reader} has no {found.kind.value}; take an instance without that op")
    if found is not None:
        raise ValueError(
            f"{found.id}: {reader} has no {found.kind.value}; a runtime that recomputes does so inside its backward, "
            "so take an instance without recompute and offload, with R's time in backward_ticks"
        )


def order_of_schedule(schedule: Schedule) -> Order:
    """Return the order in which ``schedule`` runs the ops of its first iteration, without optimizer steps.

    Raises:
        ValueError: There are several routes, or activations are dropped.
    """
    require_one_route(schedule.instance, "a table of ops")
    require_kept(schedule, "a table of ops")
    rows = (
        tuple(
            (e.kind, e.virtual_stage or 0, e.microbatch or 0) for e in row if e.kind is not Kind.O and not e.iteration
        )
        for row in schedule.by_stage()
    )
    return Order(schedule.instance.stage_of, schedule.instance.microbatches, tuple(rows))


def order_of(rows: Sequence[Sequence[Cell]], instance: Instance | None = None) -> Order:
    """Return the order that the rows hold, one row for each stage.

    Args:
        rows: The ops of each stage.
        instance: What the order has to fit. Its backward decides whether BW becomes B and W. ``None``: the placement
            and the number of microbatches are what the rows use.

    Raises:
        ValueError: One line that names the row and cell: an op twice, out of range, on two rows, or missing; a
            backward before its forward; ops that wait for each other in a circle; or what the instance has otherwise.
    """
    _check_rows(rows, instance)
    stage_of = _placement(rows)
    if instance is not None:
        _same_placement(rows, stage_of, instance)
        rows = [list(_as_allowed(row, instance)) for row in rows]
    microbatches = instance.microbatches if instance else 1 + max(c.step[2] for row in rows for c in row)
    no_first_b = instance is not None and instance.has_lone_w(0)
    _complete(rows, stage_of, microbatches, no_first_b)
    _OrderCheck(rows, len(stage_of)).check()
    return Order(stage_of, microbatches, tuple(tuple(cell.step for cell in row) for row in rows))


def _check_rows(rows: Sequence[Sequence[Cell]], instance: Instance | None) -> None:
    """Refuse rows that are empty, or not as many as the instance has stages."""
    if instance is not None:
        require_one_route(instance, "a table of ops")
    if instance is not None and len(rows) != instance.stages:
        raise ValueError(f"{len(rows)} rows for {instance.stages} stages; give one row a stage")
    if not rows:
        raise ValueError("there is no row; give one row a stage")
    if len(rows) > MAX_STAGES:
        raise ValueError(f"{len(rows)} rows, of at most {MAX_STAGES}; give one row a stage")
    for stage, row in enumerate(rows):
        if not row:
            raise ValueError(f"row {stage} has no op; give one row a stage, and each at least one")


def _placement(rows: Sequence[Sequence[Cell]]) -> tuple[int, ...]:
    first: dict[int, tuple[int, Cell]] = {}
    for stage, row in enumerate(rows):
        for cell in row:
            stage_before, other = first.setdefault(cell.step[1], (stage, cell))
            if stage_before != stage:
                raise ValueError(
                    f"{cell.where}: virtual stage {cell.step[1]} is on row {stage_before} already ({other.where}); "
                    "keep each virtual stage on one row"
                )
    highest = max(first)
    if len(first) != highest + 1:
        missing = next(v for v in range(highest) if v not in first)
        named = first[highest][1].where
        raise ValueError(f"virtual stage {missing} is on no row, though {named} names {highest}; number them from 0")
    return tuple(first[v][0] for v in range(highest + 1))


def _same_placement(rows: Sequence[Sequence[Cell]], stage_of: tuple[int, ...], instance: Instance) -> None:
    for row in rows:
        for cell in row:
            kind, v, j = cell.step
            if v >= instance.virtual_stages:
                limit = f"virtual stages 0 to {instance.virtual_stages - 1}"
                raise ValueError(f"{cell.where}: the instance has {limit}; give the instance of this table")
            if stage_of[v] != instance.stage_of[v]:
                raise ValueError(
                    f"{cell.where}: virtual stage {v} is on row {stage_of[v]}, the instance holds it on stage "
                    f"{instance.stage_of[v]}; give an instance with this placement"
                )
            if j >= instance.microbatches:
                limit = f"microbatches 0 to {instance.microbatches - 1}"
                raise ValueError(f"{cell.where}: the instance has {limit}; drop it, or give the instance of this table")
            if kind is Kind.B and not instance.may_split:
                raise ValueError(
                    f"{cell.where}: the backward is split, the instance never splits it; "
                    "give backward_ticks and weight_ticks in the instance"
                )
    if len(stage_of) < instance.virtual_stages:
        raise ValueError(f"virtual stage {len(stage_of)} of the instance is on no row; add its ops")


def _as_allowed(row: Iterable[Cell], instance: Instance) -> Iterator[Cell]:
    """Yield the ops that the instance has: BW as B and W where it must not fuse, no B where it has none."""
    for cell in row:
        kind, v, j = cell.step
        if kind is Kind.BW and not instance.has_bw(v):
            kinds = [Kind.W] if instance.has_lone_w(v) else [Kind.B, Kind.W]
            yield from (Cell((part, v, j), cell.where) for part in kinds)
        elif not (kind is Kind.B and instance.has_lone_w(v)):
            yield cell


def _complete(rows: Sequence[Sequence[Cell]], stage_of: tuple[int, ...], microbatches: int, no_first_b: bool) -> None:
    """Refuse an order without each F once and each backward once: as BW, or B and W, or W where there is no B."""
    found: dict[OrderedOp, Cell] = {}
    kinds: dict[tuple[int, int], set[Kind]] = {}
    for row in rows:
        for cell in row:
            kind, v, j = cell.step
            if cell.step in found:
                raise ValueError(f"{cell.where} is there twice, first as {found[cell.step].where}; keep one")
            done = kinds.setdefault((v, j), set())
            if kind in (Kind.B, Kind.W, Kind.BW) and (Kind.BW in done or (kind is Kind.BW and done - {Kind.F})):
                raise ValueError(
                    f"{cell.where}: the backward of microbatch {j} on virtual stage {v} is there already; "
                    "give it whole, or as input and weight gradient"
                )
            found[cell.step] = cell
            done.add(kind)
    for v, stage in enumerate(stage_of):
        whole = ({Kind.BW}, {Kind.W} if no_first_b and v == 0 else {Kind.B, Kind.W})
        for j in range(microbatches):
            done = kinds.get((v, j), set())
            what = "F" if Kind.F not in done else "backward" if done - {Kind.F} not in whole else ""
            if what:
                raise ValueError(
                    f"row {stage}: the {what} of microbatch {j} on virtual stage {v} is missing or not whole; "
                    f"add it, or drop microbatch {j} everywhere"
                )


class _OrderCheck:
    """Run the rows without times, to find ops that never start: they wait for an op behind them, or in a circle."""

    def __init__(self, rows: Sequence[Sequence[Cell]], virtual_stages: int) -> None:
        self.rows, self.last = rows, virtual_stages - 1
        self.every = {cell.step for row in rows for cell in row}
        self.done: set[OrderedOp] = set()

    def check(self) -> None:
        heads = [0] * len(self.rows)
        moved = True
        while moved:
            moved = False
            for stage, row in enumerate(self.rows):
                while heads[stage] < len(row) and self.missing(row[heads[stage]].step) is None:
                    self.done.add(row[heads[stage]].step)
                    heads[stage] += 1
                    moved = True
        stuck = {stage: row[heads[stage]] for stage, row in enumerate(self.rows) if heads[stage] < len(row)}
        if stuck:
            self.refuse(stuck)

    def refuse(self, stuck: dict[int, Cell]) -> None:
        """Name an op of the circle itself, not one that only waits for the circle."""
        row_of = {cell.step: stage for stage, row in enumerate(self.rows) for cell in row}
        stage, seen = min(stuck), set[int]()
        while stage not in seen:
            seen.add(stage)
            stage = row_of[self.lacking(stuck[stage])]
        cell = stuck[stage]
        kind, v, j = self.lacking(cell)
        own = row_of[kind, v, j] == stage
        why = "which comes after it on its row" if own else "which waits for it in a circle"
        raise ValueError(
            f"{cell.where} can never start: it needs {kind.value} of microbatch {j} on virtual stage {v}, {why}; "
            "change the order"
        )

    def lacking(self, cell: Cell) -> OrderedOp:
        """Return an op that a stuck op waits for."""
        step = self.missing(cell.step)
        assert step is not None, "an op that stands at the head of its row lacks an input"
        return step

    def missing(self, step: OrderedOp) -> OrderedOp | None:
        """Return an op that has to run before ``step`` and has not; ``None``: all have run."""
        return next((need for need in self.needs(step) if need not in self.done), None)

    def needs(self, step: OrderedOp) -> Iterator[OrderedOp]:
        kind, v, j = step
        if kind is Kind.F:
            if v > 0:
                yield (Kind.F, v - 1, j)
            return
        yield (Kind.F, v, j)
        if kind is Kind.W and (Kind.B, v, j) in self.every:
            yield (Kind.B, v, j)
        elif v < self.last:
            yield (Kind.BW if (Kind.BW, v + 1, j) in self.every else Kind.B, v + 1, j)
