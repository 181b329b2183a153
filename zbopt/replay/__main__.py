"""Entry point of ``torchrun -m zbopt.replay SCHEDULE``, one process of a run; ``python -m`` starts all of them."""

from __future__ import annotations

import sys

from zbopt.cli import run

if __name__ == "__main__":
    sys.exit(run(["replay", *sys.argv[1:]]))
