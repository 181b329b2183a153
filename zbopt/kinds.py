"""The words of the problem: what an event does, what is minimised, what an optimizer step waits for."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What an event does (DESIGN section 1): the zero-bubble papers' letters."""

    F = "F"
    B = "B"
    W = "W"
    BW = "BW"
    R = "R"
    O = "O"  # noqa: E741 - the papers' letter


class Objective(StrEnum):
    """What is minimised, in ticks."""

    MAKESPAN = "makespan"
    MAX_STAGE_SPAN = "max_stage_span"


class Barrier(StrEnum):
    """What an optimizer step waits for: nothing is modelled, every stage's gradients, or its own stage's."""

    NONE = "none"
    GLOBAL = "global"
    POST_VALIDATION = "post_validation"


class Drop(StrEnum):
    """Whether an activation is dropped between its F and its backward: never, always, or as the schedule chooses."""

    NEVER = "never"
    ALWAYS = "always"
    CHOOSE = "choose"
