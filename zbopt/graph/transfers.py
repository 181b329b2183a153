"""Links that transfers, collectives and reductions occupy beside their stages' compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from zbopt.graph.model import Channel, Key, Link, Sent, Task, Use
from zbopt.problem.instance import COMPUTE, Communication, Instance, Kind, ReductionOccupies

_SENDS = {Kind.SEND_F: (Kind.F,), Kind.SEND_B: (Kind.B, Kind.BW)}
"""By kind of transfer, the kinds of ops that produce what it carries."""


class Transfers:
    """Find the links and channels of a graph whose tasks are all there."""

    def __init__(self, instance: Instance, tasks: Sequence[Task], index: Mapping[Key, int]) -> None:
        self.instance, self.tasks, self.index = instance, tasks, index
        self.between: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, task in enumerate(tasks):
            if task.kind in _SENDS:
                self.between[task.stage, self._receiver(task)].append(i)

    def _receiver(self, task: Task) -> int:
        assert task.virtual_stage is not None, "a transfer belongs to the virtual stage that sends"
        to = self.instance.goes_to(task.kind, task.virtual_stage)
        assert to is not None, "nothing is sent past the ends of a route"
        return self.instance.stage_of[to]

    def links(self) -> Iterator[Link]:
        """Yield every exclusive resource beside the stages' compute that more than one task uses."""
        found = [*self._directed(), *self._ports(), *self._streams(), *self._reductions(), *self._hosts()]
        yield from (link for link in found if len(link.uses) > 1)

    def _whole(self, i: int) -> Use:
        return Use(i, 0, self.tasks[i].duration_ticks)

    def _directed(self) -> Iterator[Link]:
        """[T1] Yield the directed links, each for one transfer at a time; where ports are occupied these say it."""
        if not self.instance.occupies_ports:
            for (stage, other), sends in self.between.items():
                yield Link(f"link {stage}-{other}", (stage, other), tuple(map(self._whole, sends)))

    def _ports(self) -> Iterator[Link]:
        """[T1] Yield the ports, each for one transfer, collective or, where they take these, reduction at a time."""
        if not self.instance.occupies_ports:
            return
        uses: list[list[Use]] = [[] for _ in range(self.instance.stages)]
        for (stage, other), sends in self.between.items():
            for end in (stage, other):
                uses[end] += map(self._whole, sends)
        for i, task in enumerate(self.tasks):
            for inside in self.instance.collectives or ():
                if inside.kind is task.kind:
                    uses[task.stage].append(Use(i, inside.start, inside.ticks))
            if task.kind is Kind.G and self.instance.reduction_occupies is ReductionOccupies.PORT:
                uses[task.stage].append(self._whole(i))
        for stage, of_stage in enumerate(uses):
            yield Link(f"port {stage}", (stage,), tuple(of_stage))

    def _streams(self) -> Iterator[Link]:
        """[T1] Yield the compute of the stages, which a blocking transfer holds at both its ends."""
        if self.instance.communication is not Communication.BLOCKING:
            return
        for stage in range(self.instance.stages):
            sent = [i for ends, sends in self.between.items() if stage in ends for i in sends]
            ops = [i for i, task in enumerate(self.tasks) if task.stage == stage and task.kind in COMPUTE]
            yield Link(f"compute {stage}", (stage,), tuple(map(self._whole, ops + sent)))

    def _reductions(self) -> Iterator[Link]:
        """[T3] Yield the links of reductions: of one stage, or of one node, they go one at a time."""
        if self.instance.reduction_occupies is ReductionOccupies.PORT:
            return
        node = self.instance.reduction_occupies is ReductionOccupies.NODE
        size = (self.instance.stages_per_node or 1) if node else 1
        reductions: dict[int, list[int]] = defaultdict(list)
        for i, task in enumerate(self.tasks):
            if task.kind is Kind.G:
                reductions[task.stage // size].append(i)
        for place, tasks in reductions.items():
            stages = tuple(range(place * size, min(self.instance.stages, (place + 1) * size)))
            yield Link(f"reduction {place}", stages, tuple(map(self._whole, tasks)))

    def _hosts(self) -> Iterator[Link]:
        """[M4] Yield the links to the host, each for one OUT or IN at a time."""
        link_of = self.instance.host_link or tuple(range(self.instance.stages))
        copies: dict[int, list[int]] = defaultdict(list)
        for i, task in enumerate(self.tasks):
            if task.kind in (Kind.OUT, Kind.IN):
                copies[link_of[task.stage]].append(i)
        for link, tasks in copies.items():
            stages = tuple(stage for stage, of in enumerate(link_of) if of == link)
            yield Link(f"host {link}", stages, tuple(map(self._whole, tasks)))

    def channels(self) -> Iterator[Channel]:
        """[T2] Yield the channels: from one stage to another, transfers go in the order of their producers."""
        for stages, sends in self.between.items():
            yield Channel(stages, tuple(Sent(i, self._producers(self.tasks[i])) for i in sends))

    def _producers(self, task: Task) -> tuple[int, ...]:
        kinds = _SENDS[task.kind]
        keys = (Key(kind, task.virtual_stage, task.microbatch, task.iteration) for kind in kinds)
        return tuple(self.index[key] for key in keys if key in self.index)
