"""The solve: heuristics, bounds and engines together, and the validator between them and the result."""
