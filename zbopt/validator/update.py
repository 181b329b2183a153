"""What surrounds the microbatches: inputs, reductions, optimizer steps, the boundary between iterations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zbopt.problem.instance import Barrier, Instance, Kind, ReductionOccupies
from zbopt.problem.schedule import Event
from zbopt.validator.drops import At, Report
from zbopt.validator.held import Held, overlaps
from zbopt.validator.routes import Routes
from zbopt.validator.verdict import Code, name_of, shown


@dataclass(frozen=True, slots=True)
class Update:
    """The events of all iterations: ``at`` by place, reductions by virtual stage, steps by stage."""

    instance: Instance
    routes: Routes
    at: At
    reductions: Sequence[Event | None]
    steps: Sequence[Event | None]
    report: Report

    def check(self) -> None:
        """Report everything that is missing or too early around the microbatches."""
        self._inputs()
        self._reductions()
        for iteration in range(self.instance.iterations):
            self._optimizer(iteration)
        for forward, step in self.boundary():
            if forward.start < step.end:
                message = (
                    f"{name_of(forward)} starts at {shown(forward.start)}, {name_of(step)} of the iteration before"
                )
                self.report(Code.ITERATION_OVERLAP, f"{message} ends at {shown(step.end)}")

    def _inputs(self) -> None:
        """An input is ready at the time given, on the first virtual stage."""
        ready = self.instance.input_ready_ticks
        if ready is None:
            return
        microbatches = self.instance.microbatches
        for number, time in enumerate(ready):
            iteration, microbatch = divmod(number, microbatches)
            first = next(
                v
                for v, passing in enumerate(self.routes.passing)
                if self.routes.before[v] is None and microbatch in passing
            )
            forward = self.at[Kind.F][(iteration * self.instance.virtual_stages + first) * microbatches + microbatch]
            if forward is not None and forward.start < time:
                message = f"{name_of(forward)} starts at {shown(forward.start)}, its input is ready at {time}"
                self.report(Code.INPUT_NOT_READY, message)

    def _reductions(self) -> None:
        instance = self.instance
        if instance.reduction_ticks is None:
            return
        for row, event in enumerate(self.reductions):
            iteration, v = divmod(row, instance.virtual_stages)
            if event is None:
                name = f"it{iteration}/s{instance.stage_of[v]}/v{v}/G"
                self.report(Code.MISSING_TASK, f"{name} is not in the schedule")
                continue
            for weight in self.weights(row):
                if weight is not None and event.start < weight.end:
                    message = f"{name_of(event)} starts at {shown(event.start)}, {name_of(weight)} ends at"
                    self.report(Code.REDUCTION_BEFORE_WEIGHT, f"{message} {shown(weight.end)}")
                    break
        self._one_reduction_at_a_time()

    def _one_reduction_at_a_time(self) -> None:
        """On the link of a stage, or of the stages of a node; those on ports are checked there."""
        instance, rows = self.instance, defaultdict[int, list[Held]](list)
        if instance.reduction_occupies is ReductionOccupies.PORT:
            return
        size = instance.stages_per_node if instance.reduction_occupies is ReductionOccupies.NODE else None
        for event in self.reductions:
            if event is not None and event.virtual_stage is not None:
                stage = instance.stage_of[event.virtual_stage]
                rows[stage // (size or 1)].append(Held(event.start, event.end, event))
        for row in rows.values():
            for first, second in overlaps(row):
                message = (
                    f"{name_of(second.event)} starts at {shown(second.start)}, {name_of(first.event)} has their link"
                )
                self.report(Code.REDUCTION_OVERLAP, f"{message} until {shown(first.end)}")

    def weights(self, row: int) -> list[Event | None]:
        """W or BW of each microbatch of a virtual stage in an iteration; ``None`` where there is none."""
        passing = self.routes.passing[row % self.instance.virtual_stages]
        places = (row * self.instance.microbatches + microbatch for microbatch in passing)
        return [self.at[Kind.BW][place] or self.at[Kind.W][place] for place in places]

    def gradients(self, iteration: int, stage: int) -> list[Event | None]:
        """What the optimizer step of a stage waits for: its reductions, or its W and BW; a global barrier's are all."""
        instance, found = self.instance, []
        for v, held_by in enumerate(instance.stage_of):
            if instance.barrier is Barrier.GLOBAL or held_by == stage:
                row = iteration * instance.virtual_stages + v
                found += self.weights(row) if instance.reduction_ticks is None else [self.reductions[row]]
        return found

    def _optimizer(self, iteration: int) -> None:
        instance = self.instance
        if instance.optimizer_ticks is None:
            return
        known: list[Event | None] | None = None
        for stage in range(instance.stages):
            event = self.steps[iteration * instance.stages + stage]
            if event is None:
                self.report(Code.MISSING_TASK, f"it{iteration}/s{stage}/O is not in the schedule")
                continue
            if known is None or instance.barrier is not Barrier.GLOBAL:
                known = self.gradients(iteration, stage)
            lacking = known.count(None)
            if lacking:
                what = "gradients" if instance.reduction_ticks is None else "reductions"
                message = f"{name_of(event)} needs {lacking} {what} that are not in the schedule"
                self.report(Code.MISSING_DEPENDENCY, message)
            latest = max((e for e in known if e is not None), key=lambda e: e.end, default=None)
            if latest is not None and event.start < latest.end + instance.barrier_ticks:
                message = (
                    f"{name_of(event)} starts at {shown(event.start)}, {name_of(latest)} ends at {shown(latest.end)}"
                )
                joined = f" and joining the stages takes {instance.barrier_ticks}" if instance.barrier_ticks else ""
                self.report(Code.OPTIMIZER_BEFORE_GRADIENT, message + joined)

    def boundary(self) -> Iterator[tuple[Event, Event]]:
        """(F, O of its stage in the iteration before), over all iterations."""
        instance = self.instance
        if instance.optimizer_ticks is None:
            return
        for iteration in range(1, instance.iterations):
            for v, stage in enumerate(instance.stage_of):
                step = self.steps[(iteration - 1) * instance.stages + stage]
                first = (iteration * instance.virtual_stages + v) * instance.microbatches
                for forward in self.at[Kind.F][first : first + instance.microbatches]:
                    if forward is not None and step is not None:
                        yield forward, step
