"""CP-SAT on the task graph: the formulation, its search, and the process that runs it."""
