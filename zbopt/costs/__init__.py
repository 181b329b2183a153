"""Measured costs -> the numbers of an instance."""
