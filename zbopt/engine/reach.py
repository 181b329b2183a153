"""What an engine models. The published program is older than most fields of an instance: it must say so."""

from __future__ import annotations

from zbopt.problem.instance import Instance

_MODELLED = {
    "schema_version",
    "name",
    "stages",
    "microbatches",
    "stage_of",
    "tick",
    "rounding_ticks",
    "forward_ticks",
    "backward_ticks",
    "weight_ticks",
    "comm_ticks",
    "memory_cap",
    "activation",
    "memory_unit",
    "weight_share",
    "objective",
    "barrier",
    "optimizer_ticks",
}
"""Fields that the published program takes in full. Any other may only have its default."""


def require_modelled(instance: Instance) -> None:
    """Refuse what the published integer program does not model.

    Raises:
        ValueError: A stage holds several virtual stages, or a field is given that the program does not know.
    """
    if instance.virtual_stages != instance.stages:
        raise ValueError(
            f"milp: {instance.virtual_stages} virtual stages on {instance.stages} stages; the published program "
            "needs one virtual stage a stage, take cp-sat"
        )
    for name, field in Instance.model_fields.items():
        if name not in _MODELLED and getattr(instance, name) != field.get_default(call_default_factory=True):
            why = "always splits the backward" if name == "fused_backward_ticks" else "does not model it"
            raise ValueError(f"milp: {name} is given; the published program {why}, leave it out or take cp-sat")
