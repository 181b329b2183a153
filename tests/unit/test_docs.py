"""The documentation: its commands run and print what it says, its links lead somewhere, its schemas are true."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from pages import Block, run_block, run_page

from zbopt.cli import VERBS, app_of
from zbopt.formats.schema import json_schemas, write_schemas
from zbopt.problem.instance import read_document

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
ELSEWHERE = {"replay.md"}
"""Its commands need PyTorch: tests/replay/test_docs_page.py runs them."""
PAGES = sorted(path for path in DOCS.glob("*.md") if path.name not in ELSEWHERE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run_and_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    """All blocks of a page run, in order, in one empty folder. A text block is among what the block before printed."""
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), REPOSITORY / "README.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link without an address is a file of the repository."""
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_index_names_every_page() -> None:
    """No page is left out of the index."""
    index = (DOCS / "README.md").read_text()
    assert [path.name for path in DOCS.glob("*.md") if path.name != "README.md" and f"({path.name})" not in index] == []


def test_published_schemas_are_those_of_the_models(tmp_path: Path) -> None:
    """``docs/schema`` holds what the models generate; after a change of them, write it anew (docs/files.md)."""
    write_schemas(tmp_path)
    for name in ("instance", "schedule"):
        file = f"{name}.schema.json"
        assert (DOCS / "schema" / file).read_text() == (tmp_path / file).read_text()


def test_schemas_accept_the_files_of_the_repository() -> None:
    """Draft 2020-12 holds for the schemas; every instance of the sets, with its scalars for lists, keeps to its own."""
    schemas = json_schemas()
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    files = [path for path in (REPOSITORY / "instances").glob("*/*.json") if "events" not in path.name]
    assert len(files) > 50
    validator = jsonschema.Draft202012Validator(schemas["instance"])
    for file in files:
        assert list(validator.iter_errors(read_document(file))) == [], file


def test_schema_of_a_written_schedule(tmp_path: Path) -> None:
    """A file of ``solve -o`` is a schedule by its schema. With a field too many, or an unknown kind, it is none."""
    file = tmp_path / "schedule.json"
    run_block(Block("sh", None, f"zbopt solve --stages 2 --micro 2 --mem-limit 3/2 -o {file}"), tmp_path)
    validator = jsonschema.Draft202012Validator(json_schemas()["schedule"])
    document = json.loads(file.read_text())
    assert list(validator.iter_errors(document)) == []
    assert list(validator.iter_errors(document | {"more": 1}))
    assert list(validator.iter_errors(document | {"events": [document["events"][0] | {"kind": "X"}]}))


def test_every_command_has_help_with_an_example() -> None:
    """``--help`` of each verb shows at least one call of that verb."""
    commands = app_of(VERBS).registered_commands
    assert len(commands) > 10
    for command in commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        assert f"zbopt {name} " in (command.help or command.callback.__doc__ or ""), name
