"""zbopt: proved optimal schedules for pipeline-parallel training."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zbopt import heuristics
    from zbopt.portfolio.result import Result
    from zbopt.portfolio.run import solve
    from zbopt.problem.instance import Barrier, Instance, Kind, Objective, read_instance
    from zbopt.problem.schedule import Event, Schedule, Status, read_schedule, write_schedule
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
    "Barrier": "problem.instance",
    "Event": "problem.schedule",
    "Instance": "problem.instance",
    "Kind": "problem.instance",
    "Objective": "problem.instance",
    "Result": "portfolio.result",
    "Schedule": "problem.schedule",
    "Status": "problem.schedule",
    "read_instance": "problem.instance",
    "read_schedule": "problem.schedule",
    "solve": "portfolio.run",
    "validate": "validator",
    "write_schedule": "problem.schedule",
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
