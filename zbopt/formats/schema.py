"""The JSON Schemas of instance and schedule files, from the models that read them. Published in ``docs/schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zbopt.problem.facts import declared, spread_fields
from zbopt.problem.instance import Instance
from zbopt.problem.schedule import Schedule

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the two schemas by name, ``instance`` and ``schedule``; draft 2020-12.

    They say what a file may hold, field by field. What fields say together (lengths of lists, which times go with
    which) only the reader checks.
    """
    instance = _as_written(Instance.model_json_schema())
    schedule = Schedule.model_json_schema()
    schedule["$defs"]["Instance"] = _as_written(schedule["$defs"]["Instance"])
    named = {"instance": instance, "schedule": schedule}
    return {name: {"$schema": _DRAFT, "title": f"zbopt {name}, version 1"} | _untitled(s) for name, s in named.items()}


def _as_written(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an instance's schema with what only files may do: give one value for a list, or leave out a field."""
    spread = spread_fields(Instance)
    properties = {name: _or_one(value) if name in spread else value for name, value in schema["properties"].items()}
    fields = declared(Instance)
    required = [name for name in schema["required"] if fields[name].facts.filled is None]
    return schema | {"properties": properties, "required": required}


def _or_one(value: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list field that also takes one of its items, for all."""
    choices = value.get("anyOf", [value])
    lists = [choice for choice in choices if choice.get("type") == "array"]
    if not lists:
        return value
    described = {key: text for key, text in value.items() if key in ("description", "default")}
    plain = [{k: v for k, v in choice.items() if k in ("type", "items")} for choice in choices]
    return {"anyOf": [*plain, lists[0]["items"]]} | described


def _untitled(node: Any) -> Any:
    """Return the schema without pydantic's titles, which only repeat names."""
    if isinstance(node, list):
        return [_untitled(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {key: _untitled(part) for key, part in node.items() if not (key == "title" and isinstance(part, str))}


def write_schemas(folder: Path | str) -> None:
    """Write ``instance.schema.json`` and ``schedule.schema.json`` into ``folder``."""
    for name, schema in json_schemas().items():
        Path(folder, f"{name}.schema.json").write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
