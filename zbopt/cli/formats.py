"""The foreign formats by the names that ``--to`` and ``--from`` take, and how their files are read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path


class Format(StrEnum):
    """Values of ``--to`` and ``--from``."""

    TORCH_CSV = "torch-csv"
    CHROME_TRACE = "chrome-trace"
    MEGATRON_LAYOUT = "megatron-layout"
    JAXPP = "jaxpp"
    SAIL_ZB = "sail-zb"


def refuse_flags(chosen: Format, given: dict[str, bool], allowed: dict[str, Format]) -> None:
    """Refuse flags that mean nothing for a format.

    Args:
        chosen: The format.
        given: Whether each flag was given.
        allowed: The format that each flag belongs to.

    Raises:
        ValueError: A flag was given that belongs to another format.
    """
    for flag, is_given in given.items():
        if is_given and chosen is not allowed[flag]:
            raise ValueError(f"{flag} goes with {allowed[flag].value} only; leave it out for {chosen.value}")


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ValueError: The file is missing, a directory, empty, or not text.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file (byte {error.start}); give it in UTF-8") from None
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or 'cannot be read').lower()}; give the path of a file") from None
    if not text.strip():
        raise ValueError(f"{path}: the file is empty; give one with content")
    return text
