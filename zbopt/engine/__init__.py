"""Engines, each in a process of its own: what the parent asks, what an engine models, and the watch over it."""
