"""The rules of the ops of a microbatch, one method each; see the package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from zbopt.problem.instance import COMPUTE, Instance, Kind, MicrobatchTimes
from zbopt.problem.schedule import Event, Schedule
from zbopt.validator.circle import circle
from zbopt.validator.drops import FORBIDDEN, TOO_EARLY, check_drops, drop_needs, drop_times
from zbopt.validator.held import overlaps
from zbopt.validator.memory import peak_memory
from zbopt.validator.overlap import overlapped_pairs
from zbopt.validator.routes import routes_of
from zbopt.validator.transfers import check_transfers, send_times, transfer_time
from zbopt.validator.update import Update
from zbopt.validator.verdict import Code, Verdict, Violation, name_of, shown


def validate(instance: Instance, schedule: Schedule) -> Verdict:
    """Check ``schedule`` against every rule of ``instance``.

    Never raises, whatever the numbers. Of events that stand for the same task the first counts; an event on a wrong
    stage still counts as its task; one that the instance does not call for only occupies its stage.
    """
    return _Check(instance).verdict(schedule.events)


_BACK_IN_TIME = (
    Code.DEPENDENCY_VIOLATION,
    Code.OPTIMIZER_BEFORE_GRADIENT,
    Code.REDUCTION_BEFORE_WEIGHT,
    Code.ITERATION_OVERLAP,
    *TOO_EARLY,
)
"""Something starts before what it waits for."""

_MAY_BE_EMPTY = (Kind.O, Kind.SEND_F, Kind.SEND_B)
"""Kinds that may take no time."""

_Need = tuple[Event, Event | None, int, Kind, int]
"""An event, the one whose end it waits for (``None``: not there), the lag, and the awaited kind and virtual stage."""


class _Check:
    """One validation.

    ``at[kind][place]`` is the event of a task; place = (iteration * virtual stages + virtual stage) * microbatches +
    microbatch. ``rows`` are the ops of each stage's compute, ``beside`` what runs beside it.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.violations: list[Violation] = []
        self.rows: list[list[Event]] = [[] for _ in range(instance.stages)]
        self.virtual_stages, self.microbatches = instance.virtual_stages, instance.microbatches
        self.beside: list[Event] = []
        places = instance.iterations * self.virtual_stages * self.microbatches
        self.routes = routes_of(instance)
        self.ticks = self._ticks(instance)
        self.own_ticks = {j: self._ticks(own) for own in instance.microbatch_times or () for j in own.microbatches}
        self.at: dict[Kind, list[Event | None]] = {kind: [None] * places for kind in self.ticks}
        self.steps: list[Event | None] = [None] * (instance.iterations * instance.stages)
        self.reductions: list[Event | None] = [None] * (instance.iterations * instance.virtual_stages)
        self.unfinished = 0
        self.stretched: list[tuple[Event, int]] = []

    def _ticks(self, times: Instance | MicrobatchTimes) -> dict[Kind, tuple[int | None, ...]]:
        """By kind and virtual stage, how long an op or transfer takes; ``None``: there is none."""
        none = (None,) * self.virtual_stages
        ends = [after is None for after in self.routes.after]
        loss = self.instance.loss_ticks
        return {
            Kind.F: tuple(t + (loss if end else 0) for t, end in zip(times.forward_ticks, ends, strict=True)),
            Kind.B: times.backward_ticks or none,
            Kind.W: times.weight_ticks or none,
            Kind.BW: times.fused_backward_ticks or none,
            **drop_times(self.instance, times),
            **send_times(self.instance, self.routes),
        }

    def _places(self) -> Iterator[tuple[int, int]]:
        """(virtual stage, place) of everything that some microbatch passes, over all iterations."""
        for row in range(self.instance.iterations * self.virtual_stages):
            v = row % self.virtual_stages
            for microbatch in self.routes.passing[v]:
                yield v, row * self.microbatches + microbatch

    def verdict(self, events: Sequence[Event]) -> Verdict:
        for event in events:
            self._screen(event)
        for _, place in self._places():
            if not self._runs_split(place):
                self._choose_backward(place)
                self._find_missing(place)
        self._find_missing_transfers()
        self._dependencies()
        check_drops(self.instance, self.at, self._report)
        for row in self.rows:
            row.sort(key=attrgetter("start", "end"))
        halves = {id(half): half for row in self.rows for pair in overlapped_pairs(self.instance, row) for half in pair}
        self._durations(halves)
        second = {key for key, half in halves.items() if half.kind is Kind.BW}
        ops = [[event for event in row if id(event) not in second] for row in self.rows]
        for stage, row in enumerate(ops):
            self._overlaps(stage, row)
        update = Update(self.instance, self.routes, self.at, self.reductions, self.steps, self._report)
        update.check()
        check_transfers(self.instance, self.routes, self.at, self.reductions, self.rows, self._report)
        peaks = peak_memory(self.instance, self.routes, self.at, self._report)
        self._cycle(update)
        return Verdict(
            violations=tuple(self.violations),
            makespan=self._makespan(),
            busy_ticks=tuple(sum(e.end - e.start for e in row) for row in ops),
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
        proper = 0 <= event.start < event.end or (event.kind in _MAY_BE_EMPTY and 0 <= event.start == event.end)
        if not proper:
            self._report(Code.INVALID_INTERVAL, _interval_fault(event))
        elif on_a_stage:
            (self.rows[event.stage] if event.kind in COMPUTE else self.beside).append(event)
        if event.kind is Kind.O:
            self._place_step(event, on_a_stage, proper)
        elif event.kind is Kind.G:
            self._place_reduction(event, on_a_stage, proper)
        else:
            self._place_task(event, on_a_stage, proper)

    def _place_task(self, event: Event, on_a_stage: bool, proper: bool) -> None:
        virtual_stage, microbatches = event.virtual_stage, self.microbatches
        if self._off_the_route(event, on_a_stage):
            return
        if virtual_stage is None or event.microbatch is None or not 0 <= event.microbatch < microbatches:
            what = "no virtual stage" if virtual_stage is None else f"no microbatch from 0 to {microbatches - 1}"
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} names {what}")
        elif event.microbatch not in self.routes.passing[virtual_stage]:
            route = f"microbatch {event.microbatch} does not pass virtual stage {virtual_stage}"
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} is not called for: {route}")
        else:
            self._on_its_stage(event, virtual_stage, on_a_stage)
            place = (event.iteration * self.virtual_stages + virtual_stage) * microbatches + event.microbatch
            ticks = self.own_ticks.get(event.microbatch, self.ticks)[event.kind][virtual_stage]
            self._place(event, proper, ticks, self.at[event.kind], place)

    def _off_the_route(self, event: Event, on_a_stage: bool) -> bool:
        """Report a virtual stage that does not exist."""
        if event.virtual_stage is None or 0 <= event.virtual_stage < self.virtual_stages:
            return False
        if on_a_stage:
            most = self.virtual_stages - 1
            self._report(Code.INVALID_STAGE, f"{name_of(event)}: virtual stages are 0 to {most}")
        return True

    def _on_its_stage(self, event: Event, virtual_stage: int, on_a_stage: bool) -> None:
        stage = self.instance.stage_of[virtual_stage]
        if on_a_stage and stage != event.stage:
            self._report(Code.INVALID_STAGE, f"{name_of(event)}: virtual stage {virtual_stage} is on stage {stage}")

    def _place_reduction(self, event: Event, on_a_stage: bool, proper: bool) -> None:
        virtual_stage, ticks = event.virtual_stage, self.instance.reduction_ticks
        if self._off_the_route(event, on_a_stage):
            return
        if virtual_stage is None or event.microbatch is not None:
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} is not called for: a G is of its whole virtual stage")
        else:
            self._on_its_stage(event, virtual_stage, on_a_stage)
            place = event.iteration * self.virtual_stages + virtual_stage
            self._place(event, proper, None if ticks is None else ticks[virtual_stage], self.reductions, place)

    def _place_step(self, event: Event, on_a_stage: bool, proper: bool) -> None:
        if event.virtual_stage is not None or event.microbatch is not None:
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} is not called for: an O is of its whole stage")
        elif on_a_stage:
            ticks = self.instance.optimizer_ticks
            place = event.iteration * self.instance.stages + event.stage
            self._place(event, proper, None if ticks is None else ticks[event.stage], self.steps, place)

    def _place(self, event: Event, proper: bool, ticks: int | None, slots: list[Event | None], place: int) -> None:
        """Put an event into ``slots[place]``; ``ticks`` is how long it runs, ``None`` where it must not."""
        there = 0 <= event.iteration < self.instance.iterations
        if ticks is None or not there:
            code = FORBIDDEN.get(event.kind, Code.UNKNOWN_TASK) if there else Code.UNKNOWN_TASK
            self._report(code, f"{name_of(event)} is not called for: {self._why_unknown(event)}")
        elif (first := slots[place]) is not None:
            message = f"{name_of(event)} at {shown(event.start)} is there already, at {shown(first.start)}"
            self._report(Code.DUPLICATE_TASK, message)
        else:
            slots[place] = event
            if proper and event.end - event.start != ticks:
                self.stretched.append((event, ticks))

    def _why_unknown(self, event: Event) -> str:
        if not 0 <= event.iteration < self.instance.iterations:
            last = self.instance.iterations - 1
            return f"the instance has iterations 0 to {last}" if last else "the instance has iteration 0 alone"
        if event.kind in (Kind.SEND_F, Kind.SEND_B):
            return "nothing is sent there as an event of its own"
        if event.kind is Kind.G:
            return "gradients are not reduced"
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

    def _choose_backward(self, place: int) -> None:
        """A backward is split or fused, not both: of the two, a whole pair of B and W counts, else BW."""
        fused = self.at[Kind.BW][place]
        split = [kind for kind in (Kind.B, Kind.W) if self.at[kind][place] is not None]
        if fused is None or not split:
            return
        for kind in [Kind.BW] if len(split) == 2 else split:
            extra = self.at[kind][place]
            assert extra is not None
            self.at[kind][place] = None
            self._report(Code.UNKNOWN_TASK, f"{name_of(extra)} is one too many: this backward is both split and fused")

    def _find_missing(self, place: int) -> None:
        kinds = (Kind.F, Kind.B, Kind.W, Kind.BW)
        forward, *backward = (self.at[kind][place] is not None for kind in kinds)
        virtual_stage = place // self.microbatches % self.virtual_stages
        if not forward:
            self._missing(self._name_at(Kind.F, place))
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
            self._missing(self._name_at(kind, place) + also)
        if forward and wanted:
            self.unfinished += 1
            name = self._name_at(Kind.F, place)
            self._report(
                Code.UNFINISHED_ACTIVATION, f"the activation of {name} is not released: {wanted[0]} is missing"
            )

    def _find_missing_transfers(self) -> None:
        for kind in (Kind.SEND_F, Kind.SEND_B):
            if any(ticks is not None for ticks in self.ticks[kind]):
                for v, place in self._places():
                    if self.at[kind][place] is None and self.ticks[kind][v] is not None:
                        self._missing(self._name_at(kind, place))

    def _missing(self, name: str) -> None:
        self._report(Code.MISSING_TASK, f"{name} is not in the schedule")

    def _name_at(self, kind: Kind, place: int) -> str:
        row, microbatch = divmod(place, self.microbatches)
        iteration, v = divmod(row, self.virtual_stages)
        return f"it{iteration}/s{self.instance.stage_of[v]}/v{v}/mb{microbatch}/{kind.value}"

    # What waits for what.

    def _dependencies(self) -> None:
        for event, awaited, lag, kind, virtual_stage in self._needs():
            if awaited is None:
                place = (event.iteration * self.virtual_stages + virtual_stage) * self.microbatches
                name = self._name_at(kind, place + (event.microbatch or 0))
                self._report(Code.MISSING_DEPENDENCY, f"{name_of(event)} needs {name}, which is not in the schedule")
            elif event.start < awaited.end + lag:
                message = (
                    f"{name_of(event)} starts at {shown(event.start)}, its input arrives at {shown(awaited.end + lag)}"
                )
                self._report(Code.DEPENDENCY_VIOLATION, f"{message} from {name_of(awaited)}")

    def _needs(self) -> Iterator[_Need]:
        """Everything that each task of a microbatch waits for."""
        for v, place in self._places():
            yield from self._forward_needs(v, place)
            yield from self._backward_needs(v, place)

    def _forward_needs(self, v: int, place: int) -> Iterator[_Need]:
        before, forward, send = self.routes.before[v], self.at[Kind.F][place], self.at[Kind.SEND_F][place]
        if send is not None:
            yield send, forward, 0, Kind.F, v
        if forward is None or before is None:
            return
        giver = place + (before - v) * self.microbatches
        if self.ticks[Kind.SEND_F][before] is not None:
            yield forward, self.at[Kind.SEND_F][giver], 0, Kind.SEND_F, before
        else:
            yield forward, self.at[Kind.F][giver], transfer_time(self.instance, before, v), Kind.F, before

    def _backward_needs(self, v: int, place: int) -> Iterator[_Need]:
        backward, weight, fused = (self.at[kind][place] for kind in (Kind.B, Kind.W, Kind.BW))
        has_b = self.ticks[Kind.B][v] is not None
        gives = Kind.BW if self.instance.backward_ticks is None else Kind.B
        send = self.at[Kind.SEND_B][place]
        if send is not None:
            yield send, fused or backward, 0, gives, v
        if weight is not None and has_b:
            yield weight, backward, 0, Kind.B, v
        taker = fused or (backward if has_b else weight)
        if taker is None:
            return
        yield taker, self.at[Kind.F][place], 0, Kind.F, v
        after = self.routes.after[v]
        if after is None:
            return
        giver = place + (after - v) * self.microbatches
        if self.ticks[Kind.SEND_B][after] is not None:
            yield taker, self.at[Kind.SEND_B][giver], 0, Kind.SEND_B, after
        else:
            lag = transfer_time(self.instance, after, v)
            yield taker, self.at[Kind.BW][giver] or self.at[Kind.B][giver], lag, gives, after

    # What a stage does and holds at one time.

    def _durations(self, halves: Mapping[int, Event]) -> None:
        """Report every event that takes another time than its own, and is no half of an overlapped op."""
        for event, ticks in self.stretched:
            if id(event) not in halves:
                message = f"{name_of(event)} takes {shown(event.end - event.start)} ticks, the instance says {ticks}"
                self._report(Code.WRONG_DURATION, message)

    def _overlaps(self, stage: int, row: Sequence[Event]) -> None:
        """Each event that starts while another runs."""
        for longest, event in overlaps(row):
            message = f"stage {stage}: {name_of(event)} starts at {shown(event.start)}, {name_of(longest)} runs from"
            self._report(Code.STAGE_OVERLAP, f"{message} {shown(longest.start)} to {shown(longest.end)}")

    def _makespan(self) -> int:
        """From the first start to the last end; where the times of inputs are given, from the first of these, 0."""
        events = [*self.beside, *(event for row in self.rows for event in row)]
        if not events:
            return 0
        first = min(e.start for e in events) if self.instance.input_ready_ticks is None else 0
        return max(e.end for e in events) - first

    # Whether the orders wait for themselves.

    def _cycle(self, update: Update) -> None:
        """Only where something starts before what it waits for: otherwise every wait points back in time."""
        if not any(v.code in _BACK_IN_TIME for v in self.violations):
            return
        needs = [(event, awaited) for event, awaited, *_ in self._needs() if awaited is not None]
        needs += [(e, awaited) for e, awaited, _ in drop_needs(self.instance, self.at) if awaited is not None]
        found = circle(update, needs, self.rows)
        if found is not None:
            self._report(Code.CYCLE, found)


def _interval_fault(event: Event) -> str:
    span = f"{name_of(event)} runs from {shown(event.start)} to {shown(event.end)}"
    return f"{span}; times start at 0" if event.start < 0 else f"{span}; it must end after it starts"
