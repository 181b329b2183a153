"""Facts about the fields of an instance, each declared on its field and nowhere else.

A field carries its ``Facts`` in ``Annotated``. The code that scales times, spreads a scalar over a list, cuts a stage
into slices, offers a flag, or asks whether an argument understands an instance reads them from there. So a new field
needs its declaration alone, and no list elsewhere can forget it. Every fact that a proof or a cut relies on is absent
by default, so that a field without it is refused or left as it is, never treated wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


class Axis(StrEnum):
    """Name what the entries of a list stand for; ``NONE``: a single value, or a structure of its own."""

    NONE = "none"
    STAGE = "stage"
    VIRTUAL_STAGE = "virtual stage"
    MICROBATCH = "microbatch"
    STAGE_PAIR = "stage pair"


class Unit(StrEnum):
    """Name what a number counts; ``NONE``: no amount, but a word, a count or a structure."""

    NONE = "none"
    TICKS = "ticks"
    MEMORY = "memory"
    MEMORY_PER_TICK = "memory per tick"
    SHARE = "share"


class CutRule(StrEnum):
    """Say what becomes of a field where the part of a stage is cut into slices, its virtual stages.

    ``REFUSED``: such an instance cannot be cut. ``KEPT``: each slice has its part's value. ``DIVIDED``: each slice has
    its share of its part's value. ``GATHERED``: a stage has the shares of all its slices together. The cut itself
    sets the placement, and what a tick is.
    """

    REFUSED = "refused"
    KEPT = "kept"
    DIVIDED = "divided"
    GATHERED = "gathered"


class ReferenceModel(StrEnum):
    """Name a model beside ours that states only some fields of an instance."""

    PUBLISHED = "the published integer program"
    MINIZINC = "models/pipeline.mzn"


ALL_REFERENCE_MODELS = frozenset(ReferenceModel)


class Panel(StrEnum):
    """Name a panel of the help, in the order in which the help shows them."""

    TRANSFERS = "Transfers between stages"
    AROUND = "Around the step"
    MEMORY = "Memory"
    DROPPING = "Recompute and offload"
    PROBLEM = "The problem"


@dataclass(frozen=True, slots=True)
class Flag:
    """Describe the flag that sets a field.

    Attributes:
        name: The flag as it is typed, such as ``--comm``.
        help: One or more sentences; the help adds which field the flag sets.
        panel: Where the help shows it.
        default: Text that the help shows as its default; ``None``: none.
        metavar: Text that stands for a value; ``None``: follows from the field's unit and axis.
        beside_file: The flag may stand beside an instance file: it says what is asked of a pipeline, not what the
            pipeline is. A note says where it departs from the file.
        is_list: A single value does not stand for all.
    """

    name: str
    help: str
    panel: Panel
    _: KW_ONLY
    default: str | None = None
    metavar: str | None = None
    beside_file: bool = False
    is_list: bool = False

    @property
    def parameter(self) -> str:
        """Return the flag's name as that of a parameter, such as ``mem_limit``."""
        return self.name.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Facts:
    """Say what is true of one field of an instance, whatever its value.

    Attributes:
        axis: What the entries of a list stand for.
        unit: What each number counts.
        cut: Rule for it where the part of a stage is cut into slices.
        scales: Its ticks may be divided by a common divisor of all times, and mean the same in longer ticks [D3].
        one_for_all: A list by stage or virtual stage may be given as one value for all.
        is_label: It names or describes, and means nothing to a solver, a bound or a rule.
        stated_by: The reference models that state it in full.
        is_absent: Says of an instance and its value of the field whether the value says nothing, as if the field were
            not given. ``None``: only its default says nothing.
        filled: Makes its default from the other fields as given. ``None``: its default does not depend on them.
        flag: The flag that sets it; ``None``: only a file has it.
    """

    axis: Axis
    unit: Unit
    _: KW_ONLY
    cut: CutRule = CutRule.REFUSED
    scales: bool = False
    one_for_all: bool = True
    is_label: bool = False
    stated_by: frozenset[ReferenceModel] = frozenset()
    is_absent: Callable[[Any, Any], bool] | None = None
    filled: Callable[[Mapping[str, Any]], Any] | None = None
    flag: Flag | None = None

    @property
    def spreads(self) -> bool:
        """Return whether one value may be given for a whole list."""
        return self.one_for_all and self.axis in (Axis.STAGE, Axis.VIRTUAL_STAGE)


@dataclass(frozen=True, slots=True)
class Declared:
    """Hold one field's facts beside what pydantic knows of it; ``default`` is ``None`` where it is required."""

    facts: Facts
    is_required: bool
    default: object


def facts_of(field: FieldInfo) -> Facts:
    """Return the facts that a field declares.

    Raises:
        TypeError: The field declares none. Silence here could make a false proof elsewhere.
    """
    found = next((entry for entry in field.metadata if isinstance(entry, Facts)), None)
    if found is None:
        raise TypeError(f"a field of an instance declares no facts: {field!r}; annotate it with Facts(...)")
    return found


@lru_cache(maxsize=8)
def declared(model: type[BaseModel]) -> Mapping[str, Declared]:
    """Return what each field of ``model`` declares, by name, in the order of files."""
    return {
        name: Declared(facts_of(field), field.is_required(), field.get_default(call_default_factory=True))
        for name, field in model.model_fields.items()
    }


def facts_by_field(model: type[BaseModel]) -> Iterator[tuple[str, Facts]]:
    """Yield each field's name with its facts, in the order of files."""
    return ((name, entry.facts) for name, entry in declared(model).items())


def spread_fields(model: type[BaseModel]) -> dict[str, Axis]:
    """Return the fields that take one value for a whole list, with what the list counts."""
    return {name: facts.axis for name, facts in facts_by_field(model) if facts.spreads}


def fields_in(model: type[BaseModel], unit: Unit) -> tuple[str, ...]:
    """Return the names of the fields whose values count ``unit``."""
    return tuple(name for name, facts in facts_by_field(model) if facts.unit is unit)


def flags_by_field(model: type[BaseModel]) -> dict[str, Flag]:
    """Return the flags that set fields, by field."""
    return {name: facts.flag for name, facts in facts_by_field(model) if facts.flag is not None}


def fields_in_use(instance: BaseModel) -> frozenset[str]:
    """Return the names of the fields of an instance that say something beyond their default.

    A label says nothing to whoever solves, so it is never among them. A required field always is, unless it declares
    which of its values say nothing. In doubt a field is in use: an argument that does not understand it must be silent.
    """
    return frozenset(name for name, entry in declared(type(instance)).items() if _is_in_use(instance, name, entry))


def _is_in_use(instance: BaseModel, name: str, entry: Declared) -> bool:
    if entry.facts.is_label:
        return False
    value = getattr(instance, name)
    if not entry.is_required and value == entry.default:
        return False
    return entry.facts.is_absent is None or not entry.facts.is_absent(instance, value)


def not_stated_by(instance: BaseModel, model: ReferenceModel) -> list[str]:
    """Return the fields in use that a reference model does not state, in the order of files."""
    in_use = fields_in_use(instance)
    return [
        name
        for name, facts in facts_by_field(type(instance))
        if name in in_use and not facts.is_label and model not in facts.stated_by
    ]


def is_nothing(instance: Any, values: Any) -> bool:
    """Return whether no value of a list is there, or each is zero: a list of amounts that says nothing."""
    return values is None or not any(values)
