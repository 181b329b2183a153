"""Safe text: names and messages from files, made fit for a terminal, SVG and HTML."""

from __future__ import annotations

_CONTROL = (*range(32), *range(127, 160))
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that turn the direction of what follows: a file could make a page say the reverse of what it prints."""
_NOT_IN_XML = (0xFFFE, 0xFFFF)
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROL if chr(code) not in "\n\t"}
_ESCAPES |= {code: f"\\u{code:04x}" for code in (*_BIDIRECTIONAL, *_NOT_IN_XML)}


def printable(text: str) -> str:
    """Return ``text`` with control, bidirectional and surrogate characters written as escapes such as ``\\x1b``.

    Line breaks and tabs stay. A terminal takes no command from the result, and XML accepts every character of it.
    """
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode("utf-8")
