"""Check of a whole schedule: the rules of a microbatch's ops, one method each, and calls of the other rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from zbopt.problem.instance import COMPUTE, Instance, Kind, MicrobatchTimes
from zbopt.problem.schedule import Event, Schedule
from zbopt.validator.cycle import cycle_message
from zbopt.validator.drops import DROP_TOO_EARLY, FORBIDDEN, check_drops, drop_needs, drop_times
from zbopt.validator.exclusive import overlaps
from zbopt.validator.memory import peak_memory
from zbopt.validator.overlap import overlapped_pairs
from zbopt.validator.routes import routes_of
from zbopt.validator.transfers import check_transfers, send_times, transfer_time
from zbopt.validator.update import Update
from zbopt.validator.verdict import Code, Verdict, Violation, name_of, shown


def validate(instance: Instance, schedule: Schedule) -> Verdict:
    """Check ``schedule`` against every rule of ``instance``.

    It never raises, whatever the numbers. Where several events stand for the same task, the first one counts. An event
    on a wrong stage still counts as its task. An event that the instance does not call for only occupies its stage.
    """
    return _Check(instance).verdict(schedule.events)


_BACK_IN_TIME = (
    Code.DEPENDENCY_VIOLATION,
    Code.OPTIMIZER_BEFORE_GRADIENT,
    Code.REDUCTION_BEFORE_WEIGHT,
    Code.ITERATION_OVERLAP,
    *DROP_TOO_EARLY,
)
"""Codes that say that an event starts before one that it waits for has ended."""

_MAY_BE_EMPTY = (Kind.O, Kind.SEND_F, Kind.SEND_B)
"""Kinds of event that may last 0 ticks."""

_Need = tuple[Event, Event | None, int, Kind, int]
"""An event, the awaited event (``None``: missing), the lag in ticks, and the awaited kind and virtual stage."""


class _Check:
    """Hold the state of one validation.

    ``at[kind][index]`` is the event of a task, where index = (iteration * virtual stages + virtual stage) *
    microbatches + microbatch. ``stage_ops`` are the events on each stage's compute; ``other_events`` are those on
    links, ports and host links. ``wrong_lengths`` are events with the ticks that they should take.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.violations: list[Violation] = []
        self.stage_ops: list[list[Event]] = [[] for _ in range(instance.stages)]
        self.virtual_stages, self.microbatches = instance.virtual_stages, instance.microbatches
        self.other_events: list[Event] = []
        indices = instance.iterations * self.virtual_stages * self.microbatches
        self.routes = routes_of(instance)
        self.ticks = self._ticks(instance)
        self.own_ticks = {j: self._ticks(own) for own in instance.microbatch_times or () for j in own.microbatches}
        self.at: dict[Kind, list[Event | None]] = {kind: [None] * indices for kind in self.ticks}
        self.steps: list[Event | None] = [None] * (instance.iterations * instance.stages)
        self.reductions: list[Event | None] = [None] * (instance.iterations * instance.virtual_stages)
        self.unfinished = 0
        self.wrong_lengths: list[tuple[Event, int]] = []

    def _ticks(self, times: Instance | MicrobatchTimes) -> dict[Kind, tuple[int | None, ...]]:
        """Return how long an op or transfer takes, by kind and virtual stage; ``None``: the instance has none."""
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

    def _indices(self) -> Iterator[tuple[int, int]]:
        """Yield (virtual stage, index) of every pass of a microbatch through a virtual stage, over all iterations."""
        for number in range(self.instance.iterations * self.virtual_stages):
            v = number % self.virtual_stages
            for microbatch in self.routes.passing[v]:
                yield v, number * self.microbatches + microbatch

    def verdict(self, events: Sequence[Event]) -> Verdict:
        """Apply every rule to ``events`` and return what was found."""
        for event in events:
            self._check_event(event)
        for _, index in self._indices():
            if not self._runs_split(index):
                self._choose_backward(index)
                self._report_missing(index)
        self._report_missing_transfers()
        self._dependencies()
        check_drops(self.instance, self.at, self._report)
        ops = self._check_durations_and_overlaps()
        update = Update(self.instance, self.routes, self.at, self.reductions, self.steps, self._report)
        update.check()
        check_transfers(self.instance, self.routes, self.at, self.reductions, self.stage_ops, self._report)
        peaks = peak_memory(self.instance, self.routes, self.at, self._report)
        self._cycle(update)
        return Verdict(
            violations=tuple(self.violations),
            makespan=self._makespan(),
            busy_ticks=tuple(sum(e.end - e.start for e in of_stage) for of_stage in ops),
            unfinished_activations=self.unfinished,
            peak_memory=peaks,
        )

    def _check_durations_and_overlaps(self) -> list[list[Event]]:
        """Check the ops of every stage; return them by start, with an F and a BW that run as one op counted once."""
        halves: dict[int, Event] = {}
        for ops in self.stage_ops:
            ops.sort(key=attrgetter("start", "end"))
            for pair in overlapped_pairs(self.instance, ops):
                halves |= {id(half): half for half in pair}
        self._durations(halves)
        second = {key for key, half in halves.items() if half.kind is Kind.BW}
        counted = [[event for event in ops if id(event) not in second] for ops in self.stage_ops]
        for stage, ops in enumerate(counted):
            self._overlaps(stage, ops)
        return counted

    def _report(self, code: Code, message: str) -> None:
        self.violations.append(Violation(code, message))

    # Each event is assigned to the task that it stands for, or reported.

    def _check_event(self, event: Event) -> None:
        """Report what is wrong with an event taken alone, and assign it to its task."""
        on_a_stage = 0 <= event.stage < len(self.stage_ops)
        if not on_a_stage:
            last = len(self.stage_ops) - 1
            self._report(
                Code.INVALID_STAGE, f"{name_of(event)} is on stage {shown(event.stage)}; stages are 0 to {last}"
            )
        valid_interval = 0 <= event.start < event.end or (event.kind in _MAY_BE_EMPTY and 0 <= event.start == event.end)
        if not valid_interval:
            self._report(Code.INVALID_INTERVAL, _interval_fault(event))
        elif on_a_stage:
            (self.stage_ops[event.stage] if event.kind in COMPUTE else self.other_events).append(event)
        if event.kind is Kind.O:
            self._assign_step(event, on_a_stage, valid_interval)
        elif event.kind is Kind.G:
            self._assign_reduction(event, on_a_stage, valid_interval)
        else:
            self._assign_task(event, on_a_stage, valid_interval)

    def _assign_task(self, event: Event, on_a_stage: bool, valid_interval: bool) -> None:
        virtual_stage, microbatches = event.virtual_stage, self.microbatches
        if self._has_unknown_virtual_stage(event, on_a_stage):
            return
        if virtual_stage is None or event.microbatch is None or not 0 <= event.microbatch < microbatches:
            lacking = "no virtual stage" if virtual_stage is None else f"no microbatch from 0 to {microbatches - 1}"
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} names {lacking}")
        elif event.microbatch not in self.routes.passing[virtual_stage]:
            route = f"microbatch {event.microbatch} does not pass virtual stage {virtual_stage}"
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} is not called for: {route}")
        else:
            self._check_stage(event, virtual_stage, on_a_stage)
            index = (event.iteration * self.virtual_stages + virtual_stage) * microbatches + event.microbatch
            ticks = self.own_ticks.get(event.microbatch, self.ticks)[event.kind][virtual_stage]
            self._assign(event, valid_interval, ticks, self.at[event.kind], index)

    def _has_unknown_virtual_stage(self, event: Event, on_a_stage: bool) -> bool:
        """Report a virtual stage that does not exist, and return whether that is so."""
        if event.virtual_stage is None or 0 <= event.virtual_stage < self.virtual_stages:
            return False
        if on_a_stage:
            last = self.virtual_stages - 1
            self._report(Code.INVALID_STAGE, f"{name_of(event)}: virtual stages are 0 to {last}")
        return True

    def _check_stage(self, event: Event, virtual_stage: int, on_a_stage: bool) -> None:
        stage = self.instance.stage_of[virtual_stage]
        if on_a_stage and stage != event.stage:
            self._report(Code.INVALID_STAGE, f"{name_of(event)}: virtual stage {virtual_stage} is on stage {stage}")

    def _assign_reduction(self, event: Event, on_a_stage: bool, valid_interval: bool) -> None:
        virtual_stage, ticks = event.virtual_stage, self.instance.reduction_ticks
        if self._has_unknown_virtual_stage(event, on_a_stage):
            return
        if virtual_stage is None or event.microbatch is not None:
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} is not called for: a G is of its whole virtual stage")
        else:
            self._check_stage(event, virtual_stage, on_a_stage)
            index = event.iteration * self.virtual_stages + virtual_stage
            self._assign(event, valid_interval, None if ticks is None else ticks[virtual_stage], self.reductions, index)

    def _assign_step(self, event: Event, on_a_stage: bool, valid_interval: bool) -> None:
        if event.virtual_stage is not None or event.microbatch is not None:
            self._report(Code.UNKNOWN_TASK, f"{name_of(event)} is not called for: an O is of its whole stage")
        elif on_a_stage:
            ticks = self.instance.optimizer_ticks
            index = event.iteration * self.instance.stages + event.stage
            self._assign(event, valid_interval, None if ticks is None else ticks[event.stage], self.steps, index)

    def _assign(
        self, event: Event, valid_interval: bool, ticks: int | None, slots: list[Event | None], index: int
    ) -> None:
        """Put an event into ``slots[index]``. ``ticks`` is how long it has to run; ``None``: it must not run."""
        iteration_exists = 0 <= event.iteration < self.instance.iterations
        if ticks is None or not iteration_exists:
            code = FORBIDDEN.get(event.kind, Code.UNKNOWN_TASK) if iteration_exists else Code.UNKNOWN_TASK
            self._report(code, f"{name_of(event)} is not called for: {self._why_unknown(event)}")
        elif (first := slots[index]) is not None:
            message = f"{name_of(event)} at {shown(event.start)} is a second event of its task, the first is at"
            self._report(Code.DUPLICATE_TASK, f"{message} {shown(first.start)}")
        else:
            slots[index] = event
            if valid_interval and event.end - event.start != ticks:
                self.wrong_lengths.append((event, ticks))

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

    def _runs_split(self, index: int) -> bool:
        """Return whether F, B and W are there and no BW: the commonest case, in which all is well."""
        forwards, backwards, weights, fuseds = (self.at[kind] for kind in (Kind.F, Kind.B, Kind.W, Kind.BW))
        return (
            forwards[index] is not None
            and backwards[index] is not None
            and weights[index] is not None
            and fuseds[index] is None
        )

    def _choose_backward(self, index: int) -> None:
        """Report a backward that is both split and fused; keep B and W where both are there, else BW."""
        fused = self.at[Kind.BW][index]
        split = [kind for kind in (Kind.B, Kind.W) if self.at[kind][index] is not None]
        if fused is None or not split:
            return
        for kind in [Kind.BW] if len(split) == 2 else split:
            extra = self.at[kind][index]
            assert extra is not None
            self.at[kind][index] = None
            self._report(Code.UNKNOWN_TASK, f"{name_of(extra)} is one too many: this backward is both split and fused")

    def _report_missing(self, index: int) -> None:
        kinds = (Kind.F, Kind.B, Kind.W, Kind.BW)
        forward, *backward = (self.at[kind][index] is not None for kind in kinds)
        virtual_stage = index // self.microbatches % self.virtual_stages
        if not forward:
            self._missing(self._name_at(Kind.F, index))
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
            self._missing(self._name_at(kind, index) + also)
        if forward and wanted:
            self.unfinished += 1
            name = self._name_at(Kind.F, index)
            self._report(
                Code.UNFINISHED_ACTIVATION, f"the activation of {name} is not released: {wanted[0]} is missing"
            )

    def _report_missing_transfers(self) -> None:
        for kind in (Kind.SEND_F, Kind.SEND_B):
            if any(ticks is not None for ticks in self.ticks[kind]):
                for v, index in self._indices():
                    if self.at[kind][index] is None and self.ticks[kind][v] is not None:
                        self._missing(self._name_at(kind, index))

    def _missing(self, name: str) -> None:
        self._report(Code.MISSING_TASK, f"{name} is not in the schedule")

    def _name_at(self, kind: Kind, index: int) -> str:
        number, microbatch = divmod(index, self.microbatches)
        iteration, v = divmod(number, self.virtual_stages)
        return f"it{iteration}/s{self.instance.stage_of[v]}/v{v}/mb{microbatch}/{kind.value}"

    # Every event starts after the events that it waits for.

    def _dependencies(self) -> None:
        for event, awaited, lag, kind, virtual_stage in self._needs():
            if awaited is None:
                index = (event.iteration * self.virtual_stages + virtual_stage) * self.microbatches
                name = self._name_at(kind, index + (event.microbatch or 0))
                self._report(Code.MISSING_DEPENDENCY, f"{name_of(event)} needs {name}, which is not in the schedule")
            elif event.start < awaited.end + lag:
                message = (
                    f"{name_of(event)} starts at {shown(event.start)}, its input arrives at {shown(awaited.end + lag)}"
                )
                self._report(Code.DEPENDENCY_VIOLATION, f"{message} from {name_of(awaited)}")

    def _needs(self) -> Iterator[_Need]:
        """Yield every event of a microbatch with each event that it waits for."""
        for v, index in self._indices():
            yield from self._forward_needs(v, index)
            yield from self._backward_needs(v, index)

    def _forward_needs(self, v: int, index: int) -> Iterator[_Need]:
        before, forward, send = self.routes.before[v], self.at[Kind.F][index], self.at[Kind.SEND_F][index]
        if send is not None:
            yield send, forward, 0, Kind.F, v
        if forward is None or before is None:
            return
        producer = index + (before - v) * self.microbatches
        if self.ticks[Kind.SEND_F][before] is not None:
            yield forward, self.at[Kind.SEND_F][producer], 0, Kind.SEND_F, before
        else:
            yield forward, self.at[Kind.F][producer], transfer_time(self.instance, before, v), Kind.F, before

    def _backward_needs(self, v: int, index: int) -> Iterator[_Need]:
        backward, weight, fused = (self.at[kind][index] for kind in (Kind.B, Kind.W, Kind.BW))
        has_b = self.ticks[Kind.B][v] is not None
        gradient_kind = Kind.BW if self.instance.backward_ticks is None else Kind.B
        send = self.at[Kind.SEND_B][index]
        if send is not None:
            yield send, fused or backward, 0, gradient_kind, v
        if weight is not None and has_b:
            yield weight, backward, 0, Kind.B, v
        consumer = fused or (backward if has_b else weight)
        if consumer is None:
            return
        yield consumer, self.at[Kind.F][index], 0, Kind.F, v
        after = self.routes.after[v]
        if after is None:
            return
        producer = index + (after - v) * self.microbatches
        if self.ticks[Kind.SEND_B][after] is not None:
            yield consumer, self.at[Kind.SEND_B][producer], 0, Kind.SEND_B, after
        else:
            lag = transfer_time(self.instance, after, v)
            yield consumer, self.at[Kind.BW][producer] or self.at[Kind.B][producer], lag, gradient_kind, after

    # A stage runs one op at a time, each for as long as the instance says.

    def _durations(self, halves: Mapping[int, Event]) -> None:
        """Report every event of a wrong length, halves of an overlapped op excepted."""
        for event, ticks in self.wrong_lengths:
            if id(event) not in halves:
                message = f"{name_of(event)} takes {shown(event.end - event.start)} ticks, the instance says {ticks}"
                self._report(Code.WRONG_DURATION, message)

    def _overlaps(self, stage: int, ops: Sequence[Event]) -> None:
        """Report each event that starts while another one of its stage runs."""
        for longest, event in overlaps(ops):
            message = f"stage {stage}: {name_of(event)} starts at {shown(event.start)}, {name_of(longest)} runs from"
            self._report(Code.STAGE_OVERLAP, f"{message} {shown(longest.start)} to {shown(longest.end)}")

    def _makespan(self) -> int:
        """Return the ticks from the first start to the last end; from tick 0 where the times of inputs are given."""
        events = [*self.other_events, *(event for ops in self.stage_ops for event in ops)]
        if not events:
            return 0
        first = min(e.start for e in events) if self.instance.input_ready_ticks is None else 0
        return max(e.end for e in events) - first

    # The order of a schedule must be free of deadlock, whatever its times.

    def _cycle(self, update: Update) -> None:
        """Report a cycle of waits."""
        # Where no event starts before one that it waits for has ended, every wait points back in time: no cycle.
        if not any(v.code in _BACK_IN_TIME for v in self.violations):
            return
        needs = [(event, awaited) for event, awaited, *_ in self._needs() if awaited is not None]
        needs += [(e, awaited) for e, awaited, _ in drop_needs(self.instance, self.at) if awaited is not None]
        found = cycle_message(update, needs, self.stage_ops)
        if found is not None:
            self._report(Code.CYCLE, found)


def _interval_fault(event: Event) -> str:
    span = f"{name_of(event)} runs from {shown(event.start)} to {shown(event.end)}"
    return f"{span}; times start at 0" if event.start < 0 else f"{span}; it must end after it starts"
