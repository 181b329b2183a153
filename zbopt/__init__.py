"""zbopt: proved optimal schedules for pipeline-parallel training."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zbopt import heuristics
    from zbopt.instance import Barrier, Instance, Kind, Objective, read_instance
    from zbopt.portfolio import solve
    from zbopt.result import Result
    from zbopt.schedule import Event, Schedule, Status, read_schedule, write_schedule
    from zbopt.validator import validate

__all__ = [
    "Barrier",
    "Event",
    "Instance",
    "Kind",
    "Objective",
    "Result",
    "Schedule",
    "Status",
    "heuristics",
    "read_instance",
    "read_schedule",
    "solve",
    "validate",
    "write_schedule",
]

_HOME = {
    "Barrier": "instance",
    "Event": "schedule",
    "Instance": "instance",
    "Kind": "instance",
    "Objective": "instance",
    "Result": "result",
    "Schedule": "schedule",
    "Status": "schedule",
    "read_instance": "instance",
    "read_schedule": "schedule",
    "solve": "portfolio",
    "validate": "validator",
    "write_schedule": "schedule",
}
"""Where each public name is. It is loaded when it is asked for: an engine's process needs few of them."""


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"zbopt.{_HOME[name]}"), name)
    elif name == "heuristics":
        value = import_module("zbopt.heuristics")
    else:
        raise AttributeError(f"module 'zbopt' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
