"""Foreign formats by the names that ``--to`` and ``--from`` take, and the flags that belong to them."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """List the values of ``--to`` and ``--from``."""

    TORCH_CSV = "torch-csv"
    CHROME_TRACE = "chrome-trace"
    MEGATRON_LAYOUT = "megatron-layout"
    JAXPP = "jaxpp"
    SAIL_ZB = "sail-zb"


def refuse_flags(chosen: Format, given: dict[str, bool], allowed: dict[str, Format]) -> None:
    """Refuse flags that have no meaning for a format.

    Args:
        chosen: The chosen format.
        given: Whether each flag was given.
        allowed: The format that each flag belongs to.

    Raises:
        ValueError: A flag was given that belongs to another format.
    """
    for flag, is_given in given.items():
        if is_given and chosen is not allowed[flag]:
            raise ValueError(f"{flag} goes with {allowed[flag].value} only; leave it out for {chosen.value}")
