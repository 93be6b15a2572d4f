"""Tests of writing rows, including to a full disk, and of reading damaged and hostile files."""

import json

import h5py
import numpy as np
import pytest

from byov.cache.features import read_header
from byov.cache.hdf5 import BLOCK_ROWS, RowWriter, read_array, read_digest
from byov.errors import CacheError

ATTRIBUTES = {"text": "Küche", "empty": "", "number": 3, "real": 0.5, "flag": True}
# Storage layout of byov's columns.
STORED = {"chunks": (64, 16), "maxshape": (None, 16)}


def rows_of(count):
    generator = np.random.default_rng(count)
    return {
        "wide/x": generator.normal(size=(count, 5, 3)).astype(np.float32),
        "flat": generator.normal(size=count),
        "narrow": generator.integers(0, 60_000, size=(count, 7)).astype(np.uint16),
    }


def write(path, rows, sizes=None, attributes=ATTRIBUTES):
    """Write a file by appending rows in blocks of the given sizes."""
    first = 0
    with RowWriter(path) as writer:
        for size in sizes or [len(rows["flat"])]:
            writer.append({name: values[first : first + size] for name, values in rows.items()})
            first += size
        writer.finish(attributes)
        assert writer.rows == first == len(rows["flat"])
    return path


@pytest.mark.parametrize("count", [0, 1, 64, 65, 256, 600])
def test_rows_read_back_and_bytes_do_not_depend_on_how_rows_were_appended(tmp_path, count):
    rows = rows_of(count)
    whole = write(tmp_path / "whole.h5", rows)
    with h5py.File(whole, "r") as file:
        for name, values in rows.items():
            np.testing.assert_array_equal(file[name][:], values)
            assert file[name].dtype == values.dtype
    for size in (1, 7, 64, 100):
        sizes = [0, *[size] * (count // size), count % size]
        assert write(tmp_path / f"{size}.h5", rows, sizes).read_bytes() == whole.read_bytes(), size
    assert not list(tmp_path.glob(".*"))


def test_attributes_are_stored_in_one_order_and_text_in_fixed_length(tmp_path):
    first = write(tmp_path / "a.h5", rows_of(3))
    other = write(tmp_path / "b.h5", rows_of(3), attributes=dict(reversed(ATTRIBUTES.items())))
    assert first.read_bytes() == other.read_bytes()
    with h5py.File(first, "r") as file:
        for name in ("text", "empty"):
            # Damaged variable-length strings crash HDF5.
            assert file.attrs.get_id(name).dtype.kind == "S"
            assert file.attrs[name].decode() == ATTRIBUTES[name]
        assert (file.attrs["number"], file.attrs["real"], file.attrs["flag"]) == (3, 0.5, True)
        assert json.loads(file.attrs["columns"]).keys() == rows_of(3).keys()
        assert file.attrs["frames"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flat": np.zeros(3)}, "of the same length"),
        ({"narrow": np.zeros((2, 8))}, "must match exactly"),
        ({"more": np.zeros(2)}, r"more \(2 rows\); expected"),
    ],
)
def test_wrong_rows_raise_and_leave_no_file(tmp_path, change, message):
    with RowWriter(tmp_path / "a.h5") as writer:
        writer.append(rows_of(2))
        with pytest.raises(ValueError, match=message):
            writer.append(rows_of(2) | change)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [0, 200])
def test_leaving_without_finish_keeps_the_old_file(tmp_path, count):
    (tmp_path / "old.h5").write_text("old")
    for name in ("new.h5", "old.h5"):
        with RowWriter(tmp_path / name) as writer:
            writer.append(rows_of(count))
    assert [path.name for path in tmp_path.iterdir()] == ["old.h5"]
    assert (tmp_path / "old.h5").read_text() == "old"


WRITE_UNTIL_FULL = f"""
import errno, os, resource, sys
from pathlib import Path
import h5py
import numpy as np
from byov.cache.hdf5 import RowWriter
full, elsewhere, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
rows = {{"a": np.ones(({BLOCK_ROWS}, 1000), np.float32), "b": np.ones({BLOCK_ROWS})}}

def write(path, blocks):
    with RowWriter(path) as writer:
        for _ in range(blocks):
            writer.append(rows)
        writer.finish({{"note": "x" * 10_000}})

resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        write(full, 100)
    except OSError as error:
        assert error.errno == errno.EFBIG, error
        assert error.filename == str(full), error.filename
    else:
        raise AssertionError("there was room")
    assert list(full.parent.iterdir()) == [], list(full.parent.iterdir())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
write(elsewhere, 3)
with h5py.File(elsewhere, "r") as file:
    assert file["a"].shape == (3 * {BLOCK_ROWS}, 1000) and (file["a"][:] == 1).all()
print("done")
"""


@pytest.mark.parametrize("limit", [1, 1 << 20, 1_500_000])
def test_too_large_file_is_an_error_that_names_it(tmp_path, run_python, limit):
    (tmp_path / "full").mkdir()
    done = run_python(WRITE_UNTIL_FULL, tmp_path / "full" / "a.h5", tmp_path / "good.h5", limit)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


# --- reading


@pytest.mark.parametrize("name", ["merged/0.7", "merged", "/", "", "..", "merged/0.3/x"])
def test_missing_column_lists_the_existing_ones(tmp_path, write_features, name):
    path = write_features(tmp_path / "a.h5")
    for read in (read_array, read_digest):
        with pytest.raises(
            CacheError, match=r"a\.h5: no .*it contains cls, merged/0\.3, merged/1\.0, order, pts"
        ):
            read(path, name)


def test_truncated_missing_and_other_files_are_refused(tmp_path, write_features):
    path = write_features(tmp_path / "a.h5", 3)
    whole = path.read_bytes()
    cuts = [whole[:size] for size in (*range(0, len(whole), 997), len(whole) - 1)]
    for content in (b"not HDF5\n" * 1000, b"\x89HDF\r\n\x1a\n" + bytes(9000), *cuts):
        path.write_bytes(content)
        with pytest.raises(CacheError, match=r"a\.h5: not a readable cache file .*byov-extract"):
            read_header(path)
    path.unlink()
    with pytest.raises(CacheError, match=r"a\.h5: no such file"):
        read_header(path)


HOSTILE_COLUMNS = {
    "scalar": {"data": 1.0},
    "empty": {"data": h5py.Empty("f2")},
    "1-d": {"data": np.zeros(3, "f2"), "chunks": True},
    "float32": {"data": np.zeros((3, 16), "f4"), **STORED},
    "big-endian": {"data": np.zeros((3, 16), ">f2"), **STORED},
    "text": {"data": [["a", "b"]], "chunks": (1, 2)},
    "contiguous": {"data": np.zeros((3, 16), "f2")},
    "vast": {"shape": (1 << 40, 16), "dtype": "f2", **STORED},
    "compressed": {"data": np.zeros((3, 16), "f2"), "compression": 9, **STORED},
    "sparse": {"shape": (3, 16), "dtype": "f2", **STORED},
}


@pytest.mark.parametrize("kind", [*HOSTILE_COLUMNS, "group", "datatype", "missing"])
def test_column_that_byov_does_not_write_is_refused(tmp_path, write_features, edit_h5, kind):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        del file["cls"]
        if kind in HOSTILE_COLUMNS:
            file.create_dataset("cls", **HOSTILE_COLUMNS[kind])
        elif kind == "group":
            file.create_group("cls")
        elif kind == "datatype":
            file["cls"] = np.dtype("f2")
    with pytest.raises(CacheError, match=r"a\.h5: .*cls"):
        read_array(path, "cls")


@pytest.mark.parametrize(
    "name", ["merged/abc", "merged/0.30", "merged/\x1b[2J", b"merged/\xff\xfe"]
)
def test_ratio_that_is_not_a_number_is_refused(tmp_path, write_features, edit_h5, name):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        file[name] = np.zeros(3)
    with pytest.raises(CacheError, match=r"a\.h5"):
        read_header(path)


def external_link(file, other):
    file["cls"] = h5py.ExternalLink(str(other), "cls")


def soft_link_through_external(file, other):
    file["door"] = h5py.ExternalLink(str(other), "/")
    file["cls"] = h5py.SoftLink("/door/cls")


def raw_storage(file, other):
    file.create_dataset("cls", (3, 16), "f2", external=[(str(other), 0, 96)])


def virtual(file, other):
    layout = h5py.VirtualLayout((3, 16), "f2")
    layout[:] = h5py.VirtualSource(str(other), "cls", shape=(3, 16))
    file.create_virtual_dataset("cls", layout)


@pytest.mark.parametrize("make", [external_link, soft_link_through_external, raw_storage, virtual])
def test_file_cannot_make_us_read_another_file(tmp_path, write_features, edit_h5, make):
    secret = write_features(tmp_path / "secret.h5", 3)
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        del file["cls"]
        make(file, secret)
    with h5py.File(path, "r") as file:
        assert file["cls"].shape == (3, 16)  # h5py alone would read the other file
    with pytest.raises(CacheError, match=r"a\.h5: .*cls"):
        read_array(path, "cls")


def test_too_many_or_too_large_attributes_are_refused(tmp_path, write_features, edit_h5):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        for number in range(100):
            file.attrs[f"more {number}"] = number
    with pytest.raises(CacheError, match=r"a\.h5: .*attributes, at most 64"):
        read_header(path)
