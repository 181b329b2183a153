"""Task tables as JSON: rows of tasks by device, and other fields of the document."""

from __future__ import annotations

from typing import Any


class TaskTable:
    """Hold the rows of a document, and its other fields.

    Args:
        document: The parsed file.
        schema: What its ``schema`` has to be.
        name: Of the format, for errors.
        rows: Name of the field that holds the rows.
        of: What the rows hold, for errors.

    Raises:
        ValueError: It is another file, or the rows are none.
    """

    def __init__(self, document: object, schema: str, name: str, *, rows: str, of: str) -> None:
        if not isinstance(document, dict) or document.get("schema") != schema:
            raise ValueError(f"not a {name} task table; its schema is not {schema!r}")
        found = document.get(rows)
        if not isinstance(found, list) or not all(isinstance(row, list) for row in found):
            raise ValueError(f"{rows} is no list of rows; give a list of {of} for each stage")
        self.rows: list[list[Any]] = found
        self._document, self._of = document, of

    def agree(self, **said: object) -> None:
        """Raise ``ValueError`` where a field of the document contradicts its rows."""
        for name, found in said.items():
            value = self._document.get(name)
            if value != found or isinstance(value, bool):
                raise ValueError(f"{name} does not fit the {self._of}, which make it {found}; correct one of the two")


def is_index(value: object) -> bool:
    """Return whether a value can number a stage or microbatch: a whole number from 0 to 10**9."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9
