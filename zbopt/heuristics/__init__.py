"""Heuristics, one file a family: each a plain function from an instance to a valid schedule.

A schedule is timed by the instance's own times and communication. Where its memory is above a cap the heuristic raises
``CannotFitError``; where it is not defined, ``NotApplicableError``. Baselines are the published schedules that people
compare with; the other heuristics plan for the memory cap. ``candidates_of`` says which of all ``solve`` tries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from zbopt.heuristics.chimera import chimera
from zbopt.heuristics.dualpipe import dualpipe, dualpipe_v
from zbopt.heuristics.gis import gis, gis_half
from zbopt.heuristics.gpipe import gpipe
from zbopt.heuristics.interleaved import interleaved
from zbopt.heuristics.interleaved_auto import interleaved_auto
from zbopt.heuristics.interleaved_zb import interleaved_zb
from zbopt.heuristics.list_schedule import list_schedule
from zbopt.heuristics.looped_bfs import looped_bfs
from zbopt.heuristics.one_f_one_b import one_f_one_b, one_f_one_b_split
from zbopt.heuristics.one_f_one_b_v import one_f_one_b_v
from zbopt.heuristics.tools.build import CannotFitError, NotApplicableError, is_plain
from zbopt.heuristics.v_auto import v_auto
from zbopt.heuristics.v_half import v_half
from zbopt.heuristics.v_min import v_min
from zbopt.heuristics.zb_auto import zb_auto
from zbopt.heuristics.zb_handcrafted import zb_h1, zb_h2
from zbopt.heuristics.zb_v import zb_v
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule

Heuristic = Callable[[Instance], Schedule]
"""Build a schedule of an instance, or raise ``CannotFitError`` or ``NotApplicableError``."""

HEURISTICS: Mapping[str, Heuristic] = MappingProxyType(
    {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "1f1b-split": one_f_one_b_split,
        "interleaved": interleaved,
        "looped-bfs": looped_bfs,
        "interleaved-zb": interleaved_zb,
        "gis": gis,
        "gis-h": gis_half,
        "interleaved-auto": interleaved_auto,
        "zb-h1": zb_h1,
        "zb-h2": zb_h2,
        "zb-auto": zb_auto,
        "1f1b-v": one_f_one_b_v,
        "v-min": v_min,
        "v-half": v_half,
        "zb-v": zb_v,
        "v-auto": v_auto,
        "chimera": chimera,
        "dualpipe": dualpipe,
        "dualpipe-v": dualpipe_v,
        "list": list_schedule,
    }
)
"""Every heuristic by its name, in the order in which they are shown."""

PLAN_FOR_THE_CAP = ("zb-auto", "v-auto", "interleaved-auto", "list")
"""Heuristics that search for the best schedule under a memory cap, those that meet the bound most often first."""

BASELINES: Mapping[str, Heuristic] = MappingProxyType(
    {name: heuristic for name, heuristic in HEURISTICS.items() if name not in PLAN_FOR_THE_CAP}
)
"""The published schedules, each with the memory that its definition gives it."""

_NEVER_BEST = frozenset({"looped-bfs", "interleaved-zb", "gis", "gis-h", "1f1b-v"})
"""Baselines that were alone best on no random instance: bench/README.md, "Which heuristics solve tries"."""
_NEVER_BEST_OF_PLAIN_STEPS = _NEVER_BEST | {"1f1b-split"}
"""Baselines that were alone best on no step that has only its ops to place; the same section."""
_NEVER_BEST_OF_SPLIT_STEPS = _NEVER_BEST_OF_PLAIN_STEPS | {"gpipe", "1f1b"}
"""Those that are left out too where the backward may be split. Where it may not, GPipe and 1F1B are often as good as
the best schedule, which the others take longer to find; the same section."""
_PAIR_OPS = ("dualpipe", "dualpipe-v")
"""Baselines that run an F and a BW as one op."""


def candidates_of(instance: Instance) -> dict[str, Heuristic]:
    """Return the heuristics that ``solve`` tries, in the order in which it does: time may be over before the last.

    First come those that meet the bound most often; before them, where an F and a BW may be one op, those that pair
    them, since they take no time and the others may search for long.
    """
    first = PLAN_FOR_THE_CAP[:-1] if instance.overlapped_ticks is None else (*_PAIR_OPS, *PLAN_FOR_THE_CAP[:-1])
    left_out = _NEVER_BEST
    if is_plain(instance):
        left_out = _NEVER_BEST_OF_SPLIT_STEPS if instance.may_split else _NEVER_BEST_OF_PLAIN_STEPS
    names = dict.fromkeys((*first, *HEURISTICS))
    return {name: HEURISTICS[name] for name in names if name not in left_out}


__all__ = [
    "BASELINES",
    "HEURISTICS",
    "CannotFitError",
    "Heuristic",
    "NotApplicableError",
    "candidates_of",
    "chimera",
    "dualpipe",
    "dualpipe_v",
    "gis",
    "gis_half",
    "gpipe",
    "interleaved",
    "interleaved_auto",
    "interleaved_zb",
    "list_schedule",
    "looped_bfs",
    "one_f_one_b",
    "one_f_one_b_split",
    "one_f_one_b_v",
    "v_auto",
    "v_half",
    "v_min",
    "zb_auto",
    "zb_h1",
    "zb_h2",
    "zb_v",
]
