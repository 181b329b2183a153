"""CP-SAT on the task graph: the formulation, its search, and the process that it runs in."""
