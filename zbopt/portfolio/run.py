"""From an instance to a proved schedule: closed bounds, then heuristics until one meets them, then an engine between.

Whatever an engine claims, only what the validator accepts becomes a result.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from queue import SimpleQueue

from zbopt.analysis.metrics import value_of
from zbopt.bounds import lower_bound
from zbopt.engine.reach import require_modelled
from zbopt.engine.request import ParentMessage, SolveRequest
from zbopt.engine.watch import Beside, SolverDiedError, run
from zbopt.graph import TaskGraph, expand
from zbopt.heuristics import HEURISTICS, CannotFitError, NotApplicableError, best_first
from zbopt.heuristics.list_schedule import first_schedule
from zbopt.heuristics.tools.patience import OutOfTimeError, bounded, limited
from zbopt.improve.improving import improved
from zbopt.portfolio.limits import DEFAULT_TIME_LIMIT_S, Limits
from zbopt.portfolio.result import Infeasible, NamedValue, Progress, Result, infeasible
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance, Objective
from zbopt.problem.schedule import Engine, Provenance, Schedule, Status, versions
from zbopt.timing import schedule_of, starts_of
from zbopt.timing.iterations import all_iterations, first_iteration, one_iteration
from zbopt.timing.repeat import find_run, lengthened, shortened
from zbopt.validator import validate

log = logging.getLogger(__name__)

_HEURISTICS_SHARE = 0.5
"""Of the time: after it no further heuristic begins, and those that search stop with what they have."""
_QUESTIONS_A_S, _EVENTS_A_QUESTION = 250, 100
"""What counts as a second where no clock may: so often a heuristic asks whether to go on, so many events it writes."""
_OPS_TO_HURRY = 20_000
"""Where there are more, any heuristic may take seconds: one schedule comes first, as fast as can be."""
_GRAPH_AS_LONG_AS = 2.0
"""To build a task graph takes so many times as long as such a schedule does."""
_TELL_EVERY_S, _TELL_NONE_EVERY_S = 1.0, 0.2
"""While this process works, while it waits."""
_ALONE_S = 1.0
"""Improving may meet the bound so soon: an engine is begun only after that."""
_OPS_WORTH_IMPROVING, _MOST_OPS_TO_IMPROVE = 150, 50_000
"""Where there are fewer, CP-SAT is the better search; longer steps take long to pack."""
_KERNELS_SHARE, _IMPROVING_SHARE = 0.25, 0.6
"""Of the time: after it annealing begins, and where no worker is left for an engine meanwhile, no more improving."""


def solve(
    instance: Instance,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    workers: int | None = None,
    seed: int = 0,
    deterministic: bool = False,
    engine: Engine | str = Engine.CP_SAT,
    on_progress: Callable[[Progress], None] | None = None,
    candidates: Mapping[str, Callable[[Instance], Schedule]] | None = None,
    start: Schedule | None = None,
) -> Result:
    """Find the best schedule for ``instance`` that the limits allow, and prove how good it is.

    Ctrl-C ends the search and returns what was found.

    Args:
        instance: The problem.
        time_limit_s: Seconds for the whole; of CP-SAT's deterministic time where ``deterministic``.
        workers: Threads of CP-SAT; ``None``: all processors that this process may use.
        seed: Of the engine's random choices.
        deterministic: The same value and bound on any machine: one worker, deterministic time.
        engine: What searches. ``milp`` is the published integer program as the paper runs it, from the best heuristic's
            schedule on and without any bound but its own: the reference to compare with.
        on_progress: Told each better value or bound, and at least each second what the search does.
        candidates: Further heuristics by name, tried before zbopt's own, each on the whole instance. One that raises an
            exception, or returns anything but a valid schedule, is left out; ``Result.notes`` says why.
        start: A valid schedule of ``instance`` to begin with; the result is never worse. ``None``: there is none.

    Raises:
        ValueError: A limit is out of range, ``engine`` does not model the instance, or ``start`` breaks a rule of it.
    """
    limits = Limits(time_limit_s, workers, seed, deterministic, Engine(engine))
    if limits.engine is Engine.MILP:
        require_modelled(instance)
    solving = _Solve(instance, limits, on_progress or (lambda progress: None), candidates=dict(candidates or {}))
    return solving.run(None if start is None else _checked(instance, start))


def _checked(instance: Instance, start: Schedule) -> Schedule:
    """Return ``start`` as a schedule of ``instance``, whichever instance it names.

    Raises:
        ValueError: It breaks a rule of ``instance``; the message gives the first violation.
    """
    violations = validate(instance, start).violations
    if violations:
        raise ValueError(f"start is not a valid schedule of the instance: {violations[0]}")
    return start.model_copy(update={"instance": instance})


@dataclass
class _Solve:
    """One run. Every schedule passes ``offer``, every bound passes ``prove``."""

    instance: Instance
    limits: Limits
    on_progress: Callable[[Progress], None]
    started: float = field(default_factory=time.monotonic)
    questions: int = 0
    told_at_s: float = 0.0
    hurried_s: float = 0.0
    best: Schedule | None = None
    value: int | None = None
    bound: Bound = field(default_factory=lambda: Bound(0, "bound:none"))
    best_heuristic: NamedValue | None = None
    interrupted: bool = False
    fault: str | None = None
    doing: str = ""
    words: SimpleQueue[ParentMessage | None] = field(default_factory=SimpleQueue)
    history: list[Progress] = field(default_factory=list)
    candidates: Mapping[str, Callable[[Instance], Schedule]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def run(self, start: Schedule | None = None) -> Result:
        reason = infeasible(self.instance)
        if reason is None:
            try:
                if start is not None:
                    self.offer(start)
                if self.limits.engine is Engine.CP_SAT:
                    self.prove(lower_bound(self.instance))
                self.try_heuristics()
                if not self.closed() and self.best is not None and self.has_time_for_graph(1.0):
                    self.search(self.improving())
            except KeyboardInterrupt:
                self.interrupted = True
        return self.result(reason)

    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def late(self, share: float = 1.0) -> bool:
        """A share of the time is over by the clock, which must decide nothing where the search is deterministic."""
        return not self.limits.deterministic and self.elapsed_s() > share * self.limits.time_limit_s

    def out_of_patience(self, share: float = _HEURISTICS_SHARE) -> bool:
        """Heuristics have had their share: by the clock, or where the search is deterministic, by what they did."""
        if self.elapsed_s() > self.told_at_s + _TELL_EVERY_S:
            self.tell()
        if not self.limits.deterministic:
            return self.late(share)
        self.questions += 1
        return self.questions > share * self.limits.time_limit_s * _QUESTIONS_A_S

    def closed(self) -> bool:
        return self.value is not None and self.bound.value >= self.value

    def note(self) -> None:
        """Write the state into the history and tell the caller."""
        self.history.append(self.tell())

    def tell(self) -> Progress:
        """Tell the caller how things stand."""
        self.told_at_s = self.elapsed_s()
        progress = Progress(self.told_at_s, self.value, self.bound.value, self.doing)
        self.on_progress(progress)
        return progress

    def tell_now_and_then(self) -> None:
        """Show that time passes."""
        if self.elapsed_s() > self.told_at_s + _TELL_NONE_EVERY_S:
            self.tell()

    def prove(self, bound: Bound) -> None:
        if bound.value > self.bound.value:
            self.bound = bound
            self.distrust_bound()
            self.note()

    def distrust_bound(self) -> None:
        """A bound above the value of a valid schedule is wrong: drop it, and say so."""
        if self.value is not None and self.bound.value > self.value:
            self.fault = (
                f"a fault of zbopt: {self.bound.proved_by} claims that nothing is below {self.bound.value} ticks, "
                f"but a valid schedule takes {self.value}; the bound is dropped. Please report the instance"
            )
            log.error(self.fault)
            self.bound = Bound(0, "bound:none")

    def offer(self, schedule: Schedule, *, may_fail: bool = False) -> bool:
        """Keep ``schedule`` if the validator accepts it and it is better; whether it was accepted.

        One that ``may_fail`` promises nothing: that it does is no fault.
        """
        verdict = validate(self.instance, schedule)
        if not verdict.valid:
            level = logging.INFO if may_fail else logging.ERROR
            log.log(level, "%s gave an invalid schedule: %s", schedule.provenance.source, verdict.violations[0].message)
            return False
        value = value_of(schedule)
        if self.value is None or value < self.value:
            self.best, self.value = schedule, value
            self.distrust_bound()
            self.note()
        return True

    def try_heuristics(self) -> None:
        """Every heuristic until the bound is met or the time is over; on a long step by way of a short one."""
        short = shortened(self.instance)
        bound = self.bound if short is None or self.limits.engine is not Engine.CP_SAT else lower_bound(short)
        with limited(self.out_of_patience), bounded(bound.value):
            if short is None and self.ops > _OPS_TO_HURRY:
                self.hurry()
            self.try_candidates()
            for name, heuristic in best_first(self.instance) if not self.closed() else ():
                self.doing = f"heuristic {name}"
                try:
                    schedule = heuristic(self.instance) if short is None else self.repeated(heuristic(short))
                except (CannotFitError, NotApplicableError, OutOfTimeError) as reason:
                    log.info("%s: %s", name, reason)
                    schedule = None
                if schedule is not None:
                    self.offer_heuristic(name, schedule, may_fail=short is not None)
                if self.closed() or self.out_of_patience():
                    break
            if self.best is None and self.out_of_patience():
                self.hurry()
            if self.best is None:  # Nothing repeats in any short step, or time is over: the whole one always has one.
                self.doing = "heuristic list"
                self.offer_heuristic("list", HEURISTICS["list"](self.instance))

    def try_candidates(self) -> None:
        """Try the caller's heuristics. None of their faults ends the solve."""
        for name, heuristic in self.candidates.items():
            self.doing = f"heuristic {name}"
            try:
                schedule = heuristic(self.instance)
            except (CannotFitError, NotApplicableError, OutOfTimeError) as reason:
                log.info("%s: %s", name, reason)
                continue
            except Exception as fault:  # whatever the caller's code does, the solve goes on
                self.remark(f"candidate {name} raised {type(fault).__name__}: {fault}")
                continue
            if not isinstance(schedule, Schedule):
                self.remark(f"candidate {name} returned a {type(schedule).__name__}; it must return a Schedule")
                continue
            violations = validate(self.instance, schedule).violations
            if violations:
                self.remark(f"candidate {name} returned an invalid schedule: {violations[0]}")
            else:
                self.offer_heuristic(name, schedule.model_copy(update={"instance": self.instance}))

    def remark(self, note: str) -> None:
        """Log what is wrong with a candidate, and keep it for the result."""
        log.warning(note)
        self.notes.append(note)

    @property
    def is_worth_improving(self) -> bool:
        """Several virtual stages a stage, and not few ops: there engines are weak."""
        several = self.instance.virtual_stages > self.instance.stages
        return several and _OPS_WORTH_IMPROVING <= self.ops <= _MOST_OPS_TO_IMPROVE

    @property
    def is_shared(self) -> bool:
        """One worker improves while the others are the engine's."""
        limits = self.limits
        engine = limits.engine is Engine.CP_SAT and self.instance.overlapped_ticks is None
        return engine and limits.threads > 1 and self.is_worth_improving

    @property
    def ops(self) -> int:
        """About as many as the step has."""
        return 3 * self.instance.virtual_stages * self.instance.microbatches

    def hurry(self) -> None:
        """The first schedule, where one can be had without a task graph."""
        began, self.doing = self.elapsed_s(), "heuristic list"
        schedule = first_schedule(self.instance)
        if schedule is not None:
            self.offer_heuristic("list", schedule)
        self.hurried_s = self.elapsed_s() - began

    def has_time_for_graph(self, share: float) -> bool:
        """A task graph can be built and begun with before a share of the time is over: nothing stops that."""
        left_s = share * self.limits.time_limit_s - self.elapsed_s()
        return not self.late(share) and (self.limits.deterministic or _GRAPH_AS_LONG_AS * self.hurried_s < left_s)

    def offer_heuristic(self, name: str, schedule: Schedule, *, may_fail: bool = False) -> None:
        """Offer what a heuristic found, and remember whose the best is."""
        before = self.value
        self.questions += len(schedule.events) // _EVENTS_A_QUESTION
        self.offer(schedule, may_fail=may_fail)
        if self.value != before and self.value is not None:
            self.best_heuristic = NamedValue(name, self.value)

    def improving(self) -> Iterator[None]:
        """Search for a better schedule where that is worth while, a piece at a time."""
        share = 1.0 if self.is_shared else _IMPROVING_SHARE
        if not self.is_worth_improving or self.best is None:
            return
        enough, over = (partial(self.out_of_patience, part) for part in (share * _KERNELS_SHARE, share))
        search = improved(self.one(self.best), self.graph, self.limits.seed, enough)
        try:
            while not self.closed() and not over():
                with limited(over), bounded(self.bound.value):
                    self.doing, schedule = next(search)
                if schedule is not None:
                    self.questions += len(schedule.events) // _EVENTS_A_QUESTION
                    before = self.value
                    self.offer(self.whole(schedule))
                    if self.value != before:
                        self.words.put(
                            ParentMessage(value=self.value, starts=starts_of(self.graph, self.one(self.best)))
                        )
                yield
        except (NotApplicableError, StopIteration) as reason:
            log.info("no further improving: %s", reason)

    def repeated(self, short: Schedule) -> Schedule | None:
        """The whole step from a schedule of a short one; ``None`` where that has no repeating middle."""
        graph = expand(short.instance)
        starts = starts_of(graph, short)
        run = find_run(graph, starts, self.instance.microbatches - short.instance.microbatches)
        return None if run is None else lengthened(short, run, self.instance)

    @cached_property
    def graph(self) -> TaskGraph:
        """The task graph of what the engine is asked: the whole step, or for the period one iteration."""
        return expand(one_iteration(self.instance) if self.instance.objective is Objective.PERIOD else self.instance)

    def answered(self, starts: Mapping[int, int]) -> Schedule:
        """The schedule of the whole step that the engine's starts stand for."""
        return self.whole(
            schedule_of(self.graph, starts, Provenance(source=self.limits.engine.value, versions=versions()))
        )

    def one(self, schedule: Schedule) -> Schedule:
        """What the graph has of a schedule: all of it, or for the period one iteration."""
        return first_iteration(schedule) if self.instance.objective is Objective.PERIOD else schedule

    def whole(self, schedule: Schedule) -> Schedule:
        """The schedule of which the graph has that."""
        return all_iterations(schedule, self.instance) if self.instance.objective is Objective.PERIOD else schedule

    def search(self, improving: Iterator[None]) -> None:
        """Improve here and let the engine search in a process of its own, at once where there are workers for both.

        No engine chooses which F and BW run as one op: where some may, the best schedule found here is the answer.
        """
        alone_s = _ALONE_S if self.is_shared else float("inf")
        began_s = self.elapsed_s()
        for _ in improving:
            if self.elapsed_s() > began_s + alone_s:
                break
        if self.instance.overlapped_ticks is not None:
            log.info("overlapped_ticks: no engine searches; the answer is the best heuristic")
        elif not self.closed():
            self.run_engine(improving)
        for _ in improving:
            pass

    def run_engine(self, improving: Iterator[None]) -> None:
        """Take what the engine finds and proves until it is done, the time is over, or it dies."""
        self.words = SimpleQueue()
        try:
            for news in run(self.order(self.graph), Beside(improving, self.words)):
                if news is None:
                    self.tell_now_and_then()
                elif news.starts is not None:
                    self.offer(self.answered(news.starts))
                elif news.bound is not None:
                    self.prove(news.bound)
                else:
                    self.doing = news.doing or self.doing
                if self.closed():
                    return
        except SolverDiedError as fault:
            self.fault = str(fault)
            log.warning("%s; the best schedule found before is kept", fault)

    def order(self, graph: TaskGraph) -> SolveRequest:
        assert self.best is not None
        limits = self.limits
        begin = self.one(self.best)
        left = limits.time_limit_s if limits.deterministic else limits.time_limit_s - self.elapsed_s()
        return SolveRequest(
            engine=limits.engine,
            instance=graph.instance,
            starts=starts_of(graph, begin),
            value=value_of(begin),
            bound=self.bound.value,
            proved_by=self.bound.proved_by,
            time_limit_s=max(0.1, left),
            workers=limits.threads,
            busy=int(self.is_shared),
            seed=limits.seed,
            deterministic=limits.deterministic,
            memory_limit_mb=_memory_limit_mb(),
        )

    def result(self, reason: Infeasible | None) -> Result:
        if reason is not None:
            status = Status.INFEASIBLE
        elif self.closed():
            status = Status.OPTIMAL
        else:
            status = Status.UNKNOWN if self.best is None else Status.FEASIBLE
        return Result(
            instance=self.instance,
            status=status,
            schedule=self.stamped(status),
            value=self.value,
            bound=self.bound,
            wall_time_s=self.elapsed_s(),
            best_heuristic=self.best_heuristic,
            infeasible=reason,
            interrupted=self.interrupted,
            fault=self.fault,
            history=tuple(self.history),
            notes=tuple(self.notes),
        )

    def stamped(self, status: Status) -> Schedule | None:
        """The best schedule with the provenance of this run."""
        if self.best is None:
            return None
        provenance = Provenance(
            source=self.best.provenance.source,
            engine=self.limits.engine,
            status=status,
            value=self.value,
            lower_bound=self.bound.value,
            proved_by=self.bound.proved_by,
            seed=self.limits.seed,
            workers=self.limits.threads,
            time_limit_s=self.limits.time_limit_s,
            wall_time_s=round(self.elapsed_s(), 3),
            deterministic=self.limits.deterministic,
            versions=versions(),
        )
        return self.best.model_copy(update={"provenance": provenance})


def _memory_limit_mb() -> int:
    """Three quarters of the machine's memory: CP-SAT stops there instead of bringing the machine down."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4 // 2**20
