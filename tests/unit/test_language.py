"""The words of the code: docstrings that can be read alone, and one meaning for each name."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("zbopt", "tests", "bench", "instances")
OPENINGS = ("What ", "The same", "Whether ", "How ")
"""A docstring that begins so says nothing on its own: its subject stands somewhere else, or nowhere."""


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield each Python file below ``folders`` as its path in the repository and its syntax tree."""
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            yield str(path.relative_to(REPOSITORY)), ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_name_their_subject(folder: str) -> None:
    """No docstring begins with a word that only points at something else."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path}: {text.splitlines()[0]}"
        for path, tree in modules(folder)
        for node in ast.walk(tree)
        if isinstance(node, kinds) and (text := ast.get_docstring(node) or "").startswith(OPENINGS)
    ]
    assert found == []


def test_a_class_has_its_name_alone() -> None:
    """No two classes of the package share a name, a leading underscore aside."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in modules("zbopt"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(path)
    assert len(homes) > 100
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
