import json

import pytest

from byov.cache.digests import SealError, blank_seal, check_large, check_seal, header_digest, sealed, unsealed
from byov.cache.runs import check_model, read_config
from byov.errors import CacheError

RECORD = {"width": 16, "settings": {"lr": 0.1}, "training": {"name": "Küche"}}


@pytest.fixture
def content():
    return sealed(json.dumps(blank_seal() | RECORD, indent=1).encode())


def test_what_is_sealed_is_whole_and_reads_as_before(content, tmp_path):
    assert check_seal(content)
    assert unsealed(json.loads(content)) == RECORD
    (tmp_path / "config.json").write_bytes(content)
    assert check_large(tmp_path / "config.json")[0]
    assert read_config(tmp_path) == RECORD


def test_every_flipped_bit_is_noticed(content, tmp_path):
    path = tmp_path / "config.json"
    for at in range(0, 8 * len(content), 7):
        damaged = bytearray(content)
        damaged[at // 8] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(CacheError, match=r"config\.json: "):
            read_config(tmp_path)


def test_what_has_no_seal_is_not_checked_and_what_has_no_place_for_one_is_not_sealed():
    assert not check_seal(b'{"width": 16}')
    with pytest.raises(ValueError, match="no blank seal"):
        sealed(b'{"width": 16}')


def test_a_seal_that_is_no_digest_is_damage(content):
    with pytest.raises(SealError):
        check_seal(content.replace(json.loads(content)["file_sha256"].encode(), b"none"))


def test_the_digest_of_attributes_does_not_depend_on_their_order_and_tells_types_apart():
    assert header_digest({"a": 1, "b": "x"}) == header_digest({"b": "x", "a": 1})
    assert len({header_digest({"a": value}) for value in (1, 1.0, True, "1")}) == 4


def test_the_message_of_an_edited_record_says_how_to_keep_the_edit(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content.replace(b"0.1", b"0.2"))
    with pytest.raises(CacheError, match='if you have edited it, remove the line "file_sha256" from it'):
        read_config(tmp_path)


def test_a_model_that_a_finished_run_has_not_written_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(CacheError, match=r"model \w{12}, the run was finished with cdcdcdcdcdcd"):
        check_model(tmp_path, {"files_sha256": {"model.safetensors": "cd" * 32}})
