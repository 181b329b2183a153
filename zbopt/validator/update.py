"""Rules around the microbatches: inputs, reductions, optimizer steps, the boundary between iterations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zbopt.problem.instance import Barrier, Instance, Kind, ReductionOccupies
from zbopt.problem.schedule import Event
from zbopt.validator.drops import Report, TaskEvents
from zbopt.validator.exclusive import Occupation, overlaps
from zbopt.validator.routes import Routes
from zbopt.validator.verdict import Code, name_of, shown


@dataclass(frozen=True, slots=True)
class Update:
    """Hold the events of all iterations: ``at`` by kind and index, reductions by virtual stage, steps by stage."""

    instance: Instance
    routes: Routes
    at: TaskEvents
    reductions: Sequence[Event | None]
    steps: Sequence[Event | None]
    report: Report

    def check(self) -> None:
        """Report every event around the microbatches that is missing or starts too early."""
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
        """Report an F of a route's first virtual stage that starts before the input of its microbatch is ready."""
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
        for number, event in enumerate(self.reductions):
            iteration, v = divmod(number, instance.virtual_stages)
            if event is None:
                name = f"it{iteration}/s{instance.stage_of[v]}/v{v}/G"
                self.report(Code.MISSING_TASK, f"{name} is not in the schedule")
                continue
            for weight in self.weights(number):
                if weight is not None and event.start < weight.end:
                    message = f"{name_of(event)} starts at {shown(event.start)}, {name_of(weight)} ends at"
                    self.report(Code.REDUCTION_BEFORE_WEIGHT, f"{message} {shown(weight.end)}")
                    break
        self._one_reduction_at_a_time()

    def _one_reduction_at_a_time(self) -> None:
        """Report reductions that share the link of a stage, or of a node. Those on ports are checked with the ports."""
        instance, on_link = self.instance, defaultdict[int, list[Occupation]](list)
        if instance.reduction_occupies is ReductionOccupies.PORT:
            return
        size = instance.stages_per_node if instance.reduction_occupies is ReductionOccupies.NODE else None
        for event in self.reductions:
            if event is not None and event.virtual_stage is not None:
                stage = instance.stage_of[event.virtual_stage]
                on_link[stage // (size or 1)].append(Occupation(event.start, event.end, event))
        for reductions in on_link.values():
            for first, second in overlaps(reductions):
                message = (
                    f"{name_of(second.event)} starts at {shown(second.start)}, {name_of(first.event)} has their link"
                )
                self.report(Code.REDUCTION_OVERLAP, f"{message} until {shown(first.end)}")

    def weights(self, number: int) -> list[Event | None]:
        """Return the W or BW of each microbatch; ``None`` where it is missing.

        Args:
            number: Iteration * virtual stages + virtual stage.
        """
        passing = self.routes.passing[number % self.instance.virtual_stages]
        indices = (number * self.instance.microbatches + microbatch for microbatch in passing)
        return [self.at[Kind.BW][index] or self.at[Kind.W][index] for index in indices]

    def gradients(self, iteration: int, stage: int) -> list[Event | None]:
        """Return the events that the optimizer step of a stage waits for; ``None`` where one is missing.

        These are the reductions of the stage, or its W and BW; under a global barrier those of all stages.
        """
        instance, found = self.instance, []
        for v, its_stage in enumerate(instance.stage_of):
            if instance.barrier is Barrier.GLOBAL or its_stage == stage:
                number = iteration * instance.virtual_stages + v
                found += self.weights(number) if instance.reduction_ticks is None else [self.reductions[number]]
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
        """Yield (F, O of its stage in the iteration before), over all iterations."""
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
