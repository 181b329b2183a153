"""The figures of a schedule as typed values and as plain records."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from zbopt.analysis.metrics import figures
from zbopt.api.given import schedule_of
from zbopt.costs.times import tick_ns
from zbopt.portfolio.result import Result
from zbopt.problem.instance import Objective
from zbopt.problem.schedule import Schedule

Record = dict[str, int | float | str | bool | None]
"""One row of a table, as plain numbers and texts by column; ``pandas.DataFrame`` takes a list of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMetrics:
    """Hold what a schedule does on one stage.

    Attributes:
        stage: The stage, from 0.
        busy_ticks: Ticks in which the stage computes.
        idle_ticks: Ticks of the makespan in which it does not.
        span_ticks: Ticks from its first start to its last end.
        bubble_ratio: Idle share of the makespan; ``None``: the schedule is empty.
        peak_memory: Most memory that is live at a time, in the instance's unit.
        memory_cap: The most that may be; ``None``: no limit.
    """

    stage: int
    busy_ticks: int
    idle_ticks: int
    span_ticks: int
    bubble_ratio: float | None
    peak_memory: Fraction
    memory_cap: Fraction | None

    @property
    def fits(self) -> bool:
        """Return whether the peak is within the cap."""
        return self.memory_cap is None or self.peak_memory <= self.memory_cap


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Hold what a schedule costs. Times are in ticks, memory is in the instance's unit.

    Attributes:
        objective: What the instance minimises.
        value: Value of the objective, in ticks.
        makespan: Ticks from the first start to the last end over all stages.
        max_stage_span: Largest number of ticks from the first start to the last end of one stage.
        period: Most ticks by which an iteration starts after the one before; ``None``: there is one iteration.
        bubble_over_makespan: Idle share of all stages over the makespan; ``None``: the schedule is empty.
        bubble_over_stage_span: Idle share over the largest stage span: the bubble rate of the zero-bubble papers.
        tick: What one tick is: ``unit``, or a duration such as ``1us``.
        memory_unit: What amounts of memory count.
        stages: The figures of each stage, in order.
    """

    objective: Objective
    value: int
    makespan: int
    max_stage_span: int
    period: int | None
    bubble_over_makespan: float | None
    bubble_over_stage_span: float | None
    tick: str
    memory_unit: str
    stages: tuple[StageMetrics, ...]

    @property
    def makespan_s(self) -> float | None:
        """Return the makespan in seconds; ``None`` where a tick has no length."""
        return seconds_of(self.makespan, self.tick)

    @property
    def peak_memory(self) -> Fraction:
        """Return the largest peak of all stages."""
        return max(stage.peak_memory for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Return whether every stage keeps within its memory cap."""
        return all(stage.fits for stage in self.stages)

    def record(self) -> Record:
        """Return the figures of the whole schedule as one row of a table."""
        return {
            "objective": self.objective.value,
            "value": self.value,
            "makespan": self.makespan,
            "makespan_s": self.makespan_s,
            "max_stage_span": self.max_stage_span,
            "period": self.period,
            "bubble_over_makespan": self.bubble_over_makespan,
            "bubble_over_stage_span": self.bubble_over_stage_span,
            "peak_memory": float(self.peak_memory),
            "memory_unit": self.memory_unit,
            "fits": self.fits,
            "tick": self.tick,
        }

    def stage_records(self) -> list[Record]:
        """Return the figures of each stage as rows of a table.

        Example:
            >>> import zbopt
            >>> step = zbopt.instance(stages=2, microbatches=4)
            >>> rows = zbopt.metrics(zbopt.heuristics.one_f_one_b_split(step)).stage_records()
            >>> [row["busy_ticks"] for row in rows]
            [12, 12]
        """
        return [
            {
                "stage": stage.stage,
                "busy_ticks": stage.busy_ticks,
                "idle_ticks": stage.idle_ticks,
                "span_ticks": stage.span_ticks,
                "bubble_ratio": stage.bubble_ratio,
                "peak_memory": float(stage.peak_memory),
                "memory_cap": None if stage.memory_cap is None else float(stage.memory_cap),
                "fits": stage.fits,
            }
            for stage in self.stages
        ]


def metrics(schedule: Schedule | Result) -> Metrics:
    """Return the figures of a schedule: time, bubbles and memory, of the whole and of each stage.

    They describe what the events say, whether the schedule is valid or not.

    Args:
        schedule: A schedule, or a result that has one.

    Raises:
        ValueError: The result has no schedule.

    Example:
        >>> import zbopt
        >>> figures = zbopt.metrics(zbopt.heuristics.gpipe(zbopt.instance(stages=2, microbatches=4)))
        >>> figures.makespan, figures.peak_memory
        (15, Fraction(4, 1))
    """
    schedule = schedule_of(schedule)
    instance, known = schedule.instance, figures(schedule)
    caps = instance.memory_cap or (None,) * instance.stages
    stages = zip(known.busy_ticks, known.stage_spans, known.peak_memory, caps, strict=True)
    return Metrics(
        objective=instance.objective,
        value=known.value(instance.objective),
        makespan=known.makespan,
        max_stage_span=known.max_stage_span,
        period=known.period,
        bubble_over_makespan=known.bubble_over_makespan,
        bubble_over_stage_span=known.bubble_over_stage_span,
        tick=instance.tick,
        memory_unit=instance.memory_unit,
        stages=tuple(
            StageMetrics(
                stage=stage,
                busy_ticks=busy,
                idle_ticks=known.makespan - busy,
                span_ticks=span,
                bubble_ratio=(known.makespan - busy) / known.makespan if known.makespan else None,
                peak_memory=peak,
                memory_cap=cap,
            )
            for stage, (busy, span, peak, cap) in enumerate(stages)
        ),
    )


def seconds_of(ticks: int, tick: str) -> float | None:
    """Return ticks in seconds; ``None`` where a tick has no length."""
    return None if tick == "unit" else float(ticks * tick_ns(tick) / 10**9)
