"""zbopt: proved optimal schedules for pipeline-parallel training."""

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
