"""Files that two calls at once must not write."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)


@contextmanager
def alone(results: Path) -> Iterator[None]:
    """Let no other run write into ``results``: it would empty the file under this one.

    Raises:
        ValueError: Another one does, or the file may not be written.
    """
    try:
        file = results.open("a", encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        raise ValueError(f"{results}: {reason}; give --results a file that may be written") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{results}: another bench writes into it; wait for its end, or give --results another file"
            ) from None
        except OSError as error:
            log.info("%s: no lock: %s", results, error)  # some network file systems have none: better that than no run
        yield


@contextmanager
def one_by_one(folder: Path) -> Iterator[None]:
    """Wait until no other run updates the record of ``folder``: each reads what the one before has written."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            log.info("%s: no lock: %s", folder, error)
        yield
    finally:
        os.close(descriptor)
