"""Run a schedule on PyTorch's own pipeline runtime, measure it, and prove that it computes the same update.

Importing this package loads no torch. ``docs/replay.md`` names the modules that do load it.
"""
