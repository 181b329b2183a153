"""Draw the picture of the README again: ``python docs/pictures/make.py``."""

from pathlib import Path

import zbopt

STEP = zbopt.instance(
    stages=4, microbatches=8, forward="10ms", backward="11ms", weight="8ms", comm="0.5ms", memory_cap=4
)


def main() -> None:
    """Draw 1F1B above the optimum of the same step."""
    named = {
        "1F1B: 327 ms": zbopt.heuristics.one_f_one_b(STEP),
        "zbopt: 277 ms, proved optimal, in the same memory": zbopt.solve(STEP),
    }
    zbopt.plot(named, Path(__file__).with_name("optimum-beside-1f1b.svg"), width_inches=9)


if __name__ == "__main__":
    main()
