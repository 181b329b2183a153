"""Flags that set the fields of a record: commands that share them take the record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, get_type_hints


def takes(*records: type[Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A decorator that gives a command the flags of ``records``; the command gets the records, then its own arguments.

    Typer reads flags from a signature; this builds it from the records' fields, which it would not look into.
    """

    def wrap(command: Callable[..., int]) -> Callable[..., int]:
        own = list(inspect.signature(command).parameters.values())[len(records) :]
        hints = get_type_hints(command, include_extras=True)
        parameters = [parameter for record in records for parameter in _parameters(record)]
        parameters += [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in own]

        def flat(**given: Any) -> int:
            built = [record(**{name: given.pop(name) for name in _names(record)}) for record in records]
            return command(*built, **given)

        flat.__name__, flat.__doc__ = command.__name__, command.__doc__
        flat.__dict__["__signature__"] = inspect.Signature(parameters)
        flat.__annotations__ = {p.name: p.annotation for p in parameters}
        return flat

    return wrap


def _names(record: type[Any]) -> list[str]:
    return [field.name for field in fields(record)]


def _parameters(record: type[Any]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(record, include_extras=True)  # costs as much as a record has fields: once, not for each
    for field in fields(record):
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
