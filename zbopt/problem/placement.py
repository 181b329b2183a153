"""Placements by name: the stage that holds each virtual stage."""

from __future__ import annotations

from zbopt.problem.numbers import counted

DEFAULT_VIRTUAL = {"linear": 1, "interleaved": 2, "v": 2, "bidirectional": 2}
"""Virtual stages a stage of each named placement, where a caller gives no number."""


def placement_of(name: str, stages: int, virtual: int | None = None) -> tuple[int, ...]:
    """Return ``stage_of`` of a named placement.

    Args:
        name: ``linear`` (one virtual stage a stage), ``interleaved`` (round robin), ``v`` (down and back up), or
            ``bidirectional`` (two replicas, one down and one up; its routes are ``routes.bidirectional``).
        stages: Number of stages.
        virtual: Virtual stages a stage: 1 for ``linear``, 2 for ``v`` and ``bidirectional``, any number for
            ``interleaved``. ``None``: those of ``DEFAULT_VIRTUAL``.

    Raises:
        ValueError: The name is unknown, or does not go with ``virtual``.
    """
    if virtual is None:
        virtual = DEFAULT_VIRTUAL.get(name, 1)
    down = tuple(range(stages))
    if name == "linear" and virtual == 1:
        return down
    if name == "interleaved" and virtual >= 1:
        return down * virtual
    if name in ("v", "bidirectional") and virtual == 2:
        return down + down[::-1]
    raise ValueError(
        f"placement {name!r} with {counted(virtual, 'virtual stage')} a stage is unknown; "
        "choose linear with 1, interleaved with any number, v or bidirectional with 2"
    )
