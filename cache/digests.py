"""Digests that files carry of themselves: whoever reads them can tell damage from data.

HDF5 files have one of their attributes. JSON and safetensors files have one of all their bytes, taken while the 64
digits of the digest itself were zeros. What older versions have written carries none, and is not checked.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byov.errors import CacheError

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


METADATA_KEY = "byov"
_LARGEST_HEADER_BYTES = 100 << 20  # what safetensors itself reads


@dataclass(frozen=True)
class WeightsFile:
    """What is known of a file of weights without reading its tensors."""

    path: Path
    sha256: str  # of the file
    sealed: bool  # False: of byov 0.2 or before, or saved by other means
    said: dict[str, Any]  # what it says of itself; {} of one that is not sealed

    @property
    def identity(self) -> str | None:
        """Of the run that has written it."""
        identity = self.said.get("identity")
        return identity if isinstance(identity, str) else None

    @property
    def origin(self) -> str:
        """For people: "the method byov, seed 0, step 40"."""
        if not self.sealed:
            return "of byov 0.2 or before, or saved by other means"
        return ", ".join(
            f"{what}{self.said.get(key)}"
            for what, key in (("the method ", "method"), ("seed ", "seed"), ("step ", "step"))
        )


def check_weights(path: Path) -> WeightsFile:
    """Read a file from end to end; raises CacheError if it is not as it was written."""
    try:
        sealed, sha256 = check_large(path)
        return WeightsFile(path, sha256, sealed, _metadata(path) if sealed else {})
    except FileNotFoundError:
        raise CacheError(f"{path}: no such file") from None
    except SealError as error:
        raise CacheError(f"{path}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CacheError(f"{path}: not readable ({error})") from error


def _metadata(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _LARGEST_HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes")
        header = json.loads(file.read(size))
    said = json.loads(header["__metadata__"][METADATA_KEY])
    if not isinstance(said, dict):
        raise ValueError("its metadata are no JSON object")
    return said


SAMPLES = 16
SAMPLE_BYTES = 16 << 10


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_state(path: Path) -> tuple[int, int, int]:
    """What changes with every change of a file: another file in its place, another size, a write."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def fingerprint(path: Path) -> str:
    """A digest of the size and of 16 evenly spaced samples; of everything up to 256 KiB.

    Reads at most 256 KiB, so that every run can look at every source. It sees whatever a new export, cut or re-encoding
    does, and not a byte that is changed in place between two samples.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= SAMPLES * SAMPLE_BYTES:
            digest.update(file.read())
        else:
            for index in range(SAMPLES):
                file.seek(index * (size - SAMPLE_BYTES) // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:32]
