"""Fields of an instance that each bound understands: where another field is in use, the bound says nothing.

A proof in models/bounds.md speaks of the fields that it names. A field that nobody thought of could make ops shorter,
or room for more of them, and then the bound would be false. So each argument lists its fields here or beside its
code, and a new field silences every argument until someone has read the proof again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper

from zbopt.problem.bound import Bound
from zbopt.problem.facts import fields_in_use
from zbopt.problem.instance import Instance

Fields = frozenset[str]

LABELS: Fields = frozenset({"schema_version", "name", "tick", "rounding_ticks", "memory_unit"})
"""Names and units: they change no schedule and no value."""

SIZE: Fields = frozenset({"stages", "microbatches", "stage_of", "objective"})
"""How many ops there are, on which stages, and what counts. An argument that needs one placement asks for it itself."""

SPLIT_TIMES: Fields = frozenset({"forward_ticks", "backward_ticks", "weight_ticks", "loss_ticks"})
"""Times of F, B and W. The loss is a part of F on the last virtual stage (``Instance.ticks_of``)."""

TRANSFER_TIMES: Fields = frozenset(
    {
        "comm_ticks",
        "comm_matrix",
        "stages_per_node",
        "node_comm_ticks",
        "bandwidth",
        "node_bandwidth",
        "bandwidth_matrix",
    }
)
"""What ``Instance.lag_ticks`` reads, c(u,v) of the proofs."""

MEMORY: Fields = frozenset(
    {
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
    }
)
"""What microbatches and stages hold: A, k, omega and M of the proofs. An argument that knows of no memory stays valid,
since a cap only forbids schedules. What stages hold through the whole step is taken from the cap."""

UPDATE: Fields = frozenset({"barrier", "optimizer_ticks", "reduction_ticks", "barrier_ticks"})
"""What follows the last backward: the tails t of section 1 and section 11."""

EXCLUSIONS: Fields = frozenset({"reduction_occupies", "host_link"})
"""Which reductions, and which OUT and IN, exclude each other. That only forbids schedules."""

DROPPING_DETAILS: Fields = frozenset({"recompute_ticks", "checkpoint", "offload_ticks", "reload_ticks", "offload_rest"})
"""Times and amounts of dropped activations: without ``recompute`` or ``offload`` they mean nothing."""

COMMON: Fields = LABELS | SIZE | SPLIT_TIMES | TRANSFER_TIMES | MEMORY | UPDATE | EXCLUSIONS | DROPPING_DETAILS
"""What every argument understands."""

FUSED: Fields = frozenset({"fused_backward_ticks"})
"""A backward may run as one BW: gamma and beta of section 1 are the least over both."""

DROPPING: Fields = frozenset({"recompute", "offload"})
"""Activations may be dropped: the least that may be left of them, and R, OUT and IN where they always run."""

EVENTS: Fields = frozenset({"communication", "transfer_occupies", "collectives"})
"""Transfers are events that occupy links, ports or stages. A transfer takes no less time than as a lag, and what it
occupies only forbids schedules (section 11)."""

SEVERAL: Fields = frozenset({"iterations", "input_ready_ticks"})
"""Several iterations, for an argument of one iteration that ``over_stages`` repeats (section 11); and inputs that come
late, which only forbids schedules. The period is an objective of several iterations only."""

UNLIKE: Fields = frozenset({"routes", "microbatch_times"})
"""Microbatches that pass different virtual stages or take different times."""

OVERLAPPED: Fields = frozenset({"overlapped_ticks"})
"""An F and a BW may run as one op, in less time than one after the other."""

ONE_KIND: Fields = COMMON | FUSED | DROPPING | EVENTS | SEVERAL
"""What the closed arguments for microbatches that are alike understand."""

EVERYTHING: Fields = ONE_KIND | UNLIKE | OVERLAPPED
"""All fields that instances had when the proofs were last read. A list, so that a new field is not among them."""


def is_understood(instance: Instance, fields: Fields) -> bool:
    """Return whether no field of ``instance`` is in use but those that an argument understands."""
    return fields_in_use(instance) <= fields


class Argument:
    """Represent one closed argument: a function from an instance to a bound, silent where it does not understand.

    Attributes:
        understood: The fields that the argument understands.
    """

    def __init__(self, bound_of: Callable[[Instance], Bound | None], understood: Fields) -> None:
        self.understood = understood
        self._bound_of = bound_of
        update_wrapper(self, bound_of)

    def __call__(self, instance: Instance) -> Bound | None:
        """Return what the argument proves; ``None``: it says nothing of this instance."""
        return self._bound_of(instance) if is_understood(instance, self.understood) else None


def understands(fields: Fields) -> Callable[[Callable[[Instance], Bound | None]], Argument]:
    """Declare the fields that the decorated argument understands."""

    def declare(bound_of: Callable[[Instance], Bound | None]) -> Argument:
        return Argument(bound_of, fields)

    return declare
