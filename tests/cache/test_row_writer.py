import hashlib
import os
import subprocess
import time

import h5py
import numpy as np
import pytest

from byov.cache.hdf5 import BLOCK_ROWS, RowWriter

COLUMNS = {"wide/x": ((5, 3), "float32"), "flat": ((), "float64"), "narrow": ((7,), "uint16")}
ATTRS = {"text": "Küche", "empty": "", "number": 3, "real": 0.5, "flag": True}


def rows_of(count):
    random = np.random.default_rng(count)
    return {
        "wide/x": random.normal(size=(count, 5, 3)).astype(np.float32),
        "flat": random.normal(size=count),
        "narrow": random.integers(0, 60_000, size=(count, 7)).astype(np.uint16),
    }


def write(path, rows, step=None, attrs=ATTRS):
    count = len(rows["flat"])
    with RowWriter(path, COLUMNS) as writer:
        for first in range(0, count, step or max(count, 1)):
            writer.append({name: values[first : first + (step or count)] for name, values in rows.items()})
        writer.finish(attrs)
        assert writer.rows == count
    return path


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 256, 300, 600])
def test_rows_and_digests_read_back_and_the_bytes_do_not_depend_on_how_rows_came(tmp_path, count):
    rows = rows_of(count)
    whole = write(tmp_path / "whole.h5", rows)
    with h5py.File(whole, "r") as file:
        for name, values in rows.items():
            np.testing.assert_array_equal(file[name][:], values)
            assert file[name].dtype == values.dtype
            assert file[name].attrs["sha256"].decode() == hashlib.sha256(values.tobytes()).hexdigest()
    for step in (1, 7, 64, 100):
        assert write(tmp_path / f"{step}.h5", rows, step).read_bytes() == whole.read_bytes(), step
    assert not list(tmp_path.glob(".*"))


def test_uneven_and_empty_appends_give_the_same_bytes(tmp_path):
    rows = rows_of(150)
    whole = write(tmp_path / "whole.h5", rows)
    with RowWriter(tmp_path / "uneven.h5", COLUMNS) as writer:
        first = 0
        for size in (0, 1, 63, 0, 64, 2, 20, 0):
            writer.append({name: values[first : first + size] for name, values in rows.items()})
            first += size
        writer.finish(ATTRS)
    assert first == 150
    assert (tmp_path / "uneven.h5").read_bytes() == whole.read_bytes()


def test_other_values_give_other_bytes(tmp_path):
    rows = rows_of(65)
    before = write(tmp_path / "a.h5", rows).read_bytes()
    rows["narrow"][64, 0] ^= 1
    assert write(tmp_path / "b.h5", rows).read_bytes() != before


def test_nothing_in_the_file_depends_on_when_or_where_it_was_written(tmp_path, run_python):
    script = """
import sys
from pathlib import Path
import numpy as np
from byov.cache.hdf5 import RowWriter
with RowWriter(Path(sys.argv[1]), {"g/x": ((3,), "float16"), "y": ((), "float64")}) as writer:
    writer.append({"g/x": np.ones((70, 3)), "y": np.arange(70)})
    writer.finish({"b": "text", "a": 1, "c": True})
"""
    # MALLOC_PERTURB_ fills fresh memory with a byte: memory that reached the file unset would show.
    assert run_python(script, tmp_path / "a.h5", MALLOC_PERTURB_="85", PYTHONHASHSEED="1").returncode == 0
    written = (tmp_path / "a.h5").stat().st_mtime
    while int(time.time()) == int(written):  # HDF5 would record whole seconds
        time.sleep(0.01)
    assert run_python(script, tmp_path / "bb.h5", MALLOC_PERTURB_="170", PYTHONHASHSEED="2").returncode == 0
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "bb.h5").read_bytes()


def test_attributes_are_stored_in_one_order_and_text_in_fixed_length(tmp_path):
    one = write(tmp_path / "a.h5", rows_of(3), attrs=ATTRS)
    other = write(tmp_path / "b.h5", rows_of(3), attrs=dict(reversed(ATTRS.items())))
    assert one.read_bytes() == other.read_bytes()
    with h5py.File(one, "r") as file:
        for name in ("text", "empty"):
            assert file.attrs.get_id(name).dtype.kind == "S"  # the other kind crashes HDF5 when damaged
            assert file.attrs[name].decode() == ATTRS[name]
        assert (file.attrs["number"], file.attrs["real"], file.attrs["flag"]) == (3, 0.5, True)


def test_values_are_cast_to_the_type_of_the_column(tmp_path):
    with RowWriter(tmp_path / "a.h5", {"x": ((2,), "float16")}) as writer:
        writer.append({"x": np.asfortranarray(np.arange(140, dtype=np.float64).reshape(70, 2))})
        writer.finish({})
    with h5py.File(tmp_path / "a.h5", "r") as file:
        np.testing.assert_array_equal(file["x"][:], np.arange(140, dtype=np.float16).reshape(70, 2))


def test_the_caller_may_use_its_array_again_after_append(tmp_path):
    buffer = np.zeros((1, 2), np.float16)
    with RowWriter(tmp_path / "a.h5", {"x": ((2,), "float16")}) as writer:
        for value in range(70):
            buffer[:] = value
            writer.append({"x": buffer})
        writer.finish({})
    with h5py.File(tmp_path / "a.h5", "r") as file:
        np.testing.assert_array_equal(file["x"][:, 0], np.arange(70))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flat": np.zeros(3)}, "different length"),
        ({"narrow": np.zeros((2, 8))}, r"narrow: rows of shape \(8,\), expected \(7,\)"),
        ({"wide/x": np.zeros((2, 15))}, "wide/x: rows of shape"),
        ({"flat": np.zeros((2, 1))}, "flat: rows of shape"),
        ({"more": np.zeros(2)}, "more; expected"),
    ],
)
def test_wrong_rows_raise_and_add_nothing(tmp_path, change, message):
    rows = rows_of(2)
    with RowWriter(tmp_path / "a.h5", COLUMNS) as writer:
        with pytest.raises(ValueError, match=message):
            writer.append(rows | change)
        writer.append(rows)
        writer.finish(ATTRS)
    assert (tmp_path / "a.h5").read_bytes() == write(tmp_path / "b.h5", rows).read_bytes()


def test_a_missing_column_raises(tmp_path):
    rows = rows_of(2)
    del rows["flat"]
    with RowWriter(tmp_path / "a.h5", COLUMNS) as writer, pytest.raises(ValueError, match=r"expected .*flat"):
        writer.append(rows)


@pytest.mark.parametrize("count", [0, 1, 200])
def test_leaving_without_finish_leaves_nothing_and_keeps_the_old_file(tmp_path, count):
    (tmp_path / "old.h5").write_text("old")
    for name in ("new.h5", "old.h5"):
        with RowWriter(tmp_path / name, COLUMNS) as writer:
            writer.append(rows_of(count))
    assert [path.name for path in tmp_path.iterdir()] == ["old.h5"]
    assert (tmp_path / "old.h5").read_text() == "old"


def test_an_exception_inside_leaves_nothing(tmp_path):
    with RowWriter(tmp_path / "b.h5", COLUMNS) as unfinished:
        unfinished.append(rows_of(100))
        with pytest.raises(TypeError), RowWriter(tmp_path / "a.h5", COLUMNS) as writer:
            writer.finish({"what HDF5 cannot store": object()})
    assert list(tmp_path.iterdir()) == []


def test_closing_after_finish_keeps_the_file(tmp_path):
    write(tmp_path / "a.h5", rows_of(3))
    writer = RowWriter(tmp_path / "b.h5", COLUMNS)
    writer.append(rows_of(3))
    writer.finish(ATTRS)
    writer.close()
    writer.close()
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize("count", [0, 1, 64, 300])
def test_a_finished_file_holds_no_reserved_space(tmp_path, monkeypatch, count):
    reserved = write(tmp_path / "reserved.h5", rows_of(count))
    monkeypatch.delattr(os, "posix_fallocate")
    plain = write(tmp_path / "plain.h5", rows_of(count))
    assert reserved.read_bytes() == plain.read_bytes()
    assert reserved.stat().st_blocks <= plain.stat().st_blocks + 8  # 8 blocks of 512 bytes: one page


def test_space_is_claimed_before_the_first_row(tmp_path):
    with RowWriter(tmp_path / "a.h5", {"x": ((100_000,), "float32")}):
        (partial,) = tmp_path.iterdir()
        assert partial.stat().st_blocks * 512 >= 1 << 20


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

if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        write(full, 100)
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.EFBIG), error
        assert error.filename == str(full), error.filename
    else:
        raise AssertionError("there was room")
    assert list(full.parent.iterdir()) == [], list(full.parent.iterdir())
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
write(elsewhere, 3)
with h5py.File(elsewhere, "r") as file:
    assert file["a"].shape == (3 * {BLOCK_ROWS}, 1000) and (file["a"][:] == 1).all()
print("went on")
"""


@pytest.mark.parametrize("limit", [1, 1 << 20, 1_500_000])
def test_a_file_too_large_is_an_error_that_names_it_and_the_process_goes_on(tmp_path, run_python, limit):
    (tmp_path / "full").mkdir()
    done = run_python(WRITE_UNTIL_FULL, tmp_path / "full" / "a.h5", tmp_path / "good.h5", limit)
    assert (done.stdout, done.stderr, done.returncode) == ("went on\n", "", 0)
    assert [path.name for path in tmp_path.iterdir() if path.name != "full"] == ["good.h5"]


@pytest.fixture
def small_disk(tmp_path):
    """size → a folder on a disk of that size."""
    mounted = []

    def mount(size):
        folder = tmp_path / f"disk{size}"
        folder.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("no mount command")
        if done.returncode:
            pytest.skip(f"may not mount a small disk: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("kib", [64, 1024, 1288])
def test_a_full_disk_is_an_error_that_names_the_file_and_the_process_goes_on(tmp_path, run_python, small_disk, kib):
    done = run_python(WRITE_UNTIL_FULL, small_disk(f"{kib}k") / "a.h5", tmp_path / "good.h5", 0)
    assert (done.stdout, done.stderr, done.returncode) == ("went on\n", "", 0)


FILL_DISK = """
def fill(disk):
    with open(disk / "other", "wb", buffering=0) as other:
        try:
            while other.write(bytes(4096)):
                pass
        except OSError:
            pass
"""


def test_a_disk_that_others_fill_meanwhile_is_an_error_that_names_the_file(run_python, small_disk):
    script = (
        FILL_DISK
        + """
import os, sys
from pathlib import Path
import numpy as np
from byov.cache.hdf5 import BLOCK_ROWS, RowWriter
disk = Path(sys.argv[1])
rows = {"a": np.ones((64, 1000)), "b": np.ones(64)}
writer = RowWriter(disk / "a.h5", {"a": ((1000,), "float32"), "b": ((), "float64")})
for _ in range(2 * BLOCK_ROWS // 64):
    writer.append(rows)
fill(disk)
try:
    for _ in range(BLOCK_ROWS // 64):
        writer.append(rows)
except OSError as error:
    print(error.filename)
writer.close()
print([path.name for path in disk.iterdir()])
"""
    )
    disk = small_disk("4m")
    done = run_python(script, disk)
    assert (done.stdout, done.stderr, done.returncode) == (f"{disk / 'a.h5'}\n['other']\n", "", 0)


def test_what_was_reserved_is_enough_to_finish_on_a_disk_that_others_have_filled(run_python, small_disk):
    script = (
        FILL_DISK
        + """
import sys
from pathlib import Path
import h5py
import numpy as np
from byov.cache.hdf5 import BLOCK_ROWS, RowWriter
disk = Path(sys.argv[1])
names = [f"merged/{number}" for number in range(6)]
with RowWriter(disk / "a.h5", {name: ((200,), "float16") for name in names}) as writer:
    for _ in range(3 * BLOCK_ROWS // 64):
        writer.append({name: np.ones((64, 200)) for name in names})
    fill(disk)
    writer.finish({f"attribute {number}": "x" * 200 for number in range(16)})
with h5py.File(disk / "a.h5", "r") as file:
    print(file["merged/5"].shape, (file["merged/5"][:] == 1).all())
"""
    )
    done = run_python(script, small_disk("8m"))
    assert (done.stdout, done.stderr, done.returncode) == (f"({3 * BLOCK_ROWS}, 200) True\n", "", 0)


def test_the_folder_being_a_file_is_an_ordinary_error(tmp_path):
    (tmp_path / "view").touch()
    with pytest.raises(OSError, match="view"):
        RowWriter(tmp_path / "view" / "a.h5", COLUMNS)
