"""What the families of heuristics share: ops placed by a rule or by packing, repeated blocks, a check of the result."""
