"""Memory ledger as lines of text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zbopt.analysis.ledger import Life, StageLedger
from zbopt.costs.times import time_text
from zbopt.problem.instance import Instance, number
from zbopt.reports.memory import given_unit
from zbopt.reports.record import Record
from zbopt.reports.words import amount_text, table

_HEADS = ("tensor", "of", "amount", "from", "to", "taken by", "freed by")


def ledger_page(instance: Instance, ledgers: Sequence[StageLedger], *, whole: bool) -> Iterator[str]:
    """Yield each stage's peak and the tensors live then; with ``whole`` also every tensor's life and the curve."""
    for ledger in ledgers:
        yield _title(instance, ledger)
        yield from _lives("who holds it", ledger.holders, instance)
        if whole:
            yield from _lives("every life", ledger.lives, instance)
            yield "  live memory from each tick on:"
            steps = [f"{time}: {amount_text(amount)}" for time, amount in ledger.curve]
            yield from (f"    {', '.join(steps[i : i + 8])}" for i in range(0, len(steps), 8))
        yield ""


def _title(instance: Instance, ledger: StageLedger) -> str:
    cap = "" if instance.memory_cap is None else f" of {amount_text(instance.memory_cap[ledger.stage])}"
    when = "" if ledger.peak_at is None else f" from tick {ledger.peak_at}"
    time = time_text(ledger.peak_at, instance.tick) if ledger.peak_at else ""
    when += f" ({time})" if time else ""
    return f"stage {ledger.stage}: peak {amount_text(ledger.peak)}{cap}{given_unit(instance)}{when}"


def _lives(title: str, lives: Sequence[Life], instance: Instance) -> Iterator[str]:
    yield f"  {title}:"
    rows = [_HEADS, *(_row(life, instance.iterations > 1) for life in lives)]
    yield from (f"    {line}" for line in table(rows))


def _row(life: Life, named: bool) -> tuple[str, ...]:
    taken, freed = life.taken_by, life.freed_by
    iteration = f"it{taken.iteration}/" if taken is not None and named else ""
    of = "the stage" if taken is None else f"{iteration}v{taken.virtual_stage}/mb{taken.microbatch}"
    until = "the end" if life.end is None else str(life.end)
    begins = "the start" if taken is None else str(life.begin)
    names = ("-" if event is None else event.kind.value for event in (taken, freed))
    return (life.tensor.value, of, amount_text(life.amount), begins, until, *names)


def ledger_record(instance: Instance, ledgers: Sequence[StageLedger]) -> Record:
    """Return the record that ``zbopt ledger --json`` prints."""
    return {
        "unit": instance.memory_unit,
        "stages": [
            {
                "stage": ledger.stage,
                "cap": None if instance.memory_cap is None else number(instance.memory_cap[ledger.stage]),
                "peak": number(ledger.peak),
                "peak_at": ledger.peak_at,
                "holders": [_record(life) for life in ledger.holders],
                "lives": [_record(life) for life in ledger.lives],
                "curve": [[time, number(amount)] for time, amount in ledger.curve],
            }
            for ledger in ledgers
        ],
    }


def _record(life: Life) -> Record:
    taken, freed = life.taken_by, life.freed_by
    return {
        "tensor": life.tensor.value,
        "virtual_stage": None if taken is None else taken.virtual_stage,
        "microbatch": None if taken is None else taken.microbatch,
        "amount": number(life.amount),
        "from": None if taken is None else life.begin,
        "to": life.end,
        "taken_by": None if taken is None else taken.id,
        "freed_by": None if freed is None else freed.id,
    }
