"""The cuts [D..] of CP-SAT, and for each the fields of an instance that its proof in models/formulation.md covers.

A field that a cut does not name, a new one above all, switches the cut off wherever the field is in use: under a cut
whose proof has forgotten a field, a refutation would prove a false bound.

[D3] is in ``cpsat/scale.py``. [D4] and [D7] hold in every instance, by the form that graph and timing give it. [D8]
belongs to the published program alone, which refuses an instance with any field that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping

from zbopt.bounds.understood import COMMON, DROPPING, EVENTS, EVERYTHING, FUSED, OVERLAPPED, Fields
from zbopt.problem.facts import fields_in_use
from zbopt.problem.instance import Instance

_CHOSEN_BY_CP_SAT: Fields = EVERYTHING - OVERLAPPED
"""All that CP-SAT models; it refuses an instance in which an F and a BW may run as one op."""

CUTS: Mapping[str, Fields] = {
    "D1": _CHOSEN_BY_CP_SAT,
    "D2": _CHOSEN_BY_CP_SAT,
    "D5": _CHOSEN_BY_CP_SAT - {"microbatch_times"},
    "D6": COMMON | FUSED | DROPPING,
    "D9": COMMON | FUSED | DROPPING | EVENTS,
    "D10": _CHOSEN_BY_CP_SAT,
}
"""Each cut's tag, with the fields that the cut understands.

[D1] microbatch order, [D2] windows of stages that form one interval, [D5] a cap as orders of ops, [D6] a middle that
repeats, [D9] order among microbatches of equal policies, [D10] neighbourhoods. [D6] and [D10] only find schedules: that
they find none proves nothing.
"""


def cuts_of(instance: Instance) -> frozenset[str]:
    """Return the tags of the cuts that understand every field in use in ``instance``.

    A cut may ask for more, such as a certain placement; where it is added, its own code says so.
    """
    in_use = fields_in_use(instance)
    return frozenset(tag for tag, understood in CUTS.items() if in_use <= understood)
