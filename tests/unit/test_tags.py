"""Tags that the code cites are those that models/formulation.md defines."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CITED = re.compile(r"\[((?:[MCODT]\d+)(?:, [MCODT]\d+)*)\]")
DEFINED = re.compile(r"^(?:\*\*|### )\[([MCODT]\d+)\]", re.MULTILINE)


def cited(folder: str, suffix: str) -> set[str]:
    texts = [path.read_text(encoding="utf-8") for path in (REPOSITORY / folder).rglob(f"*{suffix}")]
    return {tag for text in texts for group in CITED.findall(text) for tag in group.split(", ")}


def test_every_cited_tag_is_defined_once() -> None:
    """A docstring that cites a tag which the text does not define proves nothing."""
    defined = DEFINED.findall((REPOSITORY / "models" / "formulation.md").read_text(encoding="utf-8"))
    assert len(defined) == len(set(defined))
    code = cited("zbopt", ".py") | cited("models", ".mzn")
    assert {"M1", "C2", "O1", "D1"} <= code
    assert code - set(defined) == set()


def test_minizinc_states_every_rule_of_the_problem() -> None:
    """All of [M..], [C..] and [O..] stand in pipeline.mzn; [T..] are refused when its data is written."""
    text = (REPOSITORY / "models" / "formulation.md").read_text(encoding="utf-8")
    rules = {tag for tag in DEFINED.findall(text) if tag[0] not in "DT"}
    assert rules - cited("models", ".mzn") == set()
