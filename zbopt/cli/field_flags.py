"""Flags that set fields of an instance, made from what each field declares, and the values that they stand for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from zbopt.cli.options import flag_maker, whole
from zbopt.problem.facts import Axis, Facts, Flag, Panel, Unit, facts_by_field, flags_by_field
from zbopt.problem.instance import Instance

_AMOUNTS = {Unit.TICKS: "TIME", Unit.MEMORY: "AMOUNT", Unit.MEMORY_PER_TICK: "AMOUNT", Unit.SHARE: "SHARE"}
"""How the help writes a value, by its unit."""


def field_parameters() -> Iterator[inspect.Parameter]:
    """Yield a command's parameter for each field that a flag sets, in the order of the panels of the help."""
    panels = list(Panel)
    offered = [(name, facts, facts.flag) for name, facts in facts_by_field(Instance) if facts.flag is not None]
    for name, facts, flag in sorted(offered, key=lambda entry: panels.index(entry[2].panel)):
        of_values = _type_of(name, facts)
        option = flag_maker(flag.panel.value)(
            flag.name,
            f"{flag.help} Sets {name}.",
            flag.default or False,
            _metavar(facts, flag, of_values),
            whole if of_values is int else None,
        )
        yield inspect.Parameter(
            flag.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[of_values | None, option],
        )


def _type_of(name: str, facts: Facts) -> Any:
    """Return the type of a flag's value: whole numbers and words of a single field, else text that is read later."""
    allowed = list(_leaves(Instance.model_fields[name].annotation))
    if facts.axis is not Axis.NONE or facts.unit is not Unit.NONE:
        return str
    words = next((leaf for leaf in allowed if isinstance(leaf, type) and issubclass(leaf, StrEnum)), None)
    if words is not None:
        return hyphenated(words)
    return int if set(allowed) <= {int, type(None)} else str


def hyphenated(words: type[StrEnum]) -> Any:
    """Return an enum's words with the hyphens of a command line in place of underscores."""
    return StrEnum(words.__name__, {word.name: word.value.replace("_", "-") for word in words})


def _leaves(annotation: Any) -> Iterator[Any]:
    """Yield the types and words that an annotation is made of."""
    if get_origin(annotation) is Annotated:
        yield from _leaves(get_args(annotation)[0])
    elif get_origin(annotation) is Literal or not get_args(annotation):
        yield from get_args(annotation) or (annotation,)
    else:
        for inner in get_args(annotation):
            yield from _leaves(inner)


def _metavar(facts: Facts, flag: Flag, of_values: Any) -> str | None:
    """Return how the help writes a flag's value; ``None``: it lists the words."""
    if flag.metavar is not None:
        return flag.metavar
    if facts.unit is Unit.NONE:
        return "N" if of_values is int else None
    if facts.axis is Axis.NONE:
        return _AMOUNTS[facts.unit]
    return _AMOUNTS[facts.unit] + (",..." if flag.is_list else "[,...]")


def time_texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the flags that are times, by flag."""
    flags, timed = flags_by_field(Instance), dict(facts_by_field(Instance))
    return {flags[name].parameter: text for name, text in given.items() if timed[name].unit is Unit.TICKS}


def fields_of_times(ticks: Mapping[str, tuple[int | None, ...]]) -> dict[str, object]:
    """Return the instance fields that times set.

    Args:
        ticks: The times by flag.

    Raises:
        ValueError: A flag that takes one time has several.
    """
    axis_of = {name: facts.axis for name, facts in facts_by_field(Instance)}
    fields: dict[str, object] = {}
    for name, flag in flags_by_field(Instance).items():
        values = ticks.get(flag.parameter)
        if values is not None:
            fields[name] = _single(flag, values) if axis_of[name] is Axis.NONE else _for_all(flag, values)
    return fields


def _single(flag: Flag, ticks: tuple[int | None, ...]) -> int:
    if len(ticks) != 1 or ticks[0] is None:
        holds = "every transfer" if flag.parameter in ("comm", "node_comm") else "the step"
        raise ValueError(f"{flag.name}: {len(ticks)} times; give one, it holds for {holds}")
    return ticks[0]


def _for_all(flag: Flag, values: tuple[Any, ...]) -> object:
    """Return the only value, which stands for all, or the list."""
    return values[0] if len(values) == 1 and values[0] is not None and not flag.is_list else list(values)


def fields_of_texts(given: Mapping[str, Any]) -> dict[str, object]:
    """Return the instance fields that flags set, times left out.

    Args:
        given: What each flag was given, by field.

    Raises:
        ValueError: A text that holds whole numbers holds something else.
    """
    return {
        name: _read(name, facts, facts.flag, given[name])
        for name, facts in facts_by_field(Instance)
        if facts.flag is not None and name in given and facts.unit is not Unit.TICKS
    }


def _read(name: str, facts: Facts, flag: Flag, given: Any) -> object:
    if isinstance(given, StrEnum):
        return given.value.replace("-", "_")
    if not isinstance(given, str):
        return given
    allowed = set(_leaves(Instance.model_fields[name].annotation))
    texts = [given] if facts.axis is Axis.NONE else [text.strip() for text in given.split(",")]
    if int in allowed:
        return _for_all(flag, tuple(text if text in allowed else _whole(flag, text) for text in texts))
    return _for_all(flag, tuple(texts))


def _whole(flag: Flag, text: str) -> int:
    try:
        return whole(text)
    except typer.BadParameter as error:
        raise ValueError(f"{flag.name}: {error.message}") from None
