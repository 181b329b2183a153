"""The code blocks of the documentation's pages, and how they run, for tests only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FRAMEWORKS = {"torch", "torchtitan", "jaxpp", "sail"}
"""Names of frameworks that a block may need. Such a block is not run."""


@dataclass(frozen=True)
class Block:
    """Represent a fenced block: its language, the framework that it needs (``None``: none), its text."""

    language: str
    needs: str | None
    text: str


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    for match in re.finditer(r"^```(\w*)(?: needs-(\w+))?\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        yield Block(match[1], match[2], match[3])


def run_page(page: Path, folder: Path) -> int:
    """Run all blocks of a page, in order, in one folder, and count them. A block prints the text that follows it."""
    printed, ran = "", 0
    for block in blocks_of(page):
        assert block.needs is None or block.needs in FRAMEWORKS, block.needs
        if block.needs is not None:
            assert block.language != "python" or compile(block.text, page.name, "exec")
        elif block.language in ("sh", "python"):
            printed = run_block(block, folder)
            ran += 1
        else:
            assert block.language == "text", f"{page.name}: a block without language is neither run nor compared"
            missing = [line for line in block.text.splitlines() if line.rstrip() not in printed.splitlines()]
            assert missing == []
    return ran


def run_block(block: Block, folder: Path) -> str:
    """Run a block and return what it prints on stdout. Its exit code has to be 0."""
    command = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [sys.executable, "-c"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "80", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [*command, block.text], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
    return done.stdout
