"""The words of a problem: kinds of events, objectives, barriers, and what transfers and reductions occupy."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """Name what an event does, in the zero-bubble papers' letters.

    ``SEND_F`` hands an activation to the next virtual stage, ``SEND_B`` a gradient to the one before; both belong to
    the virtual stage that sends. ``G`` reduces a virtual stage's gradients over data parallel replicas. ``R`` computes
    a dropped activation again; ``OUT`` takes one to the host, and ``IN`` brings it back.
    """

    F = "F"
    B = "B"
    W = "W"
    BW = "BW"
    R = "R"
    O = "O"  # noqa: E741 - the papers' letter
    G = "G"
    SEND_F = "SEND_F"
    SEND_B = "SEND_B"
    OUT = "OUT"
    IN = "IN"


COMPUTE = frozenset({Kind.F, Kind.B, Kind.W, Kind.BW, Kind.R, Kind.O})
"""Kinds that occupy their stage's compute; the others run beside it, on links and ports."""


class Objective(StrEnum):
    """Name what is minimised, in ticks."""

    MAKESPAN = "makespan"
    MAX_STAGE_SPAN = "max_stage_span"
    PERIOD = "period"


class Barrier(StrEnum):
    """Name what an optimizer step waits for: no step is modelled, every stage's gradients, or its own stage's."""

    NONE = "none"
    GLOBAL = "global"
    POST_VALIDATION = "post_validation"


class Drop(StrEnum):
    """Say when an activation is dropped between its F and its backward: never, always, or as the schedule chooses."""

    NEVER = "never"
    ALWAYS = "always"
    CHOOSE = "choose"


class Communication(StrEnum):
    """Name what a transfer between stages is: a lag, an event on a link, or one that holds both stages' compute too."""

    LATENCY = "latency"
    LINK = "link"
    BLOCKING = "blocking"


class TransferOccupies(StrEnum):
    """Name what one transfer at a time may use: its directed link, or the port of both stages in either direction."""

    LINK = "link"
    PORT = "port"


class ReductionOccupies(StrEnum):
    """Name what one reduction at a time may use: a link of its stage, one of its node, or the port of its stage."""

    STAGE = "stage"
    NODE = "node"
    PORT = "port"
