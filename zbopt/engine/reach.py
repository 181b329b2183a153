"""The instances that the published integer program models. It is older than most fields, and says so."""

from __future__ import annotations

from zbopt.problem.facts import ReferenceModel, not_stated_by
from zbopt.problem.instance import Instance


def require_modelled(instance: Instance) -> None:
    """Refuse what the published integer program does not model.

    Raises:
        ValueError: A stage holds several virtual stages, or a field is in use that the program does not know.
    """
    if instance.virtual_stages != instance.stages:
        raise ValueError(
            f"milp: {instance.virtual_stages} virtual stages on {instance.stages} stages; the published program "
            "needs one virtual stage a stage, take cp-sat"
        )
    for name in not_stated_by(instance, ReferenceModel.PUBLISHED):
        why = "always splits the backward" if name == "fused_backward_ticks" else "does not model it"
        raise ValueError(f"milp: {name} is given; the published program {why}, leave it out or take cp-sat")
