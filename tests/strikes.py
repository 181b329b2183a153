"""Take a declared fact away from a field of an instance, so that a test can show what relies on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from zbopt.problem.facts import Facts, declared, facts_of
from zbopt.problem.instance import Instance


@contextmanager
def struck(name: str, **changes: Any) -> Iterator[None]:
    """Change facts of the field ``name`` in its declaration, and put them back at the end."""
    field = Instance.model_fields[name]
    before = field.metadata
    field.metadata = [replace(facts_of(field), **changes) if isinstance(entry, Facts) else entry for entry in before]
    declared.cache_clear()
    try:
        yield
    finally:
        field.metadata = before
        declared.cache_clear()
