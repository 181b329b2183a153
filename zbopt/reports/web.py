"""Browser page of schedules, self-contained: charts to zoom, figures with denominators, causes of idle time.

The page is ``page.html`` with ``page.css`` and ``page.js`` put in; it loads nothing from anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from importlib.resources import files
from string import Template
from typing import Any

from zbopt.analysis.idle import Avoidable, Explanation, explain
from zbopt.analysis.lanes import extent, kinds_of, lanes_of
from zbopt.analysis.metrics import Figures, figures
from zbopt.costs.times import tick_name, tick_ns, unit_of
from zbopt.problem.bound import Bound
from zbopt.problem.instance import Instance
from zbopt.problem.numbers import counted
from zbopt.problem.schedule import Schedule
from zbopt.reports.chart_data import CAUSES, KINDS, chart_data, common_tick
from zbopt.reports.colours import COLOURS, NAMES, SIGNS
from zbopt.reports.page import asked_rows, distance_rows, unit_of_memory
from zbopt.reports.safe_text import printable
from zbopt.reports.words import amount_text, percent, runs_text, size_text, ticks_text

_MOST_VIOLATIONS = 20
"""Violations that the page lists. Not measured; chosen so that a broken schedule does not hide the charts below."""
_MOST_STAGES = 64
"""Of more stages, the table of causes has only the sum. Not measured; chosen as in the terminal's chart."""


def _escape(text: str) -> str:
    """Return text from a file or of ours as HTML, safe to show."""
    return escape_html(printable(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Hold a schedule for the page: its name, its violations, and the best known bound (``None``: none is known)."""

    name: str
    schedule: Schedule
    violations: tuple[tuple[str, str], ...] = ()
    bound: Bound | None = None


def web_page(entries: Sequence[Entry]) -> str:
    """Return the page of ``entries``, all on one time axis, as HTML.

    Raises:
        ValueError: There is nothing to show, or the times have no common unit.
    """
    for entry in entries:
        if not any(entry.schedule.by_stage()):
            raise ValueError(f"{entry.name}: has no event on a stage; give a schedule that runs something")
    tick, factors = common_tick([(entry.name, entry.schedule.instance.tick) for entry in entries])
    explained = [(entry, explain(entry.schedule), figures(entry.schedule)) for entry in entries]
    folder = files("zbopt.reports")
    data = json.dumps(_page_data(explained, tick, factors), separators=(",", ":"), allow_nan=False)
    return Template((folder / "page.html").read_text(encoding="utf-8")).substitute(
        title=_escape(_title(entries)),
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script=(folder / "page.js").read_text(encoding="utf-8"),
        legend="".join(_legend([e.schedule for e in entries])),
        comparison="".join(_comparison(explained)) if len(entries) > 1 else "",
        sections="".join("".join(_section(i, *found)) for i, found in enumerate(explained)),
        data=data.replace("</", "<\\/"),
    )


def _page_data(explained: Sequence[_Explained], tick: str, factors: Sequence[int]) -> dict[str, Any]:
    """Return what the page's script draws from: the common axis, and each schedule, ``factors`` of its ticks a tick."""
    ends = [[t * f for t in extent(entry.schedule)] for (entry, *_), f in zip(explained, factors, strict=True)]
    unit, per_tick = unit_of(max(end for _, end in ends), "unit" if tick == "unit" else tick_name(tick_ns(tick)))
    return {
        "unit": unit,
        "perTick": float(per_tick),
        "from": min(start for start, _ in ends),
        "to": max(end for _, end in ends),
        "kinds": KINDS,
        "causes": [{"name": cause.value, "text": text} for cause, text in CAUSES.items()],
        "schedules": [chart_data(why, known, f) for (_, why, known), f in zip(explained, factors, strict=True)],
    }


def _title(entries: Sequence[Entry]) -> str:
    return f"zbopt: {entries[0].name}" if len(entries) == 1 else f"zbopt: {len(entries)} schedules"


def _legend(schedules: Sequence[Schedule]) -> Iterator[str]:
    used = {kind for schedule in schedules for kind in kinds_of(lanes_of(schedule))}
    for number, kind in enumerate(COLOURS):
        if kind in used:
            sign = "" if SIGNS[kind] == kind.value else f" ({_escape(SIGNS[kind])})"
            yield f'<li><i data-kind="{number}"></i>{kind.value}{sign} {_escape(NAMES[kind])}</li>'
    yield '<li><i class="idle"></i>idle</li>'
    if any(s.instance.overlapped_ticks for s in schedules):
        yield "<li>an F above a BW: both as one op</li>"
    if any(s.instance.collectives for s in schedules):
        yield "<li>an op in the lane of a port: the time in which its collective has the port</li>"
    if any(len(s.instance.stage_of) > s.instance.stages for s in schedules):
        yield "<li>one line below an op: the second virtual stage of its stage; two: the third; three: later ones</li>"


_Explained = tuple[Entry, Explanation, Figures]


def _comparison(explained: Sequence[_Explained]) -> Iterator[str]:
    """Yield the table of figures, a table row for each schedule."""
    yield '<h2>Side by side</h2><div class="table"><table><thead><tr><th class="text">schedule</th><th>makespan</th>'
    yield "<th>largest stage span</th><th>idle, of stages x makespan</th><th>idle, of stages x span</th>"
    yield '<th>largest peak memory</th><th class="text">valid</th></tr></thead><tbody>'
    for entry, _, known in explained:
        cells = [
            ticks_text(known.makespan, entry.schedule.instance.tick),
            ticks_text(known.max_stage_span, entry.schedule.instance.tick),
            percent(known.bubble_over_makespan),
            percent(known.bubble_over_stage_span),
            amount_text(max(known.peak_memory)) + unit_of_memory(entry.schedule.instance),
        ]
        yield f'<tr><td class="text">{_escape(entry.name)}</td>' + "".join(f"<td>{_escape(c)}</td>" for c in cells)
        yield f'<td class="text">{"yes" if not entry.violations else "no"}</td></tr>'
    yield "</tbody></table></div>"


def _section(number: int, entry: Entry, why: Explanation, known: Figures) -> Iterator[str]:
    instance = entry.schedule.instance
    yield f'<section aria-labelledby="name-{number}"><h2 id="name-{number}">{_escape(entry.name)}</h2>'
    yield from _violations(entry)
    yield "<dl>"
    for label, text in _rows(entry, why, known):
        yield f"<div><dt>{_escape(label)}</dt><dd>{_escape(text)}</dd></div>"
    yield "</dl><h3>Schedule<span class='wide'>; to the right each stage's idle share of the makespan</span></h3>"
    yield _canvas("gantt", number, f"Gantt chart of {entry.name}: {counted(instance.stages, 'stage')}")
    yield f"<h3>{_memory_title(instance)}</h3>"
    yield _canvas("memory", number, f"Live memory by stage of {entry.name}")
    yield from _ledger(number, instance.stages)
    yield from _causes(why, known)
    yield "</section>"


def _violations(entry: Entry) -> Iterator[str]:
    if not entry.violations:
        return
    count = len(entry.violations)
    yield f'<p class="alarm">Not a valid schedule: {counted(count, "violation")}.</p><ul>'
    for code, message in entry.violations[:_MOST_VIOLATIONS]:
        yield f"<li>{_escape(code)}: {_escape(message)}</li>"
    yield "</ul>" + (f"<p>and {count - _MOST_VIOLATIONS} more</p>" if count > _MOST_VIOLATIONS else "")


def _rows(entry: Entry, why: Explanation, known: Figures) -> Iterator[tuple[str, str]]:
    instance = entry.schedule.instance
    yield "pipeline", size_text(instance)
    yield from asked_rows(instance)
    yield "makespan", ticks_text(known.makespan, instance.tick)
    yield "largest stage span", ticks_text(known.max_stage_span, instance.tick)
    busy = sum(known.busy_ticks)
    for name, ticks in (("makespan", known.makespan), ("largest stage span", known.max_stage_span)):
        whole = ticks * instance.stages
        yield (
            f"idle, of the {name}",
            f"{percent(_share(whole - busy, whole))}: {whole - busy} of {instance.stages} x {ticks} ticks",
        )
    yield "peak memory", f"{runs_text(known.peak_memory)}{unit_of_memory(instance)} by stage"
    if entry.bound is not None:
        yield from distance_rows(instance, known.value(instance.objective), entry.bound)
    yield "found by", entry.schedule.provenance.source
    if entry.bound is None or entry.bound.value < known.value(instance.objective):
        avoidable = why.avoidable()
        yield "first idle time in reach", "none" if avoidable is None else _avoidable_text(avoidable)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _avoidable_text(found: Avoidable) -> str:
    idle = found.idle
    how = f"if {found.op.id} were split into B and W" if found.by_split else f"{found.op.id} could run there"
    return f"stage {idle.stage}, {found.usable_from} to {idle.end} ({counted(found.ticks, 'tick')}): {how}"


def _memory_title(instance: Instance) -> str:
    unit = unit_of_memory(instance)
    title = "Live memory by stage" + (f", in{unit}" if unit else "")
    return title + ("" if instance.memory_cap is None else "; the broken line is the cap")


def _canvas(name: str, number: int, label: str) -> str:
    said = _escape(f"{label}; arrow keys move, plus and minus zoom, n and p go from op to op")
    role = f'tabindex="0" role="application" aria-roledescription="chart" aria-label="{said}"'
    return f'<div><canvas id="{name}-{number}" {role}></canvas></div>'


def _ledger(number: int, stages: int) -> Iterator[str]:
    yield f'<details class="ledger" id="ledger-{number}"><summary>Ledger: what takes memory and gives it back</summary>'
    yield "<label>Stage <select>" + "".join(f'<option value="{s}">{s}</option>' for s in range(stages))
    yield '</select></label><p class="soft"></p><div class="table"><table><thead><tr><th>tick</th>'
    yield '<th class="text">op</th><th>change</th><th>live after it</th></tr></thead>'
    yield "<tbody></tbody></table></div></details>"


def _causes(why: Explanation, known: Figures) -> Iterator[str]:
    """Yield the table of idle ticks by stage and cause, each table row with its share of the makespan."""
    total = why.by_cause()
    causes = [cause for cause in CAUSES if total[cause]]
    by_stage = why.by_stage()
    yield "<h3>Why stages were idle</h3>"
    if not causes:
        yield "<p>No stage was ever idle.</p>"
        return
    yield '<div class="table"><table><thead><tr><th>stage</th>' + "".join(f"<th>{c.value}</th>" for c in causes)
    yield "<th>idle ticks</th><th>of the makespan</th></tr></thead><tbody>"
    rows = [(str(stage), row, known.makespan) for stage, row in enumerate(by_stage)]
    shown = rows if len(rows) <= _MOST_STAGES else []
    for name, row, whole in [*shown, ("all", total, known.makespan * len(rows))]:
        idle = sum(row.values())
        cells = [*(str(row[cause]) for cause in causes), str(idle), percent(_share(idle, whole))]
        yield f"<tr><td>{name}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></div><dl>"
    yield from (f"<div><dt>{cause.value}</dt><dd>{_escape(CAUSES[cause])}</dd></div>" for cause in causes)
    yield "</dl>"
