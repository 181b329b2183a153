"""Proved optima of small problems by CP-SAT in this process, and instances of every kind, for tests only."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from brute_force import optimum
from ortools.sat.python import cp_model
from random_instances import random_instance

from zbopt.analysis.metrics import figures
from zbopt.bounds import lower_bound
from zbopt.bounds.relax import Relaxed, whole
from zbopt.cpsat.cuts import CUTS
from zbopt.cpsat.formulation import Formulation, Rules
from zbopt.graph import expand
from zbopt.graph.memory import least_memory
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance
from zbopt.problem.routes import TIMES

FREE = Rules(without=frozenset(CUTS))
"""No cut at all."""

_TIMES = (*TIMES, "optimizer_ticks")


def solver() -> cp_model.CpSolver:
    """Return a solver with one thread and a minute of CP-SAT's own time, which none of these problems needs."""
    found = cp_model.CpSolver()
    found.parameters.num_workers = 1
    found.parameters.max_deterministic_time = 60
    return found


def least(problem: Relaxed, horizon: int, rules: Rules | None = None) -> int | None:
    """Return the least objective value of ``problem``, in ticks; ``None``: proved to be above ``horizon``."""
    formulation = Formulation(problem, horizon, minimise=True, rules=rules)
    search = solver()
    status = search.solve(formulation.model)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE), search.status_name(status)
    return round(search.objective_value) if status == cp_model.OPTIMAL else None


def known_value(instance: Instance) -> int:
    """Return the value of the list schedule. Every instance here has one."""
    return figures(HEURISTICS["list"](instance)).value(instance.objective)


def proved_optimum(instance: Instance, rules: Rules | None = None) -> int:
    """Return the least objective value of ``instance``, in ticks."""
    value = least(whole(expand(instance)), known_value(instance), rules)
    assert value is not None, "the list schedule is within the horizon"
    return value


def check_one_optimum(instance: Instance, name: str) -> None:
    """Brute force and the model with the rules that remove solutions and without agree; no closed bound is above."""
    best = optimum(instance)
    assert best is not None, name
    ruled, free = proved_optimum(instance), proved_optimum(instance, FREE)
    assert (ruled, free) == (best, best), f"{name}: brute force says {best}"
    assert lower_bound(instance).value <= best, name


def fixed_value(instance: Instance, starts: dict[int, int]) -> int | None:
    """Return the model's least value of ``starts``, without cuts and moved to begin at 0; ``None``: no solution."""
    graph = expand(instance)
    first = min(starts.values())
    horizon = max(start - first + graph.tasks[i].duration_ticks for i, start in starts.items())
    formulation = Formulation(whole(graph), horizon, minimise=True, rules=FREE)
    for i, start in starts.items():
        formulation.model.add(formulation.start[i] == start - first)
    for choice, taken in enumerate(graph.taken(starts)):
        formulation.model.add_bool_and(formulation.option[choice][taken])
    search = solver()
    return round(search.objective_value) if search.solve(formulation.model) == cp_model.OPTIMAL else None


def any_instance(random: Random, *, most_stages: int = 3, most_microbatches: int = 3) -> Instance:
    """Return a ``random_instance``, or one with any placement, routes, own times, long transfers or empty activations.

    Several virtual stages a stage mean two microbatches at most, and no span of three stages: minutes for CP-SAT.
    """
    unlike = random.random() < 0.35
    instance = random_instance(random, most_stages=most_stages, most_microbatches=most_microbatches, unlike=unlike)
    fields = instance.model_dump()
    if instance.virtual_stages > instance.stages:
        fields |= _fewer_microbatches(instance, 2) if instance.microbatches > 2 else {}
        if instance.stages > 2:
            fields["objective"] = "makespan"
    if random.random() < 0.3:
        fields["comm_ticks"] = random.randint(3, 9)
    if random.random() < 0.4:
        fields["stage_of"] = _placement(random, instance.stages, instance.virtual_stages)
    if random.random() < 0.1:
        fields["activation"] = [random.choice((0, 1)) for _ in instance.stage_of]
    if fields["memory_cap"] is not None:
        placed = Instance.model_validate(fields | {"memory_cap": None})
        needs = [least_memory(placed, stage) for stage in range(instance.stages)]
        fields["memory_cap"] = [need * random.choice((1, 1, Fraction(3, 2), 2)) for need in needs]
    return Instance.model_validate(fields)


def _fewer_microbatches(instance: Instance, most: int) -> dict[str, object]:
    """Keep the first ``most`` microbatches, or one for each route, with their times."""
    fields: dict[str, object] = {"microbatches": most}
    if instance.routes is not None:
        fields["routes"] = [route.model_copy(update={"microbatches": 1}) for route in instance.routes]
    if instance.microbatch_times is not None:
        kept = ([j for j in group.microbatches if j < most] for group in instance.microbatch_times)
        groups = zip(instance.microbatch_times, kept, strict=True)
        fields["microbatch_times"] = [g.model_dump() | {"microbatches": k} for g, k in groups if k] or None
    return fields


def _placement(random: Random, stages: int, virtual_stages: int) -> list[int]:
    """Draw a placement in which every stage holds a virtual stage, in any order."""
    stage_of = [*range(stages), *(random.randrange(stages) for _ in range(virtual_stages - stages))]
    random.shuffle(stage_of)
    return stage_of


def with_times(instance: Instance, factor: int) -> Instance:
    """Return ``instance`` with every time ``factor`` times as long."""
    fields = instance.model_dump()
    fields["comm_ticks"] *= factor
    for holder in (fields, *(fields.get("microbatch_times") or ())):
        for name in _TIMES:
            if holder.get(name) is not None:
                holder[name] = [None if ticks is None else ticks * factor for ticks in holder[name]]
    return Instance.model_validate(fields)
