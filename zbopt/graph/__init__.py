"""An instance as one task graph: tasks, exclusive resources, precedences, joins and memory residences.

Timing, bounds and CP-SAT read the graph, so that a new field of an instance needs a new expansion here and nothing
else. The validator does not read it: it derives every rule again. Tags refer to models/formulation.md.
"""

from __future__ import annotations

from zbopt.graph.expansion import expand
from zbopt.graph.model import (
    FUSED,
    SPLIT,
    Channel,
    Join,
    Key,
    Link,
    Option,
    Precedence,
    Residence,
    Sent,
    Task,
    TaskGraph,
    Use,
)

__all__ = [
    "FUSED",
    "SPLIT",
    "Channel",
    "Join",
    "Key",
    "Link",
    "Option",
    "Precedence",
    "Residence",
    "Sent",
    "Task",
    "TaskGraph",
    "Use",
    "expand",
]
