"""Flags that set the fields of a record: commands that share them take the record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import lru_cache
from typing import Any, get_type_hints

from zbopt.cli.field_flags import field_parameters
from zbopt.problem.facts import flags_by_field
from zbopt.problem.instance import Instance

FIELD_FLAGS = object()
"""Marks the field of a record that takes all flags which fields of an instance declare."""


def takes(*records: type[Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a decorator that gives a command the flags of ``records``: it gets these, then its own arguments.

    Typer reads flags from a signature; this builds it from the records' fields, which it would not look into.
    """

    def wrap(command: Callable[..., int]) -> Callable[..., int]:
        own = list(inspect.signature(command).parameters.values())[len(records) :]
        hints = get_type_hints(command, include_extras=True)
        parameters = [parameter for record in records for parameter in _parameters(record)]
        parameters += [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in own]

        def flat(**given: Any) -> int:
            built = [_record(record, given) for record in records]
            return command(*built, **given)

        flat.__name__, flat.__doc__ = command.__name__, command.__doc__
        flat.__dict__["__signature__"] = inspect.Signature(parameters)
        flat.__annotations__ = {p.name: p.annotation for p in parameters}
        return flat

    return wrap


def _record(record: type[Any], given: dict[str, Any]) -> Any:
    """Build ``record`` from the arguments of a call, which are taken out of ``given``."""
    values = {}
    for field in fields(record):
        if _holds_field_flags(record, field.name):
            texts = {name: given.pop(flag.parameter) for name, flag in flags_by_field(Instance).items()}
            values[field.name] = {name: text for name, text in texts.items() if text is not None}
        else:
            values[field.name] = given.pop(field.name)
    return record(**values)


@lru_cache
def _hints(record: Any) -> dict[str, Any]:
    """Return the annotations of a record's fields, which cost as much to read as a record has fields."""
    return get_type_hints(record, include_extras=True)


def _holds_field_flags(record: Any, field: str) -> bool:
    return FIELD_FLAGS in getattr(_hints(record)[field], "__metadata__", ())


def _parameters(record: Any) -> Iterator[inspect.Parameter]:
    for field in fields(record):
        if _holds_field_flags(record, field.name):
            yield from field_parameters()
        else:
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=_hints(record)[field.name]
            )
