"""Is a file still the same? Digests of all of it, of a sample that is quick to take of a large file, and its state."""

import hashlib
from pathlib import Path

SAMPLES = 16
SAMPLE_BYTES = 16 << 10


def sha256(path: Path) -> str:
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
