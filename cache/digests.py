"""SHA-256 digests of files and of their contents.

A sealed file contains its own digest, computed with the 64 digest characters set to zero, so it
detects every changed byte. JSON files store it under the key `file_sha256`, safetensors files under
the same key in their metadata.
A file without a digest is not checked, so users can accept a manual edit by deleting the digest.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.errors import CacheError
from byov.files import MAX_BYTES, check_regular, parse_json

SCHEMA_VERSION = 1  # version of all file formats
SEAL_NAME = "file_sha256"
ACCEPT_EDIT = f'to accept an edit made by hand, delete the line "{SEAL_NAME}"'
METADATA_KEY = "byov"  # metadata key in safetensors files

_ZEROS = b"0" * 64
BLANK_SEAL = {SEAL_NAME: _ZEROS.decode()}

FINGERPRINT_SAMPLES = 16
FINGERPRINT_SAMPLE_BYTES = 16 << 10


class SealError(ValueError):
    """Raised if a sealed file does not match its digest."""


class NewerSchemaError(CacheError):
    """Raised if a file was written by a newer version of byov."""


def check_schema(version: Any, path: Path | str) -> None:
    """Raise NewerSchemaError if a file has a newer schema version, or ValueError if the version is
    invalid.
    """
    if type(version) is int and version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{path}: written by a newer version of byov (schema version {version}); update byov"
        )
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {version!r}; it must be {SCHEMA_VERSION}")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(path: Path) -> str:
    """Return a digest of a file's size and 16 evenly spaced samples of 16 KiB; it detects a
    re-exported video.
    """
    check_regular(path)
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= FINGERPRINT_SAMPLES * FINGERPRINT_SAMPLE_BYTES:
            digest.update(file.read())
        else:
            for index in range(FINGERPRINT_SAMPLES):
                file.seek(index * (size - FINGERPRINT_SAMPLE_BYTES) // (FINGERPRINT_SAMPLES - 1))
                digest.update(file.read(FINGERPRINT_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def segment_digest(digest: str, fragment: str) -> str:
    """Derive the digest of a segment such as "#t=2.5,7" from the digest of its file; "" means the
    whole file.
    """
    return (
        hashlib.sha256(f"{digest}{fragment}".encode()).hexdigest()[: len(digest)]
        if fragment
        else digest
    )


def file_state(path: Path) -> tuple[int, int, int]:
    """Return inode, size and modification time, which change when a file is replaced or written
    to.
    """
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def array_sha256(values: NDArray[Any]) -> str:
    """Return the SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()


def json_sha256(value: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of key order."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def seal(content: bytes) -> bytes:
    """Fill in the blank digest (BLANK_SEAL) in the content of a file."""
    return content.replace(_ZEROS, hashlib.sha256(content).hexdigest().encode(), 1)


def _check_seal(head: bytes, digest: Any, rest: Iterable[bytes] = ()) -> None:
    """Raise SealError unless `digest`, contained in `head`, is that of `head` and the rest of the
    content.
    """
    computed = hashlib.sha256(head.replace(str(digest).encode(), _ZEROS, 1))
    for block in rest:
        computed.update(block)
    if digest != computed.hexdigest():
        raise SealError(f"does not match its digest ({SEAL_NAME}): it is damaged or was edited")


def seal_json(record: Mapping[str, Any]) -> bytes:
    """Serialize a record to JSON that includes its own digest."""
    return seal((json.dumps(BLANK_SEAL | dict(record), indent=1) + "\n").encode())


def read_sealed_json(content: bytes) -> dict[str, Any]:
    """Parse a JSON file and verify its digest, if it has one."""
    record = parse_json(content)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if SEAL_NAME in record:
        _check_seal(content, record.pop(SEAL_NAME))
    # A digest under another key means that the key is damaged.
    elif any(isinstance(value, str) and len(value) == len(_ZEROS) for value in record.values()):
        raise SealError(f"has a digest that is not called {SEAL_NAME}: it is damaged")
    return record


@dataclass(frozen=True)
class WeightsFile:
    """Digest and metadata of a verified safetensors file."""

    sha256: str
    metadata: dict[str, Any]  # run identity, method, seed and step; empty without a digest


def check_weights(path: Path, run: Mapping[str, Any] | None = None) -> WeightsFile:
    """Verify the digest of a safetensors file without loading its tensors.

    Raises CacheError if the file is damaged, or if byov wrote it for a run whose "identity" differs
    from that of `run`.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            head_size = int.from_bytes(file.read(8), "little")
            if head_size > MAX_BYTES:
                raise ValueError("its header is too large")
            header = parse_json(file.read(head_size))
            metadata = parse_json(header.get("__metadata__", {}).get(METADATA_KEY, "{}"))
            if SEAL_NAME in metadata:
                file.seek(0)
                head = file.read(8 + head_size)
                _check_seal(head, metadata[SEAL_NAME], iter(partial(file.read, 1 << 20), b""))
            else:
                metadata = {}
        sha256 = file_sha256(path)
    except FileNotFoundError:
        raise CacheError(f"{path}: no such file") from None
    except SealError as error:
        raise CacheError(f"{path}: {error}") from None
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise CacheError(f"{path}: not readable ({error})") from error
    if run is not None and metadata and metadata.get("identity") != run.get("identity"):
        origin = ", ".join(f"{key} {metadata.get(key)}" for key in ("method", "seed", "step"))
        raise CacheError(f"{path} belongs to another run ({origin})")
    return WeightsFile(sha256, metadata)
