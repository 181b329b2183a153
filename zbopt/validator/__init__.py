"""What a schedule gets wrong, told by rules written down here a second time, from models/formulation.md alone.

Imports the two data types and nothing else, so that no helper shared with a solver can be wrong for both.
"""

from zbopt.validator.check import validate
from zbopt.validator.verdict import Code, Verdict, Violation

__all__ = ["Code", "Verdict", "Violation", "validate"]
