"""Load: a stage starts after its first input and then has all its work to do (models/bounds.md, "load")."""

from __future__ import annotations

from zbopt.bounds.stage import Slices, optimizer_tail
from zbopt.instance import Instance, Objective
from zbopt.result import Bound


def load(instance: Instance) -> Bound:
    """The largest over the stages of head (makespan only), work of all microbatches, and optimizer step."""
    slices = Slices(instance)
    makespan = instance.objective is Objective.MAKESPAN
    values = []
    for stage in range(instance.stages):
        head = slices.heads[instance.virtual_stages_of(stage)[0]] if makespan else 0
        values.append(head + instance.microbatches * slices.work(stage) + optimizer_tail(instance, stage))
    return Bound(max(values), "bound:load")
