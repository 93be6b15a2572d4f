"""Digests that files carry of themselves: whoever reads them can tell damage from data.

HDF5 files have one of their attributes. JSON and safetensors files have one of all their bytes, taken while the 64
digits of the digest itself were zeros. What older versions have written carries none, and is not checked.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEAL_NAME = "file_sha256"
UNSEAL = f'remove the line "{SEAL_NAME}" from it'
_BLANK = "0" * 64
# In the metadata of a safetensors file it is JSON within JSON: its quotes are escaped.
_SEAL = re.compile(rb'\\?"' + SEAL_NAME.encode() + rb'\\?" ?: ?\\?"([^"\\]*)')
_BLOCK_BYTES = 1 << 20


class SealError(ValueError):
    """A file that is not as it was written."""


def header_digest(attributes: Mapping[str, str | int | float | bool]) -> str:
    """Of all attributes of a file, whatever their order."""
    return hashlib.sha256(json.dumps(attributes, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def blank_seal() -> dict[str, str]:
    """To be written into a file, or into its metadata, before `sealed`."""
    return {SEAL_NAME: _BLANK}


def sealed(content: bytes | bytearray) -> bytes:
    """The content of a file, with its digest in the place of the blank seal."""
    blank = _SEAL.search(content)
    if blank is None or blank[1] != _BLANK.encode():
        raise ValueError("no blank seal in the content")
    first, end = blank.span(1)
    return b"".join((content[:first], hashlib.sha256(content).hexdigest().encode(), memoryview(content)[end:]))


def check_seal(content: bytes) -> bool:
    """True if the content is as it was sealed, False if it has no seal; raises SealError if it is not."""
    found = _SEAL.search(content)
    if found is None:
        return False
    first, end = found.span(1)
    digest = hashlib.sha256(content[:first])
    digest.update(_BLANK.encode())
    digest.update(memoryview(content)[end:])
    _compare(found[1], digest.hexdigest())
    return True


def check_large(path: Path) -> tuple[bool, str]:
    """As check_seal, of a file with its seal near its beginning; and the SHA-256 of the file as it is."""
    with path.open("rb") as file:
        head = file.read(_BLOCK_BYTES)
        found = _SEAL.search(head)
        plain, blank = hashlib.sha256(head), hashlib.sha256()
        if found is not None:
            blank.update(head[: found.start(1)] + _BLANK.encode() + head[found.end(1) :])
        while block := file.read(_BLOCK_BYTES):
            plain.update(block)
            if found is not None:
                blank.update(block)
    if found is not None:
        _compare(found[1], blank.hexdigest())
    return found is not None, plain.hexdigest()


def _compare(written: bytes, now: str) -> None:
    if written != now.encode():
        raise SealError(
            f"it does not match the digest in it, {SEAL_NAME}: it is damaged, or was changed by other means"
        )


def refuse_nameless(record: Mapping[str, Any]) -> None:
    """Of a JSON object without a seal: a digest under another name is a seal whose name is damaged."""
    for name, value in record.items():
        if name != SEAL_NAME and isinstance(value, str) and len(value) == len(_BLANK):
            raise SealError(f"it has no {SEAL_NAME}, but {name[:20]!r}: it is damaged")


def unsealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """What was read from a sealed JSON file, without the seal."""
    return {key: value for key, value in record.items() if key != SEAL_NAME}
