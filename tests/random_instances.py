"""Random small instances, and random schedules of them that are valid by construction. All from the seed given."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from zbopt.analysis.metrics import figures
from zbopt.graph import TaskGraph, expand
from zbopt.graph.memory import least_memory, policies, resident
from zbopt.problem.instance import Instance, Kind, placement_of
from zbopt.problem.schedule import Event, Provenance, Schedule
from zbopt.timing import schedule_of

PROVENANCE = Provenance(source="random")
SHARES = (Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(0))


def random_instance(
    random: Random,
    *,
    most_stages: int = 4,
    most_microbatches: int = 4,
    virtual: bool = True,
    barriers: bool = True,
    unlike: bool = False,
) -> Instance:
    """Return any kind of instance: uneven times, communication, caps, shares, split, fused or free, no first B, O.

    A cap, where there is one, is never below what one microbatch needs, so that a schedule exists.

    Args:
        random: Source of all choices.
        most_stages: Largest number of stages.
        most_microbatches: Largest number of microbatches.
        virtual: Also interleaved and V placement, with two virtual stages a stage.
        barriers: Also instances with an optimizer step.
        unlike: Also instances with two routes, and with microbatches whose times differ.
    """
    stages, microbatches = random.randint(1, most_stages), random.randint(1, most_microbatches)
    placement = random.choice(("linear", "linear", "interleaved", "v") if virtual else ("linear",))
    stage_of = placement_of(placement, stages, 1 if placement == "linear" else 2)
    count = len(stage_of)
    fields: dict[str, object] = {
        "stages": stages,
        "microbatches": microbatches,
        "stage_of": stage_of,
        "forward_ticks": [random.randint(1, 4) for _ in stage_of],
        "comm_ticks": random.randint(0, 2),
        "weight_share": [random.choice(SHARES) for _ in stage_of],
        "activation": [random.choice((Fraction(1), Fraction(1), Fraction(1, 2), Fraction(3, 4))) for _ in stage_of],
        "objective": random.choice(("makespan", "max_stage_span")),
    }
    fields |= _backward(random, count)
    if barriers and random.random() < 0.4:
        fields["barrier"] = random.choice(("global", "post_validation"))
        fields["optimizer_ticks"] = [random.randint(0, 2) for _ in range(stages)]
    if unlike:
        fields |= _unlike(random, Instance.model_validate(fields))
    if random.random() < 0.6:
        fields["memory_cap"] = _caps(random, Instance.model_validate(fields))
    return Instance.model_validate(fields)


def _unlike(random: Random, instance: Instance) -> dict[str, object]:
    """Add two routes over halves of the virtual stages, times of some microbatches, or both."""
    fields: dict[str, object] = {}
    m, count = instance.microbatches, instance.virtual_stages
    if m > 1 and count > 1 and random.random() < 0.5:
        cut = count // 2 if random.random() < 0.7 else random.randint(1, count - 1)
        first = list(range(cut)) if random.random() < 0.5 else sorted(random.sample(range(count), cut))
        ways = [first, [v for v in range(count) if v not in first]]
        share = random.randint(1, m - 1)
        fields["routes"] = [
            {"virtual_stages": way, "microbatches": n} for way, n in zip(ways, (share, m - share), strict=True)
        ]
        fields |= _with_b_but_first(random, instance, {way[0] for way in ways})
    if random.random() < 0.5:
        some = sorted(random.sample(range(m), random.randint(1, m)))
        parts = [some[:1], some[1:]] if len(some) > 1 else [some]
        fields["microbatch_times"] = [{"microbatches": part} | _other_times(random, instance, fields) for part in parts]
    return fields


def _with_b_but_first(random: Random, instance: Instance, firsts: set[int]) -> dict[str, object]:
    """Add B where an instance of one route has none, unless its virtual stage is still a first one."""
    if instance.backward_ticks is None:
        return {}
    fields: dict[str, object] = {}
    missing = {v for v in firsts if instance.backward_ticks[0] is None and random.random() < 0.7}
    fields["backward_ticks"] = [None if v in missing else b or 2 for v, b in enumerate(instance.backward_ticks)]
    if instance.fused_backward_ticks is not None:
        fused = instance.fused_backward_ticks
        fields["fused_backward_ticks"] = [None if v in missing else g or 3 for v, g in enumerate(fused)]
    return fields


def _other_times(random: Random, instance: Instance, fields: dict[str, object]) -> dict[str, object]:
    """Draw new times for the ops of ``instance`` with ``fields``."""
    names = ("forward_ticks", "backward_ticks", "weight_ticks", "fused_backward_ticks")
    rows = {name: fields.get(name, getattr(instance, name)) for name in names}
    return {
        name: [None if ticks is None else random.randint(1, 5) for ticks in row]
        for name, row in rows.items()
        if isinstance(row, (list, tuple))
    }


def _backward(random: Random, count: int) -> dict[str, object]:
    """Draw times of B, W and BW: split, fused, or free. Where split, the first virtual stage may have no B."""
    way = random.choice(("split", "split", "fused", "free"))
    if way == "fused":
        return {"fused_backward_ticks": [random.randint(1, 4) for _ in range(count)]}
    no_first_b = random.random() < 0.2
    backward = [None if no_first_b and v == 0 else random.randint(1, 4) for v in range(count)]
    fields: dict[str, object] = {
        "backward_ticks": backward,
        "weight_ticks": [random.randint(1, 4) for _ in range(count)],
    }
    if way == "free":
        fields["fused_backward_ticks"] = [None if b is None else random.randint(1, 7) for b in backward]
    return fields


def _caps(random: Random, instance: Instance) -> list[Fraction]:
    """Draw caps between the memory that one microbatch needs on a stage and the memory that all need."""
    least = [least_memory(instance, s) for s in range(instance.stages)]
    return [need * random.choice((1, Fraction(3, 2), 2, instance.microbatches)) for need in least]


def with_memory(random: Random, instance: Instance) -> Instance:
    """Add any of the memory fields to ``instance``: boundaries, static state, what B adds, recomputation and offload by
    choice.

    A cap, where there is one, is never below what one microbatch needs, so that a schedule exists.
    """
    virtual_stages, stages = range(instance.virtual_stages), range(instance.stages)
    fields = instance.model_dump() | {"memory_cap": None}

    def some(rows: range, *amounts: object) -> list[object]:
        return [random.choice(amounts) for _ in rows]

    if random.random() < 0.4:
        fields["boundary"] = some(virtual_stages, Fraction(0), Fraction(1, 4), Fraction(1, 2))
        fields["receive_buffers"] = random.choice((None, None, 1, 2, "all"))
    if random.random() < 0.4:
        fields["gradient_state"] = some(virtual_stages, Fraction(0), Fraction(1, 4), Fraction(3, 4))
    for name in ("parameters", "gradients", "optimizer_state", "workspace", "reserve"):
        if random.random() < 0.2:
            fields[name] = some(stages, Fraction(0), Fraction(1, 2), Fraction(2))
    if random.random() < 0.7:
        fields["recompute"] = some(virtual_stages, "never", "always", "choose", "choose")
        fields["recompute_ticks"] = some(virtual_stages, 1, 2, 3)
        if set(fields["recompute"]) != {"never"}:
            fields["checkpoint"] = [a * random.choice((0, Fraction(1, 4), Fraction(1, 2))) for a in instance.activation]
    if random.random() < 0.5:
        recompute = fields.get("recompute") or ["never"] * len(virtual_stages)
        fields["offload"] = [
            random.choice(
                {"never": ("never", "always", "choose", "choose"), "choose": ("never", "choose")}.get(r, ("never",))
            )
            for r in recompute
        ]
        fields["offload_ticks"] = some(virtual_stages, 1, 2, 3)
        fields["reload_ticks"] = some(virtual_stages, 1, 2, 3)
        if set(fields["offload"]) != {"never"}:
            fields["offload_rest"] = [a * random.choice((0, 0, Fraction(1, 4))) for a in instance.activation]
        if random.random() < 0.5:
            fields["host_link"] = some(stages, 0, 1)
    instance = Instance.model_validate(fields)
    if random.random() < 0.8:
        fields["memory_cap"] = [least_memory(instance, stage) + random.choice(MORE) for stage in stages]
    return Instance.model_validate(fields)


MORE = (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2))
"""Amounts by which a cap may exceed the least one."""


def random_schedule(random: Random, instance: Instance) -> Schedule:
    """Return a valid schedule: tasks in a random order that the dependencies allow, each with a random delay.

    Where the memory cap stands in the way of a random order, the microbatches go one after another.
    """
    graph = expand(instance)
    taken = [random.randrange(size) for size in graph.choices]
    tries = (
        (taken, False, random.random() < 0.5),
        (taken, False, True),
        (_least(graph), True, True),
    )
    placed = (_Placing(random, graph, *way).starts() for way in tries)
    schedules = (schedule_of(graph, starts, PROVENANCE) for starts in placed if starts is not None)
    schedule = next((s for s in schedules if _within_cap(s)), None)
    assert schedule is not None, "one microbatch at a time fits any cap of random_instance"
    events = list(schedule.events)
    random.shuffle(events)
    return schedule.model_copy(update={"events": tuple(events)})


def _within_cap(schedule: Schedule) -> bool:
    caps = schedule.instance.memory_cap
    return caps is None or all(map(Fraction.__le__, figures(schedule).peak_memory, caps))


def _least(graph: TaskGraph) -> list[int]:
    """Return, for each choice, the option of least memory: BW, and the way that leaves least of an activation."""
    taken = [1] * len(graph.choices)
    for (v, *_), choice in graph.policy_of.items():
        amounts = [resident(graph.instance, v, way) for way in policies(graph.instance, v)]
        taken[choice] = amounts.index(min(amounts))
    return taken


class _Placing:
    """Place tasks as a list: a random one whose inputs are placed and whose memory fits goes last on its stage.

    It is last on its links too. Transfers from one stage to another go in the order in which their producers were
    placed.
    With ``hosts_apart`` no OUT or IN runs beside an op of its stage; else memory may exceed its cap while one does.
    """

    def __init__(self, random: Random, graph: TaskGraph, taken: list[int], one_by_one: bool, hosts_apart: bool) -> None:
        self.random, self.graph, self.one_by_one = random, graph, one_by_one
        tasks = {i for i, task in enumerate(graph.tasks) if task.choice is None or taken[task.choice] == task.option}
        self.tasks = tasks
        self.residences = [
            r
            for r in graph.residences
            if r.first in tasks and r.last in tasks and (r.when is None or taken[r.when[0]] == r.when[1])
        ]
        self.free_at = [0] * graph.instance.stages
        self.link_free_at = [0] * len(graph.links)
        self.uses = [(task, n, use) for n, link in enumerate(graph.links) for use in link.uses for task in (use.task,)]
        self.on_compute = {task for row in graph.resources for task in row}
        if hosts_apart:
            self.on_compute |= {i for i in tasks if graph.tasks[i].kind in (Kind.OUT, Kind.IN)}
        self.ends: dict[int, int] = {}
        self.placed: dict[int, int] = {}
        self.waits: dict[int, list[tuple[int, int]]] = {task: [] for task in tasks}
        for edge in graph.precedences:
            if edge.before in tasks and edge.after in tasks:
                self.waits[edge.after].append((edge.before, edge.lag_ticks))
        for join in graph.joins:
            for after in join.after:
                self.waits[after] += [(before, join.lag_ticks) for before in join.before if before in tasks]

    def starts(self) -> dict[int, int] | None:
        while len(self.placed) < len(self.tasks):
            ready = [task for task in sorted(self.tasks - self.placed.keys()) if self._may_go(task)]
            if not ready:
                return None
            self._put(min(ready, key=self._rank) if self.one_by_one else self.random.choice(ready))
        return self.placed

    def _may_go(self, task: int) -> bool:
        if any(before not in self.placed for before, _ in self.waits[task]):
            return False
        return self._turn(task) and self._fits(task) and not self._overtakes(task)

    def _overtakes(self, task: int) -> bool:
        """Tell whether a transfer whose content was placed before is not placed yet."""
        for channel in self.graph.channels:
            made = {s.send: [self.placed[p] for p in s.producers if p in self.placed] for s in channel.sent}
            if task in made:
                mine = max(made[task])
                return any(times and max(times) < mine and s not in self.placed for s, times in made.items())
        return False

    def _turn(self, task: int) -> bool:
        """Tell whether every task of the microbatches before is placed, where they go one by one."""
        this = self.graph.tasks[task]
        if not self.one_by_one or this.microbatch is None:
            return True
        mine = (this.iteration, this.microbatch)
        others = ((other, self.graph.tasks[other]) for other in self.tasks)
        return all(
            other in self.placed
            for other, it in others
            if it.microbatch is not None and (it.iteration, it.microbatch) < mine
        )

    def _rank(self, task: int) -> tuple[int, int, int]:
        """Rank tasks down the route and back, with R just before its backward and W just after it: least memory."""
        this = self.graph.tasks[task]
        v = this.virtual_stage or 0
        if task not in self.on_compute:
            return (-1, v, 0)
        if this.kind in (Kind.F, Kind.OUT, Kind.O):
            # An O first: the next iteration's F would wait for it while an R took the memory.
            return (0, -1 if this.kind is Kind.O else v, int(this.kind is Kind.OUT))
        return (1, -v, (Kind.R, Kind.IN, Kind.B, Kind.BW, Kind.W).index(this.kind))

    def _fits(self, task: int) -> bool:
        if self.graph.caps is None:
            return True
        stage = self.graph.tasks[task].stage
        takes = sum(r.amount for r in self.residences if r.first == task)
        live = sum(
            r.amount
            for r in self.residences
            if r.stage == stage and r.first in self.placed and r.last not in self.placed
        )
        return not takes or live + takes <= self.graph.caps[stage]

    def _put(self, task: int) -> None:
        stage = self.graph.tasks[task].stage
        delay = self.random.choice((0, 0, 0, 1, 2))
        arrives = max((self.ends[before] + lag for before, lag in self.waits[task]), default=0)
        mine = [(n, use) for other, n, use in self.uses if other == task]
        free = [self.link_free_at[n] - use.offset_ticks for n, use in mine]
        free += [self.free_at[stage]] if task in self.on_compute else []
        start = max([self.graph.tasks[task].release_ticks, arrives, *free]) + delay
        self.placed[task], self.ends[task] = start, start + self.graph.tasks[task].duration_ticks
        for n, use in mine:
            self.link_free_at[n] = max(self.link_free_at[n], start + use.offset_ticks + use.ticks)
        if task in self.on_compute:
            self.free_at[stage] = self.ends[task]


def with_events(schedule: Schedule, events: list[Event]) -> Schedule:
    """Return ``schedule`` with other events."""
    return schedule.model_copy(update={"events": tuple(events)})
