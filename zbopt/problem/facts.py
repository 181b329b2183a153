"""Facts about the fields of an instance, each declared on its field and nowhere else.

A field carries its ``Facts`` in ``Annotated``. What scales times, spreads a scalar over a list, cuts a stage into
slices, sets a field by a flag, or asks whether an argument understands an instance reads them from there. So a new
field needs its declaration alone, and no list elsewhere can forget it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


class Axis(StrEnum):
    """What the values of a list count; ``NONE``: a single value."""

    NONE = "none"
    STAGE = "stage"
    VIRTUAL_STAGE = "virtual stage"
    MICROBATCH = "microbatch"
    STAGE_PAIR = "stage pair"


class Unit(StrEnum):
    """What a number counts; ``NONE``: no amount, but a word, a count or a structure."""

    NONE = "none"
    TICKS = "ticks"
    MEMORY = "memory"
    MEMORY_PER_TICK = "memory per tick"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is true of one field of an instance, whatever its value.

    Attributes:
        axis: What its values count.
        unit: What each value counts.
        is_absent: Whether a value says nothing, as if the field were not given; by default the field's own default is.
    """

    axis: Axis = Axis.NONE
    unit: Unit = Unit.NONE
    is_absent: Callable[[Any], bool] | None = None


_NO_FACTS = Facts()


def facts_of(field: FieldInfo) -> Facts:
    """Return the facts that a field declares; none declared is a single value without a unit."""
    return next((entry for entry in field.metadata if isinstance(entry, Facts)), _NO_FACTS)


def fields_in_use(instance: BaseModel) -> frozenset[str]:
    """Return the names of the fields of an instance that say something beyond their default."""
    return frozenset(
        name for name, field in type(instance).model_fields.items() if not _is_absent(field, getattr(instance, name))
    )


def _is_absent(field: FieldInfo, value: object) -> bool:
    is_absent = facts_of(field).is_absent
    if is_absent is not None:
        return is_absent(value)
    return not field.is_required() and value == field.get_default(call_default_factory=True)
