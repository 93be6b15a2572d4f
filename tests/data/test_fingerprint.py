import hashlib
import os
from pathlib import Path

import pytest

from byov.cache.digests import FINGERPRINT_SAMPLE_BYTES, FINGERPRINT_SAMPLES, file_sha256, fingerprint

WHOLE = FINGERPRINT_SAMPLES * FINGERPRINT_SAMPLE_BYTES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "video.mp4"


def changed(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_sha256_is_of_the_whole_file(file: Path) -> None:
    content = os.urandom(3_000_001)
    file.write_bytes(content)
    assert file_sha256(file) == hashlib.sha256(content).hexdigest()


def test_fingerprint_depends_on_content_and_not_on_the_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"same")
    (tmp_path / "c").write_bytes(b"other")
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b") != fingerprint(tmp_path / "c")
    assert len(fingerprint(tmp_path / "a")) == 32


@pytest.mark.parametrize("at", [0, 1, WHOLE // 2, WHOLE - 1])
def test_every_byte_counts_up_to_one_mebibyte(file: Path, at: int) -> None:
    content = bytes(WHOLE)
    file.write_bytes(content)
    before = fingerprint(file)
    file.write_bytes(changed(content, at))
    assert fingerprint(file) != before


@pytest.mark.parametrize("at", [0, FINGERPRINT_SAMPLE_BYTES - 1, 3 * WHOLE - FINGERPRINT_SAMPLE_BYTES, 3 * WHOLE - 1])
def test_first_and_last_sample_of_a_large_file_count(file: Path, at: int) -> None:
    content = bytes(3 * WHOLE)
    file.write_bytes(content)
    before = fingerprint(file)
    file.write_bytes(changed(content, at))
    assert fingerprint(file) != before


@pytest.mark.parametrize("size", [0, 1, WHOLE, WHOLE + 1, 3 * WHOLE])
def test_size_counts_even_where_the_content_is_all_alike(file: Path, size: int) -> None:
    file.write_bytes(bytes(size))
    before = fingerprint(file)
    file.write_bytes(bytes(size + 1))
    assert fingerprint(file) != before


def test_large_file_is_only_sampled(file: Path) -> None:
    content = bytes(4 * WHOLE)
    file.write_bytes(content)
    before = fingerprint(file)
    file.write_bytes(changed(content, FINGERPRINT_SAMPLE_BYTES + 1))  # between the first two samples
    assert fingerprint(file) == before
