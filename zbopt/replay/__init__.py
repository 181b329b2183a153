"""Runs a schedule on PyTorch's own pipeline engine, measures it, and proves that it computes the same update.

Nothing here imports torch until a command runs; the modules that do are named in ``docs/replay.md``.
"""
