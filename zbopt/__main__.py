"""``python -m zbopt``: the same as ``zbopt``."""

from zbopt.cli import main

if __name__ == "__main__":
    main()
