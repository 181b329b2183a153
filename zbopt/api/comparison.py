"""Known schedules beside the optimum of an instance, or of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from zbopt.analysis.metrics import Figures, figures
from zbopt.api.figures import Record, seconds_of
from zbopt.costs.times import tick_ns
from zbopt.graph.memory import static_memory, taken_by_forward
from zbopt.heuristics import HEURISTICS, PLAN_FOR_THE_CAP, CannotFitError, NotApplicableError
from zbopt.portfolio.limits import DEFAULT_TIME_LIMIT_S
from zbopt.portfolio.result import Result
from zbopt.portfolio.run import solve
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule, Status
from zbopt.reports.words import amount_text, percent, table, ticks_text

OPTIMUM, BEST_FOUND = "optimum", "best found"
_ZB_AUTO = "zb-auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """Hold one schedule of a comparison. Without a schedule all figures are ``None``, and ``reason`` says why.

    Attributes:
        name: The heuristic, ``optimum``, or ``best found`` where the optimum is not proved.
        instance_name: The instance, where several are compared; ``None``: there is one.
        schedule: The schedule.
        makespan: Ticks from the first start to the last end over all stages.
        max_stage_span: Largest number of ticks from the first start to the last end of one stage.
        period: Most ticks by which an iteration starts after the one before; ``None``: there is one iteration.
        bubble_ratio: Idle share of all stages over the makespan.
        peak_memory: Most memory that any stage holds at a time, in the instance's unit.
        fits: Whether every stage keeps within its memory cap.
        reason: Why there is no schedule.
        tick: What one tick is.
    """

    name: str
    instance_name: str | None
    schedule: Schedule | None
    makespan: int | None
    max_stage_span: int | None
    period: int | None
    bubble_ratio: float | None
    peak_memory: Fraction | None
    fits: bool | None
    reason: str | None
    tick: str

    @property
    def makespan_s(self) -> float | None:
        """Return the makespan in seconds; ``None`` without a schedule, or where a tick has no length."""
        return None if self.makespan is None else seconds_of(self.makespan, self.tick)

    def record(self) -> Record:
        """Return the row as plain values by column."""
        return {
            "instance": self.instance_name,
            "schedule": self.name,
            "makespan": self.makespan,
            "makespan_s": self.makespan_s,
            "max_stage_span": self.max_stage_span,
            "period": self.period,
            "bubble_ratio": self.bubble_ratio,
            "peak_memory": None if self.peak_memory is None else float(self.peak_memory),
            "fits": self.fits,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Hold known schedules beside the optimum, a row each; ``print`` shows them as a table.

    Attributes:
        rows: The heuristics in the order of ``zbopt.heuristics.HEURISTICS``, then the optimum; of several instances one
            after another, without the heuristics that are not defined for one.
        results: The result of ``solve`` by the name of its instance; one instance alone has the name ``""``.
        best: Name of the instance of the least value; the first of equals.
    """

    rows: tuple[ComparisonRow, ...]
    results: Mapping[str, Result]
    best: str

    @property
    def result(self) -> Result:
        """Return the result of the best instance."""
        return self.results[self.best]

    def row(self, name: str, instance_name: str | None = None) -> ComparisonRow:
        """Return the row of a schedule by its name.

        Raises:
            ValueError: There is no such row.
        """
        for row in self.rows:
            if row.name == name and row.instance_name == instance_name:
                return row
        names = dict.fromkeys(row.name for row in self.rows)
        raise ValueError(f"{name!r} is no row of the comparison; give one of {', '.join(names)}")

    def records(self) -> list[Record]:
        """Return the rows as plain values by column, as ``pandas.DataFrame`` takes them."""
        return [row.record() for row in self.rows]

    def __str__(self) -> str:
        """Return the table of all rows that have a schedule."""
        head = ("schedule", "makespan", "bubble", "peak", "fits")
        cells = [_cells(row) for row in self.rows if row.schedule is not None]
        return "\n".join(table([head, *cells], indent=""))


def compare(
    instance: Instance | Mapping[str, Instance],
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    workers: int | None = None,
    seed: int = 0,
    deterministic: bool = False,
) -> Comparison:
    """Set every known schedule beside the optimum: time, bubbles, memory, and whether it fits the cap.

    Heuristics whose definition gives them their memory are built without the cap and held against it; those that plan
    for a cap are built with it.

    Args:
        instance: An instance, or several by name, such as those of ``zbopt.placements``.
        time_limit_s: Seconds for all solves together.
        workers: Threads of the search; ``None``: one for each processor.
        seed: Seed of all random choices.
        deterministic: Reach the same values on any machine: with one worker, in deterministic time.

    Raises:
        ValueError: A limit is out of range, no instance is given, or the ticks of several do not compare.

    Example:
        >>> import zbopt
        >>> comparison = zbopt.compare(zbopt.instance(stages=4, microbatches=8, memory_cap=4), time_limit_s=5)
        >>> comparison.row("1f1b-split").makespan, comparison.row("optimum").fits
        (30, True)
    """
    instances = {"": instance} if isinstance(instance, Instance) else dict(instance)
    if not instances:
        raise ValueError("no instance is given; give one or more")
    instances = {name: given.replace() for name, given in instances.items()}
    lengths = _tick_lengths(instances)
    results = {
        name: solve(
            given,
            time_limit_s=time_limit_s / len(instances),
            workers=workers,
            seed=seed,
            deterministic=deterministic,
        )
        for name, given in instances.items()
    }
    rows = (row for name, result in results.items() for row in _rows(name, result))

    def value(name: str) -> tuple[bool, Fraction]:
        found = results[name].value
        return found is None, lengths[name] * (found or 0)

    return Comparison(rows=tuple(rows), results=results, best=min(results, key=value))


def _tick_lengths(instances: Mapping[str, Instance]) -> dict[str, Fraction]:
    """Return the length of each instance's tick, in one unit.

    Raises:
        ValueError: A tick has a length and another has none.
    """
    ticks = {given.tick for given in instances.values()}
    if len(ticks) > 1 and "unit" in ticks:
        raise ValueError("times of some instances have a unit and those of others have none; give all of them one")
    return {name: Fraction(1) if given.tick == "unit" else tick_ns(given.tick) for name, given in instances.items()}


def _rows(instance_name: str, result: Result) -> Iterator[ComparisonRow]:
    """Yield the rows of one instance; of several, those of heuristics that have no schedule of it are left out."""
    for name, schedule, reason in known_schedules(result.instance):
        if schedule is not None or not instance_name:
            yield _row(name, instance_name, result.instance, schedule, reason)
    proved = result.status in (Status.OPTIMAL, Status.INFEASIBLE)
    reason = None if result.schedule is not None else str(result.infeasible or "no schedule was found in time")
    yield _row(OPTIMUM if proved else BEST_FOUND, instance_name, result.instance, result.schedule, reason)


def known_schedules(instance: Instance) -> Iterator[tuple[str, Schedule | None, str | None]]:
    """Yield each known schedule of an instance by name, or ``None`` and the reason why there is none.

    Heuristics whose definition gives them their memory are built without the cap, which they may break. The automatic
    zero-bubble schedule comes with the memory of 1 and 2 forwards a stage (``zb-1p``, ``zb-2p``).
    """
    for name, build in _heuristics(instance):
        try:
            yield name, build().model_copy(update={"instance": instance}), None
        except (CannotFitError, NotApplicableError) as error:
            yield name, None, str(error).removeprefix(f"{name}: ").removeprefix(f"{_ZB_AUTO}: ")


def _heuristics(instance: Instance) -> Iterator[tuple[str, Callable[[], Schedule]]]:
    """Yield each row's name and what builds its schedule; the automatic zero-bubble schedule also with 1p and 2p."""
    free = instance.model_copy(update={"memory_cap": None})
    for name, heuristic in HEURISTICS.items():
        if name == _ZB_AUTO:
            for times in (1, 2):
                yield f"zb-{times}p", partial(heuristic, _with_room_for(instance, times * instance.stages))
        else:
            yield name, partial(heuristic, instance if name in PLAN_FOR_THE_CAP else free)


def _with_room_for(instance: Instance, forwards: int) -> Instance:
    """Return the instance with room for ``forwards`` whole forwards on each stage, beside what it always holds."""
    caps = [
        static_memory(instance, stage)
        + forwards * sum((taken_by_forward(instance, v) for v in instance.virtual_stages_of(stage)), Fraction(0))
        for stage in range(instance.stages)
    ]
    return instance.model_copy(update={"memory_cap": tuple(caps)})


def _row(
    name: str, instance_name: str, instance: Instance, schedule: Schedule | None, reason: str | None
) -> ComparisonRow:
    known = None if schedule is None else figures(schedule)
    return ComparisonRow(
        name=name,
        instance_name=instance_name or None,
        schedule=schedule,
        makespan=None if known is None else known.makespan,
        max_stage_span=None if known is None else known.max_stage_span,
        period=None if known is None else known.period,
        bubble_ratio=None if known is None else known.bubble_over_makespan,
        peak_memory=None if known is None else max(known.peak_memory),
        fits=None if known is None else keeps_cap(known, instance),
        reason=reason,
        tick=instance.tick,
    )


def keeps_cap(known: Figures, instance: Instance) -> bool:
    """Return whether the peaks of a schedule are within the memory cap of ``instance``."""
    caps = instance.memory_cap
    return caps is None or all(peak <= cap for peak, cap in zip(known.peak_memory, caps, strict=True))


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    assert row.makespan is not None
    assert row.peak_memory is not None
    name = row.name if row.instance_name is None else f"{row.instance_name}: {row.name}"
    return (
        name,
        ticks_text(row.makespan, row.tick),
        percent(row.bubble_ratio),
        amount_text(row.peak_memory),
        "yes" if row.fits else "no",
    )
