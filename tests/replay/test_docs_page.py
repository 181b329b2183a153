"""``docs/replay.md``: its commands run and print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import REPOSITORY, run_page

pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")


def test_blocks_run_and_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks, in order, in one empty folder; processes meet on this machine, with one thread each."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert run_page(REPOSITORY / "docs" / "replay.md", tmp_path) == 4
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"plan.json", "trace.json", "plan.baseline.json", "measured.json"}
