"""Locks on files that two runs at once must not write."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)


@contextmanager
def results_lock(results: Path) -> Iterator[None]:
    """Keep other runs from writing into ``results``, which they would empty while this one writes.

    Raises:
        ValueError: Another run writes into the file, or it may not be written.
    """
    try:
        file = results.open("a", encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        raise ValueError(f"{results}: {reason}; give --results a file that can be written") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{results}: another bench run writes into it; wait until that ends, or give --results another file"
            ) from None
        except OSError as error:
            log.info("%s: no lock: %s", results, error)  # some network file systems have no locks: run without one
        yield


@contextmanager
def update_lock(folder: Path) -> Iterator[None]:
    """Wait until no other run updates the record of ``folder``, so that each reads what the one before has written."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            log.info("%s: no lock: %s", folder, error)  # some network file systems have no locks: update without one
        yield
    finally:
        os.close(descriptor)
