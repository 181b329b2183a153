"""zbopt: proved optimal schedules for pipeline-parallel training."""

from zbopt.instance import Barrier, Instance, Kind, Objective, read_instance
from zbopt.result import Result
from zbopt.schedule import Event, Schedule, Status, read_schedule, write_schedule

__all__ = [
    "Barrier",
    "Event",
    "Instance",
    "Kind",
    "Objective",
    "Result",
    "Schedule",
    "Status",
    "read_instance",
    "read_schedule",
    "write_schedule",
]
