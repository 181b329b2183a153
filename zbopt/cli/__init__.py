"""The command line: one verb for each step. Results go to stdout, progress and errors to stderr.

Exit codes: 0; 1 for an infeasible instance or an invalid schedule; 2 for a call that could not be done; 130 where
Ctrl-C or SIGTERM came before there was anything to show.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Annotated

import typer

from zbopt.cli import out
from zbopt.cli.ctrl_c import pressed_once
from zbopt.cli.options import switch
from zbopt.problem.schedule import versions

WRONG_CALL = 2
INTERRUPTED = 130

VERBS: Mapping[str, str] = MappingProxyType(
    {
        "solve": "zbopt.cli.solve:solve_command",
        "compare": "zbopt.cli.compare:compare_command",
        "validate": "zbopt.cli.check:validate_command",
        "show": "zbopt.cli.check:show_command",
        "ledger": "zbopt.cli.why:ledger_command",
        "explain": "zbopt.cli.why:explain_command",
        "import": "zbopt.cli.importing:import_command",
        "export": "zbopt.cli.export:export_command",
        "report": "zbopt.cli.picture:report_command",
        "plot": "zbopt.cli.picture:plot_command",
        "bench": "zbopt.cli.bench:bench_command",
        "replay": "zbopt.cli.replay:replay_command",
        "prove": "zbopt.cli.replay:prove_command",
        "qualify": "zbopt.cli.qualify:qualify_command",
        "diff": "zbopt.cli.replay:diff_command",
        "profile": "zbopt.cli.profile:profile_command",
    }
)
"""Every command, and where its function is. A call loads its own command only: loading all takes a third of a start."""


def app_of(verbs: Iterable[str]) -> typer.Typer:
    """Build the command line with these commands."""
    help_flags = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(
        name="zbopt", rich_markup_mode="rich", pretty_exceptions_enable=False, context_settings=help_flags
    )
    app.callback(invoke_without_command=True)(_zbopt)
    for verb in verbs:
        module, name = VERBS[verb].split(":")
        command = getattr(import_module(module), name)
        app.command(verb, help=_flowing(command.__doc__ or ""))(command)
    return app


def _flowing(text: str) -> str:
    """Join the lines of each paragraph: the terminal breaks lines at its own width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _print_versions(wanted: bool) -> None:
    if wanted:
        out.page([", ".join(f"{name} {version}" for name, version in versions().items())])
        raise typer.Exit


def _zbopt(
    context: typer.Context,
    version: Annotated[
        bool, switch("--version", "Show versions and exit.", callback=_print_versions, is_eager=True)
    ] = False,
) -> None:
    """Find pipeline-parallel training schedules that take as little time as memory allows, and prove it."""
    if context.invoked_subcommand is None:
        out.page(context.get_help().splitlines())


def main(loaded: Callable[[], None] = lambda: None) -> None:
    """Run the command line of this process, and end the process.

    Args:
        loaded: Called when everything that the call needs is imported.
    """
    stdout_open = out.open_missing_streams()
    logging.basicConfig(level=logging.ERROR, format="zbopt: %(message)s")
    gc.freeze()  # objects of imported modules stay until the end: collecting among them is lost time
    gc.set_threshold(100_000)  # a schedule has many small objects and hardly any garbage; not measured beyond that
    code = run(sys.argv[1:], loaded)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # everything is printed: Ctrl-C must not change the exit code now
    if not stdout_open and code != WRONG_CALL:
        out.say("zbopt: standard output is closed, so the result was not printed; open it, or use -o")
        code = WRONG_CALL
    sys.exit(code)


def run(arguments: Sequence[str], loaded: Callable[[], None] = lambda: None) -> int:
    """Run one call and return its exit code. Whatever goes wrong becomes one line on stderr.

    Args:
        arguments: The words of the call after ``zbopt``.
        loaded: Called when everything that the call needs is imported.
    """
    verbs = arguments[:1] if arguments and arguments[0] in VERBS else VERBS
    try:
        command = typer.main.get_command(app_of(verbs))
        loaded()
        with pressed_once():
            code = command.main(list(arguments), prog_name="zbopt", standalone_mode=False)
        if code != INTERRUPTED:  # typer turns a KeyboardInterrupt into this code
            return int(code or 0)
        raise KeyboardInterrupt
    except SystemExit:  # typer's answer when the reader of the help has closed the pipe, which is no fault
        out.abandon_stdout()
        return 0
    except (KeyboardInterrupt, typer.Abort):
        out.say("zbopt: interrupted before there was a result")
        return INTERRUPTED
    except OSError as error:
        out.say(_file_fault(error))
    except Exception as error:
        if os.environ.get("ZBOPT_DEBUG"):
            raise
        out.say(_fault(error, arguments))
    return WRONG_CALL


def _file_fault(error: OSError) -> str:
    """Say in one line which file could not be read or written, and why."""
    if error.filename is None:  # only writes to standard output have no name: all files are written by atomic.py
        out.abandon_stdout()
        return f"zbopt: standard output: {error.strerror or error}; nothing more was written"
    return f"zbopt: {error.filename}: {(error.strerror or str(error)).lower()}; the file is as it was before"


def _fault(error: Exception, arguments: Sequence[str]) -> str:
    """Say in one line what went wrong: a wrong call, a refused input, or a fault of zbopt."""
    if hasattr(error, "format_message"):  # a usage error of typer, whose base class is not public
        command = next((a for a in arguments if a in VERBS), "")
        message = error.format_message().rstrip(".").replace("Value error, ", "")
        return f"zbopt: {message}; see zbopt {command + ' ' if command else ''}--help"
    if isinstance(error, ValueError):
        return f"zbopt: {error}"
    fault = f"{type(error).__name__}: {error}"
    return f"zbopt: a fault of zbopt itself: {fault}; set ZBOPT_DEBUG=1 to see where, and report it"
