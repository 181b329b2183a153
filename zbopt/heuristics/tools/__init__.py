"""Tools that families of heuristics share: dispatching by rules, packing, repeated blocks, and the check of results."""
