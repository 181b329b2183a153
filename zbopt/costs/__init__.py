"""Costs: turns measured times and runtimes into the numbers of an instance."""
