from dataclasses import asdict

import h5py
import numpy as np
import pytest

from byov.cache.digests import header_digest
from byov.cache.embeddings import EmbeddingProvenance, read_embedding, write_embedding
from byov.cache.hdf5 import read_array
from byov.errors import CacheError

SOURCE = EmbeddingProvenance(
    run="Küche-paper-r0.3-s0",
    model_sha256="ab" * 32,
    dataset="demo",
    video="pour 1",
    encoder="random/tiny",
    encoder_revision="0",
    encoder_sha256="cd" * 32,
    preprocessing="squash 224",
    column="merged/0.3",
    column_sha256="ef" * 32,
    first_frame=7,
)


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(size=(70, 32)).astype(np.float32)


@pytest.fixture
def path(tmp_path, values):
    path = tmp_path / "ego" / "pour 1.h5"
    write_embedding(path, values, np.arange(70) / 30, SOURCE)
    return path


def test_what_is_written_is_read_back(path, values):
    embedding, source = read_embedding(path)
    assert embedding.dtype == np.float32
    np.testing.assert_array_equal(embedding, values)
    assert source == SOURCE
    np.testing.assert_array_equal(read_array(path, "pts_seconds"), np.arange(70) / 30)


def test_the_file_says_all_of_it_to_any_reader_of_hdf5(path, values):
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["embedding"][:], values)
        attrs = {key: value.decode() if isinstance(value, bytes) else value for key, value in file.attrs.items()}
    said = asdict(SOURCE) | {"complete": True, "columns": "embedding pts_seconds"}
    assert attrs == said | {"header_sha256": header_digest(said)}


def test_a_view_is_one_more_attribute_and_changes_nothing_else(path, values):
    write_embedding(path, values, np.arange(70) / 30, SOURCE, view="exo")
    with h5py.File(path) as file:
        assert file.attrs["view"] == b"exo"
    assert read_embedding(path)[1] == SOURCE


def test_the_same_embeddings_give_the_same_bytes(path, values, tmp_path):
    write_embedding(tmp_path / "again.h5", values, np.arange(70) / 30, SOURCE)
    assert (tmp_path / "again.h5").read_bytes() == path.read_bytes()


def test_an_older_file_is_replaced(path, values):
    write_embedding(path, values[:3], np.arange(3) / 30, SOURCE)
    assert read_embedding(path)[0].shape == (3, 32)
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_embeddings_and_times_of_different_length_are_not_written(tmp_path, values):
    with pytest.raises(ValueError, match="different length"):
        write_embedding(tmp_path / "a.h5", values, np.arange(69) / 30, SOURCE)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CacheError, match=r"none\.h5: no such file"):
        read_embedding(tmp_path / "none.h5")


@pytest.mark.parametrize("size", [0, 100, 2000])
def test_a_truncated_file_is_named_with_what_to_do(path, size):
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CacheError, match=r"pour 1\.h5: .*make it again with byov-train --run NAME --embed-only"):
        read_embedding(path)


def test_a_rotten_block_is_not_given_out(path, flip_data_byte):
    flip_data_byte(path, "embedding")
    with pytest.raises(CacheError, match="not a readable cache file"):
        read_embedding(path)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("complete", False, "not marked complete"),
        ("complete", None, "not marked complete"),
        ("schema_version", 3, "cache schema 3, this byov reads 1 and 2"),
        ("schema_version", None, "cache schema None"),
        ("first_frame", None, "incomplete header"),
        ("first_frame", 1.5, "first_frame is not of type int"),
        ("run", 7, "run is not of type str"),
        ("model_sha256", None, "incomplete header"),
    ],
)
def test_a_header_that_byov_does_not_write_is_refused(path, edit_h5, name, value, told):
    with edit_h5(path) as file:
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value
    with pytest.raises(CacheError, match=told):
        read_embedding(path)


def test_a_feature_file_is_not_taken_for_embeddings(tmp_path, write_features):
    with pytest.raises(CacheError):
        read_embedding(write_features(tmp_path / "a.h5"))


def test_embeddings_of_another_length_than_their_times_are_refused(path, edit_h5):
    with edit_h5(path) as file:
        file["embedding"].resize(64, axis=0)
    with pytest.raises(CacheError, match="'embedding' has 64 rows, pts_seconds 70"):
        read_embedding(path)


def test_embeddings_that_lie_in_another_file_are_refused(path, edit_h5, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"\0" * 70 * 32 * 4)
    with edit_h5(path) as file:
        del file["embedding"]
        file.create_dataset("embedding", (70, 32), "float32", external=[(str(secret), 0, 70 * 32 * 4)])
    with pytest.raises(CacheError, match="not an array that byov writes"):
        read_embedding(path)
