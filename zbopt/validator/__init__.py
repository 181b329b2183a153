"""Validator of schedules. It states the rules of models/formulation.md a second time, apart from the solvers.

It imports the data types of ``zbopt.problem`` and nothing else of ours, so that a mistake in a helper of the solvers
cannot hide the same mistake here.
"""

from zbopt.validator.check import validate
from zbopt.validator.verdict import Code, Verdict, Violation

__all__ = ["Code", "Verdict", "Violation", "validate"]
