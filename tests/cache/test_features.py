import h5py
import numpy as np
import pytest
import torch
from tests.cache.conftest import make_arrays
from tests.factories import make_provenance

from byov.cache.features import SMALLEST_DEVIATION, FeatureWriter, read_header, standardize
from byov.cache.hdf5 import read_array, read_columns, read_digest
from byov.errors import CacheError


def test_features_without_frames_are_refused(tmp_path, write_features):
    path = write_features(tmp_path / "ego" / "a.h5", 0)
    with pytest.raises(CacheError, match="frames is 0"):
        read_header(path)


@pytest.mark.parametrize("frames", [1, 64, 70])
def test_features_read_back(tmp_path, write_features, frames):
    path = write_features(tmp_path / "ego" / "a.h5", frames)
    header = read_header(path)
    assert (header.path, header.provenance) == (path, make_provenance())
    assert (header.frames, header.fps, header.truncated, header.ratios) == (
        frames,
        30.0,
        False,
        ("0.3", "1.0"),
    )
    expected = make_arrays(frames)
    assert read_columns(path) == {
        name: (values.shape, str(values.dtype)) for name, values in sorted(expected.items())
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(read_array(path, name), values)
        assert header.columns[name] == read_digest(path, name)


def test_unusual_provenance_reads_back(tmp_path, write_features):
    unusual = {
        "source_name": "b\udcff\n\x1b.mp4",
        "encoder_revision": "é" * 300,
        "source_bytes": 1 << 40,
    }
    path = write_features(tmp_path / "ego" / "a.h5", 1, **unusual)
    assert read_header(path).provenance == make_provenance(**unusual)


def test_features_without_class_token(tmp_path):
    writer = FeatureWriter(tmp_path / "a.h5")
    merged = np.zeros((3, 4), np.float16)
    writer.append({"merged/1.0": merged, "order": np.zeros((3, 2)), "pts_seconds": np.arange(3.0)})
    writer.finish_video(make_provenance(), fps=25, truncated=True, corrupt_frames=2)
    header = read_header(tmp_path / "a.h5")
    assert (header.fps, header.truncated, header.corrupt_frames, header.ratios) == (
        25.0,
        True,
        2,
        ("1.0",),
    )
    assert "cls" not in header.columns


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("schema_version", value) for value in (0, 2, "1", np.array([1, 1]))],
        *[("complete", value) for value in (False, 1, "yes", h5py.Empty("f"))],
        *[("encoder", value) for value in (7, "text of variable length", np.zeros(3))],
        *[("source_bytes", value) for value in (1.5, True, np.bytes_("five"), 3j, np.void(b"x"))],
        *[("fps", value) for value in (float("nan"), float("inf"))],
        ("truncated", 1),
        # Missing attribute.
        *[(name, None) for name in ("encoder", "source_bytes", "fps", "truncated")],
    ],
    ids=str,
)
def test_attribute_of_another_type_or_value_is_refused(
    tmp_path, write_features, edit_h5, name, value
):
    path = write_features(tmp_path / "a.h5", 1)
    with edit_h5(path) as file:
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value
    with pytest.raises(CacheError, match=rf"a\.h5: .*{name.split('_')[0]}"):
        read_header(path)


# --- standardize


def features(frames=20, width=6):
    generator = torch.Generator().manual_seed(0)
    scale = 0.1 + 30 * torch.rand(width, generator=generator)
    return torch.randn(frames, width, generator=generator) * scale + 5


@pytest.mark.parametrize(("frames", "width"), [(1, 6), (20, 1), (333, 768), (5000, 7)])
def test_standardized_dimensions_have_zero_mean_and_unit_deviation(frames, width):
    array = features(frames, width)
    scaled = standardize(array)
    centered = array - array.mean(0)
    assert torch.equal(scaled, centered / (centered.square().mean(0).sqrt() + SMALLEST_DEVIATION))
    np.testing.assert_allclose(standardize(array.double().numpy()), scaled, atol=1e-4)
    if frames > 1:
        torch.testing.assert_close(
            scaled.std(0, correction=0), torch.ones(width), atol=1e-3, rtol=0
        )


@pytest.mark.parametrize("frames", [1, 7, 50_000])
@pytest.mark.parametrize("kind", ["tensor", "float64 array"])
def test_constant_dimension_becomes_zero(frames, kind):
    array = features(frames)
    array[:, 1] = torch.tensor(97.3, dtype=torch.float16)  # the cache stores float16 values
    scaled = standardize(array if kind == "tensor" else array.double().numpy())
    assert abs(scaled[:, 1]).max() < 1e-3
