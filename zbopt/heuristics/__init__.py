"""Schedules without search, one file a family: each a plain function from an instance to a valid schedule.

A schedule is timed by the instance's own times and communication. Where its memory is above a cap it raises
``CannotFitError``; where it is not defined, ``NotApplicableError``.
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
from zbopt.heuristics.tools.build import CannotFitError, NotApplicableError
from zbopt.heuristics.v_auto import v_auto
from zbopt.heuristics.v_half import v_half
from zbopt.heuristics.v_min import v_min
from zbopt.heuristics.zb_auto import zb_auto
from zbopt.heuristics.zb_handcrafted import zb_h1, zb_h2
from zbopt.heuristics.zb_v import zb_v
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule

HEURISTICS: Mapping[str, Callable[[Instance], Schedule]] = MappingProxyType(
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
"""Every heuristic by its name."""

_MEET_THE_BOUND = ("zb-auto", "v-auto", "interleaved-auto")
_OVERLAP = ("dualpipe", "dualpipe-v")


def best_first(instance: Instance) -> list[tuple[str, Callable[[Instance], Schedule]]]:
    """All heuristics in the order in which to try them: time may be over before the last.

    First those that meet the bound most often; before them, where an F and a BW may be one op, those that run them so:
    they take no time, and the others may search for long.
    """
    first = _MEET_THE_BOUND if instance.overlapped_ticks is None else (*_OVERLAP, *_MEET_THE_BOUND)
    return sorted(HEURISTICS.items(), key=lambda item: first.index(item[0]) if item[0] in first else len(first))


__all__ = ["HEURISTICS", "CannotFitError", "NotApplicableError", "best_first"]
