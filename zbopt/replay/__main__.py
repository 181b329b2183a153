"""``torchrun -m zbopt.replay SCHEDULE ...``: one process of a run; ``python -m zbopt.replay`` starts them itself."""

from __future__ import annotations

import sys

import typer

from zbopt.replay.commands import replay_command


def main() -> int:
    """Run ``zbopt replay`` with this process's arguments; a failure is one line on stderr and status 2."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(replay_command)
    try:
        return int(typer.main.get_command(app).main(sys.argv[1:], prog_name="zbopt.replay", standalone_mode=False) or 0)
    except ValueError as error:
        typer.echo(f"zbopt.replay: {error}", err=True)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
