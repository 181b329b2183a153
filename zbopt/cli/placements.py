"""``--placement`` and ``--virtual``: a placement by its name or list, and the candidates of ``auto``.

With ``auto`` the flags tell of whole stages: the part of the model that a stage of a linear pipeline runs. Each
candidate cuts every part into equal slices, so that all run the same model on the same devices under the same cap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm
from typing import Any

from zbopt.cli.flags import ProblemFlags
from zbopt.costs.times import Times, parse_times, tick_name, tick_ns
from zbopt.instance import placement_of

AUTO = "auto"
BIDIRECTIONAL = "bidirectional"
NOT_CUT = ("comm", "optimizer", "node_comm", "loss", "barrier_time", "input_ready")
"""Flags whose times are not of a stage's part of the model: they are not divided."""
_BY_STAGE = ("overlapped",)
"""Flags whose times are cut, and whose lists are by stage in every placement."""
_DEFAULT_VIRTUAL = {"linear": 1, "interleaved": 2, "v": 2, BIDIRECTIONAL: 2}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement to try: its name, stages of its virtual stages, and slices that a stage's part is cut into."""

    name: str
    stage_of: tuple[int, ...]
    slices: int


def stage_of_flags(flags: ProblemFlags) -> tuple[int, ...] | None:
    """The placement that ``--placement`` and ``--virtual`` ask for; ``None``: neither is given.

    Raises:
        ValueError: The name is unknown, the list holds no numbers, or the two flags do not go together.
    """
    assert flags.stages is not None, "asked for only where there are stages"
    name = flags.placement
    if name is None:
        return None if flags.virtual is None else _named(flags.stages, "interleaved", flags.virtual)
    if "," not in name and not name.strip().isdecimal():
        return _named(flags.stages, name, _DEFAULT_VIRTUAL.get(name, 1) if flags.virtual is None else flags.virtual)
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
    if name not in _DEFAULT_VIRTUAL:
        raise ValueError(f"--placement {name!r}: give {', '.join(_DEFAULT_VIRTUAL)}, auto, or a list such as 0,1,2,2,0")
    if virtual < 1:
        raise ValueError(f"--virtual {virtual}: give at least 1")
    if name == "interleaved" and virtual == 1:
        name = "linear"
    try:
        return placement_of(name, stages, virtual)
    except ValueError as error:
        raise ValueError(f"--placement {name} --virtual {virtual}: {error}") from None


def candidates(flags: ProblemFlags) -> Iterator[Candidate]:
    """What ``--placement auto`` tries; ``--virtual`` sets the slices of the interleaved one."""
    assert flags.stages is not None, "asked for only where there are stages"
    virtual = 2 if flags.virtual is None else flags.virtual
    if virtual < 2:
        raise ValueError(f"--virtual {virtual} with --placement auto: give the slices of interleaved, 2 or more")
    yield Candidate("linear", _named(flags.stages, "linear", 1), 1)
    yield Candidate(f"interleaved {virtual}", _named(flags.stages, "interleaved", virtual), virtual)
    yield Candidate("v", _named(flags.stages, "v", 2), 2)
    yield Candidate(BIDIRECTIONAL, _named(flags.stages, BIDIRECTIONAL, 2), 1)


@dataclass(frozen=True, slots=True)
class Cut:
    """Times of whole stages, in ticks so fine that each candidate's slices keep whole ticks where that is possible.

    ``finer`` of these ticks are one unit of the times as given, where those have no unit; else 1.
    """

    times: Times
    stages: int
    finer: int

    @classmethod
    def of(cls, texts: Mapping[str, str], tick: str | None, stages: int, slices: list[int]) -> Cut:
        """The cut that serves all ``slices``; a ``tick`` that is asked for stays as it is.

        Raises:
            ValueError: As ``parse_times`` does.
        """
        times, parts = parse_times(texts, tick), lcm(*slices)
        if times.tick == "unit":
            return cls(times, stages, parts)
        finer = tick_ns(times.tick) / parts
        if tick is None and finer.denominator == 1:
            times = parse_times(texts, tick_name(finer))
        return cls(times, stages, 1)

    def fields(self, candidate: Candidate, names: Mapping[str, str]) -> dict[str, Any]:
        """The instance fields of ``candidate``: every time of a stage's part divided by its slices, rounded up.

        Args:
            candidate: The placement.
            names: The instance's field of each flag.

        Raises:
            ValueError: A list is neither one time nor one a stage, or holds an op that does not exist.
        """
        fields: dict[str, Any] = {"stage_of": candidate.stage_of, "tick": self.times.tick}
        added = Fraction(0)
        for flag, ticks in self.times.ticks.items():
            slices = 1 if flag in NOT_CUT else candidate.slices
            exact = self._exact(flag, ticks, slices)
            whole = tuple(map(ceil, exact))
            up = (w - e for w, e in zip(whole, exact, strict=True))
            added = max(added, max(up) + self.times.rounding_ticks / slices)
            fields[names[flag]] = whole[0] if len(whole) == 1 else spread(whole, candidate, flag)
        return fields | {"rounding_ticks": added}

    def _exact(self, flag: str, ticks: tuple[int | None, ...], slices: int) -> list[Fraction]:
        if len(ticks) not in (1, self.stages):
            raise ValueError(
                f"--{flag.replace('_', '-')}: {len(ticks)} times with --placement auto; give 1, or 1 a stage "
                f"({self.stages}): they are of whole stages"
            )
        if None in ticks:
            raise ValueError(
                f"--{flag.replace('_', '-')}: 'none' with --placement auto: later slices of the first stage have a B; "
                "give one placement and a time for each virtual stage"
            )
        return [Fraction(t * self.finer, slices) for t in ticks if t is not None]


def spread(values: tuple[Any, ...], candidate: Candidate, flag: str) -> tuple[Any, ...]:
    """Values of the model's parts, in order, to the slices of each; those of stages stay as they are."""
    if flag in NOT_CUT or flag in _BY_STAGE or len(values) == 1:
        return values
    return tuple(values[v // candidate.slices % len(values)] for v in range(len(candidate.stage_of)))
