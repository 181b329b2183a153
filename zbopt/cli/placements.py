"""``--placement`` and ``--virtual``: a placement by its name or list, and the candidates of ``auto``.

With ``auto`` flags or file tell of whole stages: the part of the model that a stage of a linear pipeline runs. Each
candidate cuts every part into equal slices, so that all run the same model on the same devices under the same cap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from zbopt.cli.flags import ProblemFlags
from zbopt.costs.cutting import Candidate
from zbopt.problem.placement import DEFAULT_VIRTUAL, placement_of

AUTO = "auto"
BIDIRECTIONAL = "bidirectional"


def stage_of_flags(flags: ProblemFlags) -> tuple[int, ...] | None:
    """Return the placement that ``--placement`` and ``--virtual`` ask for; ``None``: neither is given.

    Raises:
        ValueError: The name is unknown, the list holds no numbers, or the two flags do not go together.
    """
    stages, name = flags.fields["stages"], flags.placement
    if name is None:
        return None if flags.virtual is None else _named(stages, "interleaved", flags.virtual)
    if "," not in name and not name.strip().isdecimal():
        return _named(stages, name, DEFAULT_VIRTUAL.get(name, 1) if flags.virtual is None else flags.virtual)
    if flags.virtual is not None:
        raise ValueError(f"--virtual {flags.virtual} beside a list of stages: the list says it; leave --virtual out")
    parts = [part.strip() for part in name.split(",")]
    wrong = next((part for part in parts if not re.fullmatch(r"\d{1,9}", part)), None)
    if wrong is not None:
        raise ValueError(f"--placement: {wrong!r} is no stage; write a list of them as 0,1,2,2,1,0")
    return tuple(map(int, parts))


def _named(stages: int, name: str, virtual: int) -> tuple[int, ...]:
    if stages < 1:
        return ()  # the instance says what is wrong with that
    if name not in DEFAULT_VIRTUAL:
        raise ValueError(f"--placement {name!r}: give {', '.join(DEFAULT_VIRTUAL)}, auto, or a list such as 0,1,2,2,0")
    if virtual < 1:
        raise ValueError(f"--virtual {virtual}: give at least 1")
    if name == "interleaved" and virtual == 1:
        name = "linear"
    try:
        return placement_of(name, stages, virtual)
    except ValueError as error:
        raise ValueError(f"--placement {name} --virtual {virtual}: {error}") from None


def candidates(stages: int, virtual: int | None) -> Iterator[Candidate]:
    """Yield what ``--placement auto`` tries.

    Args:
        stages: Stages of the pipeline.
        virtual: Slices of a part in the interleaved placement; ``None``: 2.

    Raises:
        ValueError: There are fewer than 2 slices.
    """
    virtual = 2 if virtual is None else virtual
    if virtual < 2:
        raise ValueError(f"--virtual {virtual} with --placement auto: give the slices of interleaved, 2 or more")
    yield Candidate("linear", _named(stages, "linear", 1), 1)
    yield Candidate(f"interleaved {virtual}", _named(stages, "interleaved", virtual), virtual)
    yield Candidate("v", _named(stages, "v", 2), 2)
    yield Candidate(BIDIRECTIONAL, _named(stages, BIDIRECTIONAL, 2), 1)
