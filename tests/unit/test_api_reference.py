"""The documentation builds without a warning, and its API reference has every public name."""

import re
import subprocess
import sys
from pathlib import Path

import zbopt

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"


def test_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    """A docstring or page that Sphinx does not understand ends the build, and every page is in the navigation."""
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q", "-d", str(tmp_path / "cache")]
    done = subprocess.run(
        [*command, "-b", "html", str(DOCS), str(tmp_path / "html")], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "api" / "index.html").read_text()
    documented = set(re.findall(r'id="zbopt\.(\w+)"', page)) | {"heuristics"}
    assert set(zbopt.__all__) <= documented
