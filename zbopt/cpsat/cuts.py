"""The cuts [D..] of CP-SAT, and for each the fields of an instance that its proof in models/formulation.md covers.

A field that a cut does not name, a new one above all, switches the cut off wherever the field is in use: under a cut
whose proof has forgotten a field, a refutation would prove a false bound.

[D3] is in ``cpsat/scale.py``. [D4] and [D7] hold in every instance, by the form that graph and timing give it. [D8]
belongs to the published program alone, which refuses an instance with any field that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zbopt.problem.facts import fields_in_use
from zbopt.problem.instance import Instance

_OPS = (
    "schema_version",
    "name",
    "tick",
    "rounding_ticks",
    "stages",
    "microbatches",
    "stage_of",
    "forward_ticks",
    "backward_ticks",
    "weight_ticks",
    "fused_backward_ticks",
    "loss_ticks",
    "objective",
    "barrier",
    "barrier_ticks",
    "optimizer_ticks",
    "reduction_ticks",
    "reduction_occupies",
)
"""The ops of one step whose microbatches are all alike, the reductions, the optimizer step, and the objective."""

_MEMORY = (
    "memory_unit",
    "memory_cap",
    "activation",
    "weight_share",
    "gradient_state",
    "boundary",
    "receive_buffers",
    "parameters",
    "gradients",
    "optimizer_state",
    "workspace",
    "reserve",
)
"""What a stage holds, and its cap."""

_POLICIES = (
    "recompute",
    "recompute_ticks",
    "checkpoint",
    "offload",
    "offload_ticks",
    "reload_ticks",
    "offload_rest",
    "host_link",
)
"""Activations that are dropped and made again, or moved to the host and back."""

_LAGS = (
    "comm_ticks",
    "comm_matrix",
    "bandwidth",
    "bandwidth_matrix",
    "stages_per_node",
    "node_comm_ticks",
    "node_bandwidth",
)
"""How long a transfer takes."""

_LINKS = ("communication", "transfer_occupies", "collectives")
"""Transfers that occupy links, ports or stages."""

_ITERATIONS = ("iterations", "input_ready_ticks")
"""Several steps, and inputs that come late."""

_CLASSES = ("routes", "microbatch_times")
"""Microbatches that differ."""

_ONE_STEP = (*_OPS, *_MEMORY, *_POLICIES, *_LAGS)


@dataclass(frozen=True, slots=True)
class Cut:
    """Hold what removes schedules under one tag [D..], and the fields of an instance that its proof covers."""

    removes: str
    understands: frozenset[str]

    def applies(self, instance: Instance) -> bool:
        """Return whether ``instance`` uses only fields that the cut understands."""
        return fields_in_use(instance) <= self.understands


def _cut(removes: str, *understands: str) -> Cut:
    return Cut(removes, frozenset(understands))


CUTS: Mapping[str, Cut] = {
    "D1": _cut("schedules out of microbatch order", *_ONE_STEP, *_LINKS, *_ITERATIONS, *_CLASSES),
    "D2": _cut("ends after the windows of all stages", *_ONE_STEP, *_LINKS, *_ITERATIONS, *_CLASSES),
    "D5": _cut("nothing: a cap becomes orders of ops", *_ONE_STEP, *_LINKS, *_ITERATIONS, "routes"),
    "D6": _cut("schedules whose middle does not repeat", *_ONE_STEP),
    "D9": _cut("schedules out of the order of activation policies", *_ONE_STEP, *_LINKS),
    "D10": _cut("schedules out of a neighbourhood", *_ONE_STEP, *_LINKS, *_ITERATIONS, *_CLASSES),
}
"""Every cut by its tag. [D6] and [D10] only find schedules: that they find none proves nothing."""


def cuts_of(instance: Instance) -> frozenset[str]:
    """Return the tags of the cuts that understand every field in use in ``instance``.

    A cut may ask for more, such as a certain placement; where it is added, its own code says so.
    """
    in_use = fields_in_use(instance)
    return frozenset(tag for tag, cut in CUTS.items() if in_use <= cut.understands)
