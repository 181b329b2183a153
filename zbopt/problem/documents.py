"""JSON and TOML files as they are read, and one line on what is wrong with one."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from zbopt.problem.facts import facts_of

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_SENTENCES = {
    **dict.fromkeys(_UNKNOWN, "this version knows no such field"),
    "missing": "is missing; give it",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "greater_than": "must be above {gt}",
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing", "finite_number"), "must be a whole number"),
    **dict.fromkeys(("model_type", "dataclass_type", "dict_type"), "must be an object with fields"),
    "string_type": "must be a text",
    "string_pattern_mismatch": "must be 'unit' or a duration such as 1us",
    "tuple_type": "must be a list, or one value for all",
    "enum": "must be {expected}; this version knows no other",
    "literal_error": "must be {expected}",
}
"""Our words for the library's faults, by its code for them."""


def first_fault(error: ValidationError, known: Mapping[str, FieldInfo]) -> str:
    """Return the first fault of a refused file or call, on one line; an unknown field first: it is often misspelled.

    Args:
        error: The faults that pydantic found.
        known: The fields of an instance, to say which one may have been meant, and what it takes.
    """
    faults = error.errors(include_url=False)
    fault = next((f for f in faults if f["type"] in _UNKNOWN), faults[0])
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).removeprefix(".")
    text = _fault_text(fault, where, known)
    if fault["type"] in _UNKNOWN:
        is_of_instance = error.title == "Instance" or where.startswith("instance.")
        return f"{where}: {text}{_near(str(fault['loc'][-1]), known) if is_of_instance else '; leave it out'}"
    message = f"{where}{_value_text(fault['input'])}: {text}" if where else text
    return " ".join(message.split())


def _fault_text(fault: ErrorDetails, where: str, known: Mapping[str, FieldInfo]) -> str:
    """Return our words for a fault at the field ``where``, or pydantic's where we have none."""
    context = fault.get("ctx", {})
    if fault["type"] == "tuple_type" and (isinstance(fault["input"], int | float | str) or _is_list(where, known)):
        return "must be a list"  # a field that takes one value for all has spread it already
    sentence = "must be finite" if context.get("lt") == inf else _SENTENCES.get(fault["type"])
    return sentence.format(**context) if sentence else fault["msg"].removeprefix("Value error, ")


def _value_text(value: object) -> str:
    """Return `` = value`` for a refused value that is short enough to show, else nothing."""
    if value is None:
        return " = null"
    text = repr(value) if isinstance(value, (int, float, str)) else ""
    return f" = {text}" if 0 < len(text) <= 60 else ""


def _is_list(field: str, known: Mapping[str, FieldInfo]) -> bool:
    """Return whether a field takes no one value for all."""
    return field in known and not facts_of(known[field]).spreads


def _near(name: str, known: Collection[str]) -> str:
    """Return the field that ``name`` may have been meant for, as the end of a sentence."""
    near = sorted((key for key in known if key.startswith(name)), key=len)
    near = near or get_close_matches(name, known, 1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else "; leave it out"


def kind_of(content: object) -> str:
    """Return what a parsed file holds, in a word for an error."""
    if isinstance(content, dict):
        return "an object"
    if isinstance(content, list):
        return "a list"
    if isinstance(content, str):
        return "a text"
    return "nothing" if content is None else "true or false" if isinstance(content, bool) else "a number"


def read_document(path: Path) -> Any:
    """Read a JSON or TOML file (by its suffix; anything but ``.toml`` is JSON).

    A name that stands twice in one object is refused: one of its two values would be lost.

    Raises:
        ValueError: The file is missing, a directory, empty, not text, or not well formed.
    """
    text = read_text(path, "a JSON or TOML file")
    with _named(path):
        if path.suffix == ".toml":
            return tomllib.loads(text)
        document = json.loads(text, object_pairs_hook=_object)
        if _MAYBE_HALF.search(text):
            _refuse_halves(document)
        return document


def read_foreign_document(path: Path) -> Any:
    """Read a JSON file of another program: of a name that stands twice in one object, the last value counts."""
    text = read_text(path, "a JSON or TOML file")
    with _named(path):
        return json.loads(text)


def read_text(path: Path, wanted: str) -> str:
    """Read the text of a file, which has to be ``wanted``.

    Raises:
        ValueError: The file is missing, a directory, empty, not text, or longer than any that we could use.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:  # some editors begin a file with a mark of its encoding
            text = file.read(_LONGEST + 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file (byte {error.start}); give {wanted} in UTF-8") from None
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise ValueError(f"{path}: {reason}; give the path of {wanted}") from None
    if len(text) > _LONGEST:
        raise ValueError(f"{path}: has more than {_LONGEST} characters; give {wanted} that is shorter")
    if not text.strip():
        raise ValueError(f"{path}: the file is empty; give {wanted}")
    return text


_LONGEST = 2**30
"""Characters of a file: three times those of the longest schedule, and an end to what never ends, such as /dev/zero."""


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn what a parser raises into our words, with the file's name."""
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        yield
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply to be read; give a plain JSON or TOML file") from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: not valid {kind}: {error}") from None
    except _RefusedError as error:
        raise ValueError(f"{path}: {error}") from None
    except ValueError:  # of Python itself, which tells of its own settings
        most = sys.get_int_max_str_digits()
        raise ValueError(f"{path}: holds a number of more than {most} digits; write it shorter") from None


class _RefusedError(ValueError):
    """Say that a file is well formed, but not to be taken."""


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _RefusedError(f"{twice!r} stands twice in one object; leave one out")
    return content


_MAYBE_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that with its other half makes one character, and alone none."""


def _refuse_halves(content: Any) -> None:
    """Refuse texts that no file and no terminal can hold."""
    if isinstance(content, dict):
        content = [*content, *content.values()]
    if isinstance(content, list):
        for part in content:
            _refuse_halves(part)
    elif isinstance(content, str) and not content.isascii():
        try:
            content.encode()
        except UnicodeEncodeError:
            raise _RefusedError(
                f"{content[:40]!r} holds half a character (\\ud800 to \\udfff); write it whole"
            ) from None


def require_writable(path: Path, *read: Path | None, flag: str = "-o") -> None:
    """Refuse an output that could not be written, before the work and not after it.

    Args:
        path: The output.
        read: Files that the call reads; ``None`` is no file.
        flag: How the call names the output.

    Raises:
        ValueError: The path is a directory, lies in none, may not be written, or is one of ``read``.
    """
    folder = path.parent
    if str(path) == "-":
        raise ValueError(f"{flag} -: no file is called so here; give /dev/stdout for standard output, or another path")
    if path.is_dir():
        raise ValueError(f"{flag} {path}: is a directory; give the path of a file in it")
    if not folder.is_dir():
        raise ValueError(f"{flag} {path}: there is no directory {folder}; make it, or give another path")
    if path.exists() and any(file is not None and file.exists() and path.samefile(file) for file in read):
        raise ValueError(f"{flag} {path}: is a file that this call reads; give another path")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"{flag} {path}: may not be written; give another path")
