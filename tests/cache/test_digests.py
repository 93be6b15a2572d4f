import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import save
from tests.factories import write_file

from byov.cache.digests import (
    FINGERPRINT_SAMPLE_BYTES,
    FINGERPRINT_SAMPLES,
    SealError,
    array_sha256,
    check_weights,
    fingerprint,
    json_sha256,
    read_sealed_json,
    seal_json,
)
from byov.errors import CacheError

RECORD = {"width": 16, "settings": {"lr": 0.1}, "training": {"name": "Küche"}}


def test_sealed_json_reads_back():
    content = seal_json(RECORD)
    assert json.loads(content).keys() == {"file_sha256", *RECORD}
    assert read_sealed_json(content) == RECORD


def test_every_flipped_bit_of_sealed_json_is_noticed():
    content = seal_json(RECORD)
    for at in range(0, 8 * len(content), 7):
        damaged = bytearray(content)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises((SealError, json.JSONDecodeError, UnicodeDecodeError)):
            read_sealed_json(bytes(damaged))


def test_json_without_a_digest_is_accepted():
    content = json.dumps(RECORD).encode()
    assert read_sealed_json(content) == RECORD


def test_json_digest_ignores_order_and_distinguishes_types():
    assert json_sha256({"a": 1, "b": "x"}) == json_sha256({"b": "x", "a": 1})
    assert len({json_sha256({"a": value}) for value in (1, 1.0, True, "1")}) == 4


def test_array_digest_is_of_the_bytes_in_c_order():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert array_sha256(values) == hashlib.sha256(values.tobytes()).hexdigest()
    assert array_sha256(np.asfortranarray(values)) == array_sha256(values)


def test_weights_that_byov_did_not_write_are_accepted_without_metadata(tmp_path):
    content = save({"weight": np.ones(3)})
    (tmp_path / "model.safetensors").write_bytes(content)
    weights = check_weights(tmp_path / "model.safetensors")
    assert weights.metadata == {}
    assert weights.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "header",
    [b"{", b"[]", b"[" * 100_000, b'{"__metadata__": 3}', b'{"__metadata__": {"byov": ""}}'],
)
def test_weights_with_malformed_metadata_are_refused(tmp_path, header):
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CacheError, match=r"model\.safetensors: not readable"):
        check_weights(path)


WHOLE = FINGERPRINT_SAMPLES * FINGERPRINT_SAMPLE_BYTES


@pytest.mark.parametrize(
    ("size", "at", "is_noticed"),
    [
        # Small files are hashed completely.
        *((WHOLE, at, True) for at in (0, 1, WHOLE // 2, WHOLE - 1)),
        *((3 * WHOLE, at, True) for at in (0, FINGERPRINT_SAMPLE_BYTES - 1, 3 * WHOLE - 1)),
        (4 * WHOLE, FINGERPRINT_SAMPLE_BYTES + 1, False),  # between two samples
    ],
)
def test_fingerprint_covers_small_files_and_samples_of_large_ones(tmp_path, size, at, is_noticed):
    before = fingerprint(write_file(tmp_path / "a.mp4", bytes(size)))
    changed = write_file(tmp_path / "b.mp4", bytes(at) + b"\1" + bytes(size - at - 1))
    assert (fingerprint(changed) != before) == is_noticed
    assert fingerprint(write_file(changed, bytes(size))) == before
