from dataclasses import asdict

import h5py
import numpy as np
import pytest
from tests.factories import make_embedding_provenance

from byov.cache.embeddings import read_embedding, read_source, write_embedding
from byov.cache.hdf5 import read_array
from byov.errors import CacheError

SOURCE = make_embedding_provenance(run="Küche-paper-r0.3-s0", video="pour 1", first_frame=7)


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(size=(70, 32)).astype(np.float32)


@pytest.fixture
def path(tmp_path, values):
    path = tmp_path / "ego" / "pour 1.h5"
    write_embedding(path, values, np.arange(70) / 30, SOURCE)
    return path


def test_embeddings_read_back(path, values):
    embedding, source = read_embedding(path)
    assert embedding.dtype == np.float32
    np.testing.assert_array_equal(embedding, values)
    assert source == read_source(path) == SOURCE
    np.testing.assert_array_equal(read_array(path, "pts_seconds"), np.arange(70) / 30)
    with h5py.File(path) as file:  # readable without byov
        np.testing.assert_array_equal(file["embedding"][:], values)
        attributes = {
            key: value.decode() if isinstance(value, bytes) else value
            for key, value in file.attrs.items()
        }
    assert (asdict(SOURCE) | {"frames": 70}).items() <= attributes.items()


def test_truncated_file_is_reported_with_a_remedy(path):
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CacheError, match=r"pour 1\.h5: .*byov-train --run NAME --embed-only"):
        read_embedding(path)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("complete", False, "not marked complete"),
        ("first_frame", None, "no .first_frame"),
        ("run", 7, "run is 7"),
    ],
)
def test_malformed_header_is_refused(path, edit_h5, name, value, reason):
    with edit_h5(path) as file:
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value
    with pytest.raises(CacheError, match=reason):
        read_embedding(path)


def test_feature_file_is_not_read_as_embeddings(tmp_path, write_features):
    with pytest.raises(CacheError):
        read_embedding(write_features(tmp_path / "a.h5"))
