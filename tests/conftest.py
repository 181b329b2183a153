"""Fixtures of all tests: tests that depend on load run alone, and Ctrl-C works as in a terminal.

``pytest`` runs in several processes (pytest-xdist). A test marked ``alone`` waits until the others have ended theirs,
and holds them back until it has ended.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def locked(path: Path, kind: int) -> Iterator[None]:
    """Hold the lock of a file: ``fcntl.LOCK_EX`` alone, ``fcntl.LOCK_SH`` together with others."""
    with path.open("w") as file:
        fcntl.flock(file, kind)
        yield


@pytest.fixture(scope="session")
def lock_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of this run of pytest share, and no other run does."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True)
def _alone_where_marked(request: pytest.FixtureRequest, lock_folder: Path) -> Iterator[None]:
    """Let a test run beside others, or alone where it is marked so.

    Each test passes a gate first. One that has to run alone keeps the gate shut while it waits for the others to end:
    with one lock, those could take it in turns for ever.
    """
    gate, machine = lock_folder / "gate.lock", lock_folder / "machine.lock"
    if request.node.get_closest_marker("alone") is None:
        with locked(gate, fcntl.LOCK_EX):
            pass
        with locked(machine, fcntl.LOCK_SH):
            yield
    else:
        with locked(gate, fcntl.LOCK_EX), locked(machine, fcntl.LOCK_EX):
            yield


@pytest.fixture(autouse=True)
def _heeds_ctrl_c() -> Iterator[None]:
    """Give SIGINT its default. A shell starts a job in the background with it ignored, and so its children begin."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
