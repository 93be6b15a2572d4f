"""Writing rows, full disks included; reading them back from damaged and hostile files."""

import json
import os
import subprocess
import time

import h5py
import numpy as np
import pytest

from byov.cache.features import read_header
from byov.cache.hdf5 import BLOCK_ROWS, RowWriter, read_array, read_columns, read_digest
from byov.errors import CacheError

COLUMNS = {"wide/x": ((5, 3), "float32"), "flat": ((), "float64"), "narrow": ((7,), "uint16")}
ATTRIBUTES = {"text": "Küche", "empty": "", "number": 3, "real": 0.5, "flag": True}
STORED = {"chunks": (64, 16), "maxshape": (None, 16), "fletcher32": True}  # as byov stores a column


def rows_of(count):
    generator = np.random.default_rng(count)
    return {
        "wide/x": generator.normal(size=(count, 5, 3)).astype(np.float32),
        "flat": generator.normal(size=count),
        "narrow": generator.integers(0, 60_000, size=(count, 7)).astype(np.uint16),
    }


def write(path, rows, sizes=None, attributes=ATTRIBUTES):
    """Append rows in pieces of the given sizes."""
    first = 0
    with RowWriter(path, COLUMNS) as writer:
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


def test_bytes_do_not_depend_on_time_place_or_memory(tmp_path, run_python):
    script = """
import sys
from pathlib import Path
import numpy as np
from byov.cache.hdf5 import RowWriter
with RowWriter(Path(sys.argv[1]), {"g/x": ((3,), "float16"), "y": ((), "float64")}) as writer:
    writer.append({"g/x": np.ones((70, 3)), "y": np.arange(70)})
    writer.finish({"b": "text", "a": 1, "c": True})
"""
    # MALLOC_PERTURB_ fills fresh memory with a byte: uninitialized memory in the file would show.
    assert run_python(script, tmp_path / "a.h5", MALLOC_PERTURB_="85", PYTHONHASHSEED="1").returncode == 0
    written = (tmp_path / "a.h5").stat().st_mtime
    while int(time.time()) == int(written):  # HDF5 would record whole seconds
        time.sleep(0.01)
    assert run_python(script, tmp_path / "bb.h5", MALLOC_PERTURB_="170", PYTHONHASHSEED="2").returncode == 0
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "bb.h5").read_bytes()


def test_attributes_are_stored_in_one_order_and_text_in_fixed_length(tmp_path):
    one = write(tmp_path / "a.h5", rows_of(3))
    other = write(tmp_path / "b.h5", rows_of(3), attributes=dict(reversed(ATTRIBUTES.items())))
    assert one.read_bytes() == other.read_bytes()
    with h5py.File(one, "r") as file:
        for name in ("text", "empty"):
            assert file.attrs.get_id(name).dtype.kind == "S"  # damaged text of variable length crashes HDF5
            assert file.attrs[name].decode() == ATTRIBUTES[name]
        assert (file.attrs["number"], file.attrs["real"], file.attrs["flag"]) == (3, 0.5, True)
        assert json.loads(file.attrs["columns"]).keys() == COLUMNS.keys()
        assert file.attrs["frames"] == 3


def test_values_are_cast_and_the_caller_may_reuse_its_array(tmp_path):
    buffer = np.zeros((1, 2), np.float64)
    with RowWriter(tmp_path / "a.h5", {"x": ((2,), "float16")}) as writer:
        for value in range(3):
            buffer[:] = value
            writer.append({"x": np.asfortranarray(buffer)})
        writer.finish({})
    with h5py.File(tmp_path / "a.h5", "r") as file:
        assert file["x"][:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flat": np.zeros(3)}, "different length"),
        ({"narrow": np.zeros((2, 8))}, "must match exactly"),
        ({"more": np.zeros(2)}, "more; expected"),
    ],
)
def test_wrong_rows_raise_and_leave_no_file(tmp_path, change, message):
    with RowWriter(tmp_path / "a.h5", COLUMNS) as writer, pytest.raises(ValueError, match=message):
        writer.append(rows_of(2) | change)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [0, 200])
def test_leaving_without_finish_keeps_the_old_file(tmp_path, count):
    (tmp_path / "old.h5").write_text("old")
    for name in ("new.h5", "old.h5"):
        with RowWriter(tmp_path / name, COLUMNS) as writer:
            writer.append(rows_of(count))
    assert [path.name for path in tmp_path.iterdir()] == ["old.h5"]
    assert (tmp_path / "old.h5").read_text() == "old"


@pytest.mark.parametrize("count", [0, 64, 300])
def test_finished_file_has_no_reserved_space(tmp_path, monkeypatch, count):
    reserved = write(tmp_path / "reserved.h5", rows_of(count))
    monkeypatch.delattr(os, "posix_fallocate")
    plain = write(tmp_path / "plain.h5", rows_of(count))
    assert reserved.read_bytes() == plain.read_bytes()
    assert reserved.stat().st_blocks <= plain.stat().st_blocks + 8  # one page


WRITE_UNTIL_FULL = f"""
import errno, os, resource, sys
from pathlib import Path
import h5py
import numpy as np
from byov.cache.hdf5 import RowWriter
full, elsewhere, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
columns = {{"a": ((1000,), "float32"), "b": ((), "float64")}}
rows = {{"a": np.ones(({BLOCK_ROWS}, 1000)), "b": np.ones({BLOCK_ROWS})}}

def write(path, blocks):
    with RowWriter(path, columns) as writer:
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


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
        subprocess.run(command, capture_output=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("may not mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


WRITE_WHILE_OTHERS_FILL_THE_DISK = """
import sys
from pathlib import Path
import numpy as np
from byov.cache.hdf5 import BLOCK_ROWS, RowWriter
disk, more = Path(sys.argv[1]), int(sys.argv[2])
names = [f"merged/{number}" for number in range(6)]
block = {name: np.ones((BLOCK_ROWS, 200)) for name in names}
try:
    with RowWriter(disk / "a.h5", {name: ((200,), "float16") for name in names}) as writer:
        for _ in range(3):
            writer.append(block)
        with open(disk / "other", "wb", buffering=0) as other:
            try:
                while other.write(bytes(4096)):
                    pass
            except OSError:
                pass
        for _ in range(more):
            writer.append(block)
        writer.finish({f"attribute {number}": "x" * 200 for number in range(16)})
except OSError as error:
    print(error.filename)
print(sorted(path.name for path in disk.iterdir()))
"""


def test_disk_filled_by_others_is_an_error_unless_the_reserved_space_suffices(run_python, small_disk):
    done = run_python(WRITE_WHILE_OTHERS_FILL_THE_DISK, small_disk, 1)
    assert (done.stdout, done.stderr) == (f"{small_disk / 'a.h5'}\n['other']\n", "")
    (small_disk / "other").unlink()
    done = run_python(WRITE_WHILE_OTHERS_FILL_THE_DISK, small_disk, 0)
    assert (done.stdout, done.stderr) == ("['a.h5', 'other']\n", "")
    with h5py.File(small_disk / "a.h5", "r") as file:
        assert (file["merged/5"][:] == 1).all()


# --- reading


@pytest.mark.parametrize("name", ["merged/0.7", "merged", "/", "", "..", "merged/0.3/x"])
def test_missing_column_lists_the_existing_ones(tmp_path, write_features, name):
    path = write_features(tmp_path / "a.h5")
    for read in (read_array, read_digest):
        with pytest.raises(CacheError, match=r"a\.h5: no .*it contains cls, merged/0\.3, merged/1\.0, order, pts"):
            read(path, name)


@pytest.mark.parametrize("content", [b"not HDF5\n" * 1000, b"\x89HDF\r\n\x1a\n" + bytes(9000)])
def test_file_that_is_not_hdf5_is_named(tmp_path, content):
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    with pytest.raises(CacheError, match=r"a\.h5: not a readable cache file .*byov-extract"):
        read_header(path)
    path.unlink()
    with pytest.raises(CacheError, match=r"a\.h5: no such file"):
        read_header(path)


def test_truncated_file_is_refused(tmp_path, write_features):
    path = write_features(tmp_path / "a.h5", 3)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CacheError, match=r"a\.h5"):
            read_header(path)


def test_file_can_be_replaced_while_it_is_open(tmp_path, write_features):
    path = write_features(tmp_path / "a.h5", 3)
    with h5py.File(path, "r") as file:
        write_features(path, 70)
        assert (file.attrs["frames"], read_header(path).frames) == (3, 70)


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


@pytest.mark.parametrize("name", ["merged/abc", "merged/0.30", "merged/\x1b[2J", b"merged/\xff\xfe"])
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
        assert file["cls"].shape == (3, 16)  # HDF5 itself follows it
    with pytest.raises(CacheError, match=r"a\.h5: .*cls"):
        read_array(path, "cls")


def test_group_that_is_an_external_link_is_not_entered(tmp_path, write_features, edit_h5):
    secret = write_features(tmp_path / "secret.h5", 3)
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        del file["merged"]
        file["merged"] = h5py.ExternalLink(str(secret), "merged")
    with pytest.raises(CacheError, match=r"no merged/0\.3; it contains cls, order, pts_seconds"):
        read_array(path, "merged/0.3")


def test_cyclic_groups_are_refused(tmp_path, write_features, edit_h5):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        file["merged/loop"] = file["/"]
    for read in (read_header, read_columns):
        with pytest.raises(CacheError, match=r"a\.h5: .*loop"):
            read(path)


def test_too_many_or_too_large_attributes_are_refused(tmp_path, write_features, edit_h5):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        for number in range(100):
            file.attrs[f"more {number}"] = number
    with pytest.raises(CacheError, match=r"a\.h5: .*attributes, at most 64"):
        read_header(path)
