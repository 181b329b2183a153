"""The rules, one method each; see the package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from operator import attrgetter

from zbopt.instance import Barrier, Instance, Kind
from zbopt.schedule import Event, Schedule
from zbopt.validator.drops import FORBIDDEN, TOO_EARLY, check_drops, drop_needs, recompute_times
from zbopt.validator.memory import peak_memory
from zbopt.validator.verdict import Code, Verdict, Violation, name_of, shown


def validate(instance: Instance, schedule: Schedule) -> Verdict:
    """Check ``schedule`` against every rule of ``instance``.

    Never raises, whatever the numbers. Of events that stand for the same task the first counts; an event on a wrong
    stage still counts as its task; one that the instance does not call for only occupies its stage.
    """
    return _Check(instance).verdict(schedule.events)


_BACK_IN_TIME = (Code.DEPENDENCY_VIOLATION, Code.OPTIMIZER_BEFORE_GRADIENT, *TOO_EARLY)
"""Something starts before what it waits for."""

_Need = tuple[Event, Event | None, int, Kind, int]
"""An event, the one whose end it waits for (``None``: not there), the lag, and the awaited kind and virtual stage."""


class _Check:
    """One validation. ``at[kind][place]`` is the event of a task; place = virtual stage * microbatches + microbatch."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.violations: list[Violation] = []
        self.rows: list[list[Event]] = [[] for _ in range(instance.stages)]
        self.virtual_stages, self.microbatches = instance.virtual_stages, instance.microbatches
        places = self.virtual_stages * self.microbatches
        none = (None,) * self.virtual_stages
        self.ticks: dict[Kind, tuple[int | None, ...]] = {
            Kind.F: instance.forward_ticks,
            Kind.B: instance.backward_ticks or none,
            Kind.W: instance.weight_ticks or none,
            Kind.BW: instance.fused_backward_ticks or none,
            Kind.R: recompute_times(instance),
        }
        self.at: dict[Kind, list[Event | None]] = {kind: [None] * places for kind in self.ticks}
        self.steps: list[Event | None] = [None] * instance.stages
        self.unfinished = 0

    def verdict(self, events: Sequence[Event]) -> Verdict:
        for event in events:
            self._screen(event)
        for virtual_stage in range(self.virtual_stages):
            for microbatch in range(self.microbatches):
                if not self._runs_split(virtual_stage * self.microbatches + microbatch):
                    self._choose_backward(virtual_stage, microbatch)
                    self._find_missing(virtual_stage, microbatch)
        self._dependencies()
        check_drops(self.instance, self.at, self._report)
        for stage, row in enumerate(self.rows):
            row.sort(key=attrgetter("start", "end"))
            self._overlaps(stage, row)
        self._optimizer()
        peaks = peak_memory(self.instance, self.at, self._report)
        self._cycle()
        return Verdict(
            violations=tuple(self.violations),
            makespan=_makespan(self.rows),
            busy_ticks=tuple(sum(e.end - e.start for e in row) for row in self.rows),
            unfinished_activations=self.unfinished,
            peak_memory=peaks,
        )

    def _report(self, code: Code, message: str) -> None:
        self.violations.append(Violation(code, message))

    # Which task an event is, and whether it is one.

    def _screen(self, event: Event) -> None:
        """Note what is wrong with an event alone, and put it where its task belongs."""
        on_a_stage = 0 <= event.stage < len(self.rows)
        if not on_a_stage:
            most = len(self.rows) - 1
            self._report(
                Code.INVALID_STAGE, f"{name_of(event)} is on stage {shown(event.stage)}; stages are 0 to {most}"
            )
        proper = 0 <= event.start < event.end or (event.kind is Kind.O and 0 <= event.start == event.end)
        if not proper:
            self._report(Code.INVALID_INTERVAL, _interval_fault(event))
        elif on_a_stage:
            self.rows[event.stage].append(event)
        if event.kind is Kind.O:
            self._place_step(event, on_a_stage, proper)
        elif event.kind not in self.ticks:
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} is not called for")
        else:
            self._place_task(event, on_a_stage, proper)

    def _place_task(self, event: Event, on_a_stage: bool, proper: bool) -> None:
        virtual_stage, microbatches = event.virtual_stage, self.microbatches
        if virtual_stage is not None and not 0 <= virtual_stage < self.virtual_stages:
            if on_a_stage:
                most = self.virtual_stages - 1
                self._report(Code.INVALID_STAGE, f"{name_of(event)}: virtual stages are 0 to {most}")
        elif virtual_stage is None or event.microbatch is None or not 0 <= event.microbatch < microbatches:
            what = "no virtual stage" if virtual_stage is None else f"no microbatch from 0 to {microbatches - 1}"
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} names {what}")
        else:
            stage = self.instance.stage_of[virtual_stage]
            if on_a_stage and stage != event.stage:
                self._report(Code.INVALID_STAGE, f"{name_of(event)}: virtual stage {virtual_stage} is on stage {stage}")
            place = virtual_stage * microbatches + event.microbatch
            self._place(event, proper, self.ticks[event.kind][virtual_stage], self.at[event.kind], place)

    def _place_step(self, event: Event, on_a_stage: bool, proper: bool) -> None:
        if event.virtual_stage is not None or event.microbatch is not None:
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} is not called for: an O is of its whole stage")
        elif on_a_stage:
            ticks = self.instance.optimizer_ticks
            self._place(event, proper, None if ticks is None else ticks[event.stage], self.steps, event.stage)

    def _place(self, event: Event, proper: bool, ticks: int | None, slots: list[Event | None], place: int) -> None:
        """Put an event into ``slots[place]``; ``ticks`` is how long it runs, ``None`` where it must not."""
        if ticks is None or event.iteration != 0:
            code = FORBIDDEN.get(event.kind, Code.UNKNOWN_TASK) if event.iteration == 0 else Code.UNKNOWN_TASK
            self._report(code, f"{name_of(event)} is not called for: {self._why_unknown(event)}")
        elif (first := slots[place]) is not None:
            message = f"{name_of(event)} at {shown(event.start)} is there already, at {shown(first.start)}"
            self._report(Code.DUPLICATE_TASK, message)
        else:
            slots[place] = event
            if proper and event.end - event.start != ticks:
                message = f"{name_of(event)} takes {shown(event.end - event.start)} ticks, the instance says {ticks}"
                self._report(Code.WRONG_DURATION, message)

    def _why_unknown(self, event: Event) -> str:
        if event.iteration != 0:
            return "the instance has iteration 0 alone"
        if event.kind is Kind.O:
            return "there is no barrier"
        if event.kind is Kind.BW:
            return "its backward must not be fused"
        if event.kind in FORBIDDEN:
            return "its activation is kept"
        if self.instance.backward_ticks is None:
            return "its backward must not be split"
        return "the first virtual stage has no B"

    def _runs_split(self, place: int) -> bool:
        """F, B and W are there and no BW: the commonest case, in which nothing is missing or to be chosen."""
        forwards, backwards, weights, fuseds = (self.at[kind] for kind in (Kind.F, Kind.B, Kind.W, Kind.BW))
        return (
            forwards[place] is not None
            and backwards[place] is not None
            and weights[place] is not None
            and fuseds[place] is None
        )

    def _choose_backward(self, virtual_stage: int, microbatch: int) -> None:
        """A backward is split or fused, not both: of the two, a whole pair of B and W counts, else BW."""
        place = virtual_stage * self.instance.microbatches + microbatch
        fused = self.at[Kind.BW][place]
        split = [kind for kind in (Kind.B, Kind.W) if self.at[kind][place] is not None]
        if fused is None or not split:
            return
        for kind in [Kind.BW] if len(split) == 2 else split:
            extra = self.at[kind][place]
            assert extra is not None
            self.at[kind][place] = None
            self._report(Code.UNKNOWN_TASK, f"{name_of(extra)} is one too many: this backward is both split and fused")

    def _find_missing(self, virtual_stage: int, microbatch: int) -> None:
        forward, *backward = (
            self.at[kind][virtual_stage * self.instance.microbatches + microbatch] is not None
            for kind in (Kind.F, Kind.B, Kind.W, Kind.BW)
        )
        if not forward:
            self._missing(self._task_name(Kind.F, virtual_stage, microbatch))
        has_b, has_w, has_fused = backward
        if has_fused:
            return
        wanted = []
        if not (has_b or has_w) and self.ticks[Kind.BW][virtual_stage] is not None:
            wanted = [Kind.BW]
        else:
            wanted += [Kind.B] if not has_b and self.ticks[Kind.B][virtual_stage] is not None else []
            wanted += [] if has_w else [Kind.W]
        for kind in wanted:
            also = " (or B and W)" if kind is Kind.BW and self.instance.may_split else ""
            self._missing(self._task_name(kind, virtual_stage, microbatch) + also)
        if forward and wanted:
            self.unfinished += 1
            name = self._task_name(Kind.F, virtual_stage, microbatch)
            self._report(
                Code.UNFINISHED_ACTIVATION, f"the activation of {name} is not released: {wanted[0]} is missing"
            )

    def _missing(self, name: str) -> None:
        self._report(Code.MISSING_TASK, f"{name} is not in the schedule")

    def _task_name(self, kind: Kind, virtual_stage: int, microbatch: int) -> str:
        stage = self.instance.stage_of[virtual_stage]
        return f"it0/s{stage}/v{virtual_stage}/mb{microbatch}/{kind.value}"

    # What waits for what.

    def _dependencies(self) -> None:
        for event, awaited, lag, kind, virtual_stage in self._needs():
            if awaited is None:
                name = self._task_name(kind, virtual_stage, event.microbatch or 0)
                self._report(Code.MISSING_DEPENDENCY, f"{name_of(event)} needs {name}, which is not in the schedule")
            elif event.start < awaited.end + lag:
                message = (
                    f"{name_of(event)} starts at {shown(event.start)}, its input arrives at {shown(awaited.end + lag)}"
                )
                self._report(Code.DEPENDENCY_VIOLATION, f"{message} from {name_of(awaited)}")

    def _needs(self) -> Iterator[_Need]:
        """Everything that each task of the schedule waits for, O excepted."""
        instance, step = self.instance, self.instance.microbatches
        forwards, backwards, weights, fuseds = (self.at[kind] for kind in (Kind.F, Kind.B, Kind.W, Kind.BW))
        last = instance.virtual_stages - 1
        for v in range(instance.virtual_stages):
            has_b = self.ticks[Kind.B][v] is not None
            gives = Kind.BW if instance.backward_ticks is None else Kind.B
            down, up = self._lag(v, v - 1), self._lag(v, v + 1)
            for place in range(v * step, (v + 1) * step):
                forward, backward, weight = forwards[place], backwards[place], weights[place]
                if forward is not None and v > 0:
                    yield forward, forwards[place - step], down, Kind.F, v - 1
                if weight is not None and has_b:
                    yield weight, backward, 0, Kind.B, v
                taker = fuseds[place] or (backward if has_b else weight)
                if taker is None:
                    continue
                yield taker, forward, 0, Kind.F, v
                if v < last:
                    yield taker, fuseds[place + step] or backwards[place + step], up, gives, v + 1

    def _lag(self, virtual_stage: int, other: int) -> int:
        """Ticks of a transfer between neighbours on the route; past its ends there is none."""
        stage_of = self.instance.stage_of
        return (
            self.instance.comm_ticks if 0 <= other < len(stage_of) and stage_of[virtual_stage] != stage_of[other] else 0
        )

    def _gradients(self, stage: int) -> Iterator[tuple[int, Event | None]]:
        """(place, W or BW) of every backward that the optimizer step of ``stage`` waits for."""
        step = self.instance.microbatches
        weights, fuseds = self.at[Kind.W], self.at[Kind.BW]
        for v, held_by in enumerate(self.instance.stage_of):
            if self.instance.barrier is Barrier.GLOBAL or held_by == stage:
                yield from ((place, fuseds[place] or weights[place]) for place in range(v * step, (v + 1) * step))

    def _optimizer(self) -> None:
        if self.instance.optimizer_ticks is None:
            return
        known: tuple[Event | None, int, int] | None = None
        for stage, event in enumerate(self.steps):
            if event is None:
                self._missing(f"it0/s{stage}/O")
                continue
            if known is None or self.instance.barrier is not Barrier.GLOBAL:
                known = self._last_gradient(stage)
            latest, lacking, first_lacking = known
            if lacking:
                name = self._task_name(Kind.W, *divmod(first_lacking, self.instance.microbatches))
                message = (
                    f"{name_of(event)} needs {lacking} gradients that are not in the schedule, the first is {name}"
                )
                self._report(Code.MISSING_DEPENDENCY, message)
            if latest is not None and event.start < latest.end:
                message = (
                    f"{name_of(event)} starts at {shown(event.start)}, {name_of(latest)} ends at {shown(latest.end)}"
                )
                self._report(Code.OPTIMIZER_BEFORE_GRADIENT, message)

    def _last_gradient(self, stage: int) -> tuple[Event | None, int, int]:
        """The gradient of ``stage``'s optimizer step that ends last, how many are missing, and the first such place."""
        latest: Event | None = None
        lacking = []
        for place, event in self._gradients(stage):
            if event is None:
                lacking.append(place)
            elif latest is None or event.end > latest.end:
                latest = event
        return latest, len(lacking), lacking[0] if lacking else 0

    # What a stage does and holds at one time.

    def _overlaps(self, stage: int, row: Sequence[Event]) -> None:
        """Each event that starts while another runs; one of no length does so only strictly inside it."""
        longest = row[0] if row else None
        for before, event in pairwise(row):
            assert longest is not None
            longest = before if before.end > longest.end else longest
            if event.start < longest.end:
                message = (
                    f"stage {stage}: {name_of(event)} starts at {shown(event.start)}, {name_of(longest)} runs from"
                )
                self._report(Code.STAGE_OVERLAP, f"{message} {shown(longest.start)} to {shown(longest.end)}")

    # Whether the orders wait for themselves.

    def _cycle(self) -> None:
        """Report ops that wait for each other in a circle by order and dependencies: no times mend that.

        Only where something starts before its input: otherwise every wait points back in time.
        """
        if not any(v.code in _BACK_IN_TIME for v in self.violations):
            return
        names, waits = self._waits()
        try:
            TopologicalSorter(waits).prepare()
        except CycleError as error:
            circle = [names[node] for node in reversed(error.args[1][1:]) if node in names]
            chain = ", which waits for ".join([*circle[:6], *(["..."] if len(circle) > 6 else []), circle[0]])
            self._report(Code.CYCLE, f"{len(circle)} ops wait for each other in a circle: {chain}")

    def _waits(self) -> tuple[dict[int, str], dict[int, list[int]]]:
        """Names of the tasks, and what each waits for, by the event's address; negative numbers join gradients."""
        counted = [event for slots in (*self.at.values(), self.steps) for event in slots if event is not None]
        names = {id(event): name_of(event) for event in counted}
        waits: dict[int, list[int]] = {node: [] for node in names}
        for event, awaited, *_ in (*self._needs(), *drop_needs(self.instance, self.at)):
            if awaited is not None:
                waits[id(event)].append(id(awaited))
        for row in self.rows:
            for before, after in pairwise([event for event in row if id(event) in names]):
                if before is not after and before.end <= after.start:
                    waits[id(after)].append(id(before))
        for stage, step in enumerate(self.steps):
            if step is not None:
                node = -1 if self.instance.barrier is Barrier.GLOBAL else -1 - stage
                waits[id(step)].append(node)
                if node not in waits:
                    waits[node] = [id(gradient) for _, gradient in self._gradients(stage) if gradient is not None]
        return names, waits


def _makespan(rows: Sequence[Sequence[Event]]) -> int:
    events = [event for row in rows for event in row]
    return max(e.end for e in events) - min(e.start for e in events) if events else 0


def _interval_fault(event: Event) -> str:
    span = f"{name_of(event)} runs from {shown(event.start)} to {shown(event.end)}"
    return f"{span}; times start at 0" if event.start < 0 else f"{span}; it must end after it starts"
