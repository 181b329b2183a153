"""Writing of output files as a whole: a write that fails leaves the file that was there before.

The new content goes to a temporary file beside the target, which then takes the target's place in one step.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_text(path: Path | str, text: str) -> None:
    """Write ``text`` to the file at ``path`` in UTF-8, all of it or nothing.

    Raises:
        OSError: The file cannot be written; ``filename`` is ``path``, and its old content is still there.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write ``content`` to the file at ``path``, all of it or nothing.

    A symbolic link stays, and the file that it points to is replaced. What is no regular file, such as ``/dev/stdout``
    or a pipe, cannot be replaced and is written in place; so is a file whose folder takes no new file.

    Raises:
        OSError: The file cannot be written; ``filename`` is ``path``.
    """
    target = Path(os.path.realpath(path))
    with errors_name(path):
        mode = _mode_of(target)
        if stat.S_ISREG(mode):
            _replace(target, content, stat.S_IMODE(mode))
        else:
            Path(path).write_bytes(content)


@contextmanager
def errors_name(path: Path | str) -> Iterator[None]:
    """Give every ``OSError`` raised inside ``path`` as its ``filename``: a full disk, for one, is reported without."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _mode_of(target: Path) -> int:
    """Return type and permissions of the file, or those that a new file would get."""
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        mask = os.umask(0)  # the only way to read the mask is to set it
        os.umask(mask)
        return stat.S_IFREG | (0o666 & ~mask)


def _replace(target: Path, content: bytes, permissions: int) -> None:
    """Write a temporary file with a name that nobody can guess, and let it take the place of ``target``."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:50]}.", suffix=".tmp", dir=target.parent)
    except PermissionError:
        if not target.exists():
            raise
        target.write_bytes(content)
        return
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), permissions)
            file.flush()
            os.fsync(file.fileno())  # some file systems report a full disk only now
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
