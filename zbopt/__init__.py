"""zbopt: proved optimal schedules for pipeline-parallel training.

Build an instance, solve it, and look at the result:

    >>> import zbopt
    >>> step = zbopt.instance(stages=4, microbatches=8, memory_cap=6)
    >>> result = zbopt.solve(step)
    >>> result.status.value, result.value
    ('optimal', 27)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zbopt import heuristics
    from zbopt.api.comparison import Comparison, ComparisonRow, compare
    from zbopt.api.figures import Metrics, StageMetrics, metrics
    from zbopt.api.files import export, import_, schedule, write
    from zbopt.api.instances import instance, placements
    from zbopt.api.pictures import plot, report
    from zbopt.portfolio.result import Result
    from zbopt.portfolio.run import solve
    from zbopt.problem.instance import Barrier, Instance, Kind, Objective, read_instance
    from zbopt.problem.schedule import Event, Schedule, Status, read_schedule, write_schedule
    from zbopt.validator import Verdict, Violation, validate

__all__ = [
    "Barrier",
    "Comparison",
    "ComparisonRow",
    "Event",
    "Instance",
    "Kind",
    "Metrics",
    "Objective",
    "Result",
    "Schedule",
    "StageMetrics",
    "Status",
    "Verdict",
    "Violation",
    "compare",
    "export",
    "heuristics",
    "import_",
    "instance",
    "metrics",
    "placements",
    "plot",
    "read_instance",
    "read_schedule",
    "report",
    "schedule",
    "solve",
    "validate",
    "write",
    "write_schedule",
]

_HOME = {
    "Barrier": "problem.instance",
    "Comparison": "api.comparison",
    "ComparisonRow": "api.comparison",
    "Event": "problem.schedule",
    "Instance": "problem.instance",
    "Kind": "problem.instance",
    "Metrics": "api.figures",
    "Objective": "problem.instance",
    "Result": "portfolio.result",
    "Schedule": "problem.schedule",
    "StageMetrics": "api.figures",
    "Status": "problem.schedule",
    "Verdict": "validator",
    "Violation": "validator",
    "compare": "api.comparison",
    "export": "api.files",
    "import_": "api.files",
    "instance": "api.instances",
    "metrics": "api.figures",
    "placements": "api.instances",
    "plot": "api.pictures",
    "read_instance": "problem.instance",
    "read_schedule": "problem.schedule",
    "report": "api.pictures",
    "schedule": "api.files",
    "solve": "portfolio.run",
    "validate": "validator",
    "write": "api.files",
    "write_schedule": "problem.schedule",
}
"""The module of each public name. It is loaded when it is asked for: an engine's process needs few of them."""


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
