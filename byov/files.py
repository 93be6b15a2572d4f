"""Reading of files that someone else may have written.

Only regular files are read, because a pipe or a device may have no end, and only up to a maximum
size.
"""

import errno
import json
import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from byov.text import format_size

MAX_BYTES = 64 << 20
MAX_DEPTH = 100  # of nested lists and objects
MAX_DOTS = 1000
MAX_TOML_BYTES = 1 << 16
MAX_MANIFEST_BYTES = 512 << 20  # labels of more than 100 million frames


def check_regular(path: Path, max_bytes: int | None = None) -> None:
    """Raise OSError unless `path` is a regular file of at most `max_bytes` bytes."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if max_bytes is not None and status.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {format_size(max_bytes)}", str(path))


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file; raise OSError if it is too large or not a regular file."""
    check_regular(path, max_bytes)
    return path.read_bytes()


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Return the content of a text file; raise OSError or, if it is not text, ValueError."""
    return read_bytes(path).decode(encoding)


def parse_json(content: bytes | str) -> Any:
    """Parse JSON; raise ValueError if it is malformed or nested too deeply."""
    return _parse(json.loads, content)


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Read a JSON file; raise OSError or, if it is not JSON, ValueError."""
    return parse_json(read_bytes(path, max_bytes))


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise OSError or, if it is not TOML, ValueError."""
    text = read_bytes(path, MAX_TOML_BYTES).decode()
    # Memory of the parser is quadratic in the number of parts of a dotted key.
    if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise ValueError(f"more than {MAX_DOTS} dots in a line")
    return dict(_parse(tomllib.loads, text))


def _parse(parse: Callable[[Any], Any], content: bytes | str) -> Any:
    try:
        value = parse(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # Deeper values would exceed the recursion limit later, when they are printed or validated.
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return value
    raise ValueError("nested too deeply")
