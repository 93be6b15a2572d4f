import hashlib
import os

import pytest

from byov.cache.digests import FINGERPRINT_SAMPLE_BYTES, FINGERPRINT_SAMPLES, file_sha256, fingerprint

WHOLE = FINGERPRINT_SAMPLES * FINGERPRINT_SAMPLE_BYTES


@pytest.fixture
def fingerprints(tmp_path):
    """fingerprints(*contents): of a file of each content."""

    def compute(*contents):
        for number, content in enumerate(contents):
            (tmp_path / f"{number}.mp4").write_bytes(content)
        return [fingerprint(tmp_path / f"{number}.mp4") for number in range(len(contents))]

    return compute


def changed(size, at):
    return bytes(at) + b"\1" + bytes(size - at - 1)


def test_sha256_is_of_the_whole_file(tmp_path):
    content = os.urandom(3_000_001)
    (tmp_path / "video.mp4").write_bytes(content)
    assert file_sha256(tmp_path / "video.mp4") == hashlib.sha256(content).hexdigest()


def test_fingerprint_depends_on_content_and_not_on_the_name(fingerprints):
    first, second, other = fingerprints(b"same", b"same", b"other")
    assert first == second != other
    assert len(first) == 32


@pytest.mark.parametrize(
    ("size", "places"),
    [
        (WHOLE, (0, 1, WHOLE // 2, WHOLE - 1)),  # every byte counts up to one mebibyte
        (3 * WHOLE, (0, FINGERPRINT_SAMPLE_BYTES - 1, 3 * WHOLE - FINGERPRINT_SAMPLE_BYTES, 3 * WHOLE - 1)),
    ],
)
def test_changes_are_noticed(size, places, fingerprints):
    contents = [bytes(size), *(changed(size, at) for at in places)]
    assert len(set(fingerprints(*contents))) == len(contents)


def test_large_file_is_only_sampled(fingerprints):
    between_samples = FINGERPRINT_SAMPLE_BYTES + 1
    first, second = fingerprints(bytes(4 * WHOLE), changed(4 * WHOLE, between_samples))
    assert first == second
