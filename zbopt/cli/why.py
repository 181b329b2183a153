"""Commands ``zbopt ledger``, memory over time, and ``zbopt explain``, causes of a schedule's length."""

from __future__ import annotations

from typing import Annotated

import typer

from zbopt.analysis.idle import explain
from zbopt.analysis.ledger import stage_ledgers
from zbopt.cli import out
from zbopt.cli.check import INVALID, CheckedFile, FileArgument, read_checked
from zbopt.cli.flags import JsonFlag
from zbopt.reports.explain import explain_page, explain_record
from zbopt.reports.ledger import ledger_page, ledger_record

StageFlag = Annotated[
    int | None,
    typer.Option(
        "--stage", metavar="N", help="Show only this stage, with the life of every tensor.", show_default=False
    ),
]


def ledger_command(file: FileArgument, stage: StageFlag = None, json: JsonFlag = False) -> int:
    """Show the memory of each stage over time: the life of every tensor, the curve, the peak and what makes it up.

    Example: zbopt ledger schedule.json

    One stage in full: zbopt ledger schedule.json --stage 0
    """
    checked = read_checked(file)
    ledgers = stage_ledgers(checked.schedule)
    if stage is not None:
        if not 0 <= stage < len(ledgers):
            raise ValueError(f"--stage {stage}: there is no such stage; give 0 to {len(ledgers) - 1}")
        ledgers = ledgers[stage : stage + 1]
    instance = checked.schedule.instance
    if json:
        out.record(ledger_record(instance, ledgers))
    else:
        out.page(ledger_page(instance, ledgers, whole=stage is not None))
    return _code(checked)


def explain_command(file: FileArgument, json: JsonFlag = False) -> int:
    """Say why a schedule takes as long as it does: what its stages wait for, the critical path, the first bubble.

    Example: zbopt explain schedule.json
    """
    checked = read_checked(file)
    explained = explain(checked.schedule)
    if json:
        out.record(explain_record(explained))
    else:
        out.page(explain_page(explained, out.width()))
    return _code(checked)


def _code(checked: CheckedFile) -> int:
    if checked.valid:
        return 0
    out.say(f"zbopt: {checked.file} is not a valid schedule; see zbopt validate {checked.file}")
    return INVALID
