"""The way from an instance to its task graph, one method a family of rules."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from zbopt.graph.memory import POLICY_OF, ActivationPolicy, allocated_units, memory_scale, policies, static_memory
from zbopt.graph.model import FUSED, SPLIT, Channel, Join, Key, Link, Precedence, Residence, Task, TaskGraph
from zbopt.graph.transfers import Transfers
from zbopt.problem.instance import COMPUTE, Barrier, Instance, Kind


def expand(instance: Instance) -> TaskGraph:
    """Build the task graph of ``instance``."""
    return _Expansion(instance).graph()


class _Expansion:
    """Build one graph; ``iteration`` is the one being built."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.tasks: list[Task] = []
        self.kinds: set[Kind] = set()
        self.index: dict[Key, int] = {}
        self.precedences: list[Precedence] = []
        self.joins: list[Join] = []
        self.residences: list[Residence] = []
        self.choices: list[int] = []
        self.policy_of: dict[tuple[int, int, int], int] = {}
        self.scale = memory_scale(instance)
        self.iteration = 0
        self.units_of: dict[tuple[int, ActivationPolicy], dict[tuple[Kind, Kind], int]] = {}

    def graph(self) -> TaskGraph:
        for iteration in range(self.instance.iterations):
            self.iteration = iteration
            self._one_iteration()
        resources: list[list[int]] = [[] for _ in range(self.instance.stages)]
        for i, task in enumerate(self.tasks):
            if task.kind in COMPUTE:
                resources[task.stage].append(i)
        links, channels = self._occupied()
        cap = self.instance.memory_cap
        return TaskGraph(
            instance=self.instance,
            tasks=tuple(self.tasks),
            resources=tuple(map(tuple, resources)),
            links=links,
            channels=channels,
            precedences=tuple(self.precedences),
            joins=tuple(self.joins),
            residences=tuple(self.residences),
            caps=None if cap is None else tuple(self._cap_units(stage, c) for stage, c in enumerate(cap)),
            memory_scale=self.scale,
            choices=tuple(self.choices),
            index=self.index,
            policy_of=self.policy_of,
        )

    def _one_iteration(self) -> None:
        for virtual_stage, microbatch in self.instance.passes():
            self._ops(virtual_stage, microbatch)
        for virtual_stage, microbatch in self.instance.passes():
            self._dataflow(virtual_stage, microbatch)
            self._memory(virtual_stage, microbatch)
        self._reduction()
        self._optimizer()
        self._next_iteration()

    def _occupied(self) -> tuple[tuple[Link, ...], tuple[Channel, ...]]:
        """Return what tasks occupy beside, or on top of, their stages' compute."""
        transfers = Transfers(self.instance, self.tasks, self.index)
        return tuple(transfers.links()), tuple(transfers.channels())

    def _add(self, task: Task) -> int:
        self.tasks.append(task)
        self.kinds.add(task.kind)
        self.index[task.key] = len(self.tasks) - 1
        return len(self.tasks) - 1

    def _ops(self, virtual_stage: int, microbatch: int) -> None:
        """[M1] Add F always; the backward as B and W, as BW, or as either where the instance leaves it open."""
        ticks = self.instance.ticks_of(virtual_stage, microbatch)
        choice = None
        if ticks.weight is not None and ticks.fused is not None:
            choice = self._choice(2)
        self._op(Kind.F, virtual_stage, microbatch, release=self._ready(virtual_stage, microbatch))
        if ticks.backward is not None:
            self._op(Kind.B, virtual_stage, microbatch, choice)
        if ticks.weight is not None:
            self._op(Kind.W, virtual_stage, microbatch, choice)
        if ticks.fused is not None:
            self._op(Kind.BW, virtual_stage, microbatch, choice, FUSED)
        self._drops(virtual_stage, microbatch)

    def _drops(self, virtual_stage: int, microbatch: int) -> None:
        """[M3] Add the ops that an activation's policy needs: always, or where the schedule chooses it."""
        instance = self.instance
        allowed = policies(instance, virtual_stage)
        choice = None
        if len(allowed) > 1:
            choice = self.policy_of[virtual_stage, microbatch, self.iteration] = self._choice(len(allowed))
        times_of = (
            (Kind.R, instance.ticks_of(virtual_stage, microbatch).recompute),
            (Kind.OUT, None if instance.offload_ticks is None else instance.offload_ticks[virtual_stage]),
            (Kind.IN, None if instance.reload_ticks is None else instance.reload_ticks[virtual_stage]),
        )
        for kind, ticks in times_of:
            if ticks is not None and POLICY_OF[kind] in allowed:
                option = allowed.index(POLICY_OF[kind])
                stage = instance.stage_of[virtual_stage]
                self._add(Task(kind, stage, virtual_stage, microbatch, ticks, choice, option, self.iteration))

    def _choice(self, options: int) -> int:
        self.choices.append(options)
        return len(self.choices) - 1

    def _cap_units(self, stage: int, cap: Fraction) -> int:
        """Return what static memory leaves of a stage's cap, in memory units."""
        return int((cap - static_memory(self.instance, stage)) * self.scale)

    def _op(
        self,
        kind: Kind,
        virtual_stage: int,
        microbatch: int,
        choice: int | None = None,
        option: int = SPLIT,
        release: int = 0,
    ) -> None:
        stage, ticks = self.instance.stage_of[virtual_stage], self.instance.op_ticks(kind, virtual_stage, microbatch)
        assert ticks is not None, "asked only for ops that there are"
        self._add(Task(kind, stage, virtual_stage, microbatch, ticks, choice, option, self.iteration, release))

    def _ready(self, virtual_stage: int, microbatch: int) -> int:
        """[T5] Return when the first virtual stage has the input of a microbatch."""
        ready = self.instance.input_ready_ticks
        if ready is None or self.instance.previous_of(virtual_stage) is not None:
            return 0
        return ready[self.iteration * self.instance.microbatches + microbatch]

    def _at(self, virtual_stage: int, microbatch: int, *kinds: Kind) -> list[int]:
        found = []
        for kind in kinds:
            if kind in self.kinds:  # most instances have three of all kinds, and this is asked often
                i = self.index.get(Key(kind, virtual_stage, microbatch, self.iteration))
                if i is not None:
                    found.append(i)
        return found

    def _dataflow(self, virtual_stage: int, microbatch: int) -> None:
        """[C2] Order F down the route, gradients back up it, W after its B; [M2] a first W may take the gradient."""
        before, after = self.instance.previous_of(virtual_stage), self.instance.next_of(virtual_stage)
        forward = self._at(virtual_stage, microbatch, Kind.F)
        inputs = self._at(virtual_stage, microbatch, Kind.B)
        weight = self._at(virtual_stage, microbatch, Kind.W)
        fused = self._at(virtual_stage, microbatch, Kind.BW)
        gradient_users = [*(inputs or weight), *fused]
        if before is not None:
            producers = self._at(before, microbatch, Kind.F)
            self._transfer(Kind.SEND_F, producers, forward, before, virtual_stage)
        if after is None:
            self._edges(forward, gradient_users)
        else:
            producers = self._at(after, microbatch, Kind.B, Kind.BW)
            self._transfer(Kind.SEND_B, producers, gradient_users, after, virtual_stage)
        if inputs:
            self._edges(inputs, weight)
        recompute, out, back = (self._at(virtual_stage, microbatch, kind) for kind in (Kind.R, Kind.OUT, Kind.IN))
        self._edges(forward, [*recompute, *out])
        self._edges(out, back)
        self._edges([*recompute, *back], gradient_users)

    def _edges(self, before: Iterable[int], after: Iterable[int], lag: int = 0) -> None:
        self.precedences.extend(Precedence(b, a, lag) for b in before for a in after)

    def _transfer(
        self, kind: Kind, producers: list[int], consumers: list[int], from_virtual: int, to_virtual: int
    ) -> None:
        """[C2, T1] Put a transfer between producer and consumer of different stages: a lag, or a task of its own."""
        instance = self.instance
        ticks = instance.lag_ticks(from_virtual, to_virtual)
        stage = instance.stage_of[from_virtual]
        if not instance.sends or stage == instance.stage_of[to_virtual]:
            self._edges(producers, consumers, ticks)
            return
        microbatch = self.tasks[producers[0]].microbatch
        send = self._add(Task(kind, stage, from_virtual, microbatch, ticks, iteration=self.iteration))
        self._edges(producers, [send])
        self._edges([send], consumers)

    def _memory(self, virtual_stage: int, microbatch: int) -> None:
        """[C4] Add what a microbatch holds: what all policies have in common, and what each holds besides."""
        if self.instance.memory_cap is None:
            return
        allowed = policies(self.instance, virtual_stage)
        amounts_of: dict[tuple[int, int], list[int]] = {}
        for option, policy in enumerate(allowed):
            for kinds, amount in self._units(virtual_stage, policy).items():
                first, last = (self.index[Key(kind, virtual_stage, microbatch, self.iteration)] for kind in kinds)
                amounts_of.setdefault((first, last), [0] * len(allowed))[option] = amount
        stage = self.instance.stage_of[virtual_stage]
        choice = self.policy_of.get((virtual_stage, microbatch, self.iteration))
        for (first, last), amounts in amounts_of.items():
            common = min(amounts)
            if common:
                self.residences.append(Residence(stage, common, first, last))
            for option, amount in enumerate(amounts):
                if amount > common and choice is not None:
                    self.residences.append(Residence(stage, amount - common, first, last, (choice, option)))

    def _units(self, virtual_stage: int, policy: ActivationPolicy) -> dict[tuple[Kind, Kind], int]:
        """Return memory units from the start of one op to the end of another, over all backwards that may run."""
        key = (virtual_stage, policy)
        if key not in self.units_of:
            instance = self.instance
            found: dict[tuple[Kind, Kind], int] = {}
            for fused, may_run in ((False, instance.may_split), (True, instance.has_bw(virtual_stage))):
                if may_run:
                    found |= allocated_units(instance, virtual_stage, policy, self.scale, fused=fused)
            self.units_of[key] = found
        return self.units_of[key]

    def _weights(self, virtual_stage: int) -> list[int]:
        """Return W and BW of all microbatches of a virtual stage."""
        passing = self.instance.microbatches_of(virtual_stage)
        return [i for j in passing for i in self._at(virtual_stage, j, Kind.W, Kind.BW)]

    def _reduction(self) -> None:
        """[T3] Add G of each virtual stage after its last W."""
        for v, ticks in enumerate(self.instance.reduction_ticks or ()):
            reduction = self._add(Task(Kind.G, self.instance.stage_of[v], v, None, ticks, iteration=self.iteration))
            self.joins.append(Join(tuple(self._weights(v)), (reduction,)))

    def _gradients(self, virtual_stage: int) -> list[int]:
        """Return the tasks after which the gradients of a virtual stage are there: G, or every W and BW."""
        reduction = self.index.get(Key(Kind.G, virtual_stage, None, self.iteration))
        return self._weights(virtual_stage) if reduction is None else [reduction]

    def _optimizer(self) -> None:
        """[C5, T3] Add O after the gradients of every stage (global), or of its own stage only (post-validation)."""
        instance = self.instance
        if instance.optimizer_ticks is None:
            return
        own: list[list[int]] = [[] for _ in range(instance.stages)]
        for v, stage in enumerate(instance.stage_of):
            own[stage] += self._gradients(v)
        steps = [
            self._add(Task(Kind.O, stage, None, None, ticks, iteration=self.iteration))
            for stage, ticks in enumerate(instance.optimizer_ticks)
        ]
        if instance.barrier is Barrier.GLOBAL:
            every = tuple(i for gradients in own for i in gradients)
            self.joins.append(Join(every, tuple(steps), instance.barrier_ticks))
        else:
            self.joins.extend(Join(tuple(gradients), (step,)) for gradients, step in zip(own, steps, strict=True))

    def _next_iteration(self) -> None:
        """[T4] Order each F of a stage after the stage's O of the iteration before."""
        if self.iteration == 0:
            return
        for v, stage in enumerate(self.instance.stage_of):
            step = self.index[Key(Kind.O, stage, None, self.iteration - 1)]
            for j in self.instance.microbatches_of(v):
                self._edges([step], self._at(v, j, Kind.F))
