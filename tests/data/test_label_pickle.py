import builtins
import collections
import functools
import os
import pickle
import struct
import subprocess

import numpy as np
import pytest
from tests.factories import Call, write_file

from byov.data.label_pickle import MAX_BYTES, read_labels
from byov.errors import DatasetError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.fixture
def read(tmp_path):
    """Return a function that reads labels from a file with the given content."""
    return lambda content: read_labels(write_file(tmp_path / "label.pickle", content))


@pytest.fixture
def error_of(read, tmp_path):
    """Return a function that reads a file with the given content and returns the error message."""

    def message(content):
        with pytest.raises(DatasetError) as error:
            read(content)
        assert str(error.value).startswith(f"{tmp_path / 'label.pickle'}: ")
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 500
        return str(error.value)

    return message


# --- accepted


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "values",
    [
        [0, 0, 1, 2],
        (0, 0, 1, 2),
        [0.0, 0.0, 1.0, 2.0],
        *(
            np.array([0, 0, 1, 2], dtype)
            for dtype in ("int64", "int32", "uint8", "<i2", ">i4", "float32", ">f8")
        ),
        np.array([0, 9, 0, 9, 1, 9, 2, 9])[::2],
        [np.int64(0), np.int32(0), np.uint8(1), np.float64(2)],
    ],
    ids=lambda values: (
        f"{type(values).__name__}-{getattr(values, 'dtype', type(values[0]).__name__)}"
    ),
)
def test_phase_indices_in_every_protocol(values, protocol, read):
    labels = read(pickle.dumps({"video": values, "other": values}, protocol))
    assert labels == {"video": (0, 0, 1, 2), "other": (0, 0, 1, 2)}
    assert {type(phase) for phase in labels["video"]} == {int}


def test_booleans_empty_labels_and_arrays_of_numpy_1(read):
    content = {
        "bools": np.array([False, True]),
        "list": [],
        "array": np.arange(3),
        "scalars": [np.int64(1), True],
    }
    old = pickle.dumps(content, 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    for data in (old, pickle.dumps(content)):
        assert read(data) == {"bools": (0, 1), "list": (), "array": (0, 1, 2), "scalars": (1, 1)}


# --- values that are not labels


@pytest.mark.parametrize(
    "values",
    [
        [[0, 1], [1, 2]],
        np.zeros((2, 3), int),
        np.array(3),
        [0, -1],
        [0.5, 1.0],
        [0.0, float("nan")],
        np.array([0.0, -np.inf]),
        ["0", "1"],
        "011",
        b"011",
        None,
        {0, 1},
        [0.5, 10**400],
        [2**80],
        [np.arange(2), np.arange(3)],
    ],
    ids=repr,
)
def test_values_that_are_not_phase_indices(values, error_of):
    assert "labels of 'video'" in error_of(pickle.dumps({"fine": [0, 1], "video": values}))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["object", "U1", "datetime64[D]", "complex64"])
def test_arrays_that_are_not_numeric(dtype, protocol, error_of):
    assert "not numeric" in error_of(pickle.dumps({"video": np.zeros(2, dtype)}, protocol))


@pytest.mark.parametrize(
    "content", [[0, 1], None, "text", {3: [0]}, {("a", 1): [0]}, {b"a": [0]}, np.arange(3)]
)
def test_anything_but_a_dictionary_of_stems(content, error_of):
    error_of(pickle.dumps(content))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_truncation_is_noticed(protocol, error_of):
    content = pickle.dumps({"video": np.arange(3), "list": [0, 1]}, protocol)
    for damaged in (
        *(content[:size] for size in range(len(content))),
        b"video,0\n",
        bytes(100),
        b"PK\x03\x04",
    ):
        assert "not a readable label file" in error_of(damaged)


# --- hostile pickles execute nothing


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_calls_are_refused_by_name(protocol, error_of, tmp_path):
    trace = tmp_path / "trace"
    calls = {
        f"{os.system.__module__}.system": Call(os.system, f"touch {trace}"),
        "eval": Call(eval, f"open({str(trace)!r}, 'w')"),
        ".open": Call(builtins.open, str(trace), "w"),
        "getattr": Call(getattr, [], "append"),
        ".Popen": Call(subprocess.Popen, ["touch", str(trace)]),
        "functools.partial": Call(functools.partial, os.mkdir, str(trace)),
        "numpy.load": Call(np.load, str(trace)),
        "OrderedDict": collections.OrderedDict(a=[0]),
        "pathlib.": trace,
    }
    for name, call in calls.items():
        for content in ({"video": call}, {"video": [0], "x": [[call]]}, call):
            assert name in error_of(pickle.dumps(content, protocol))
            assert list(tmp_path.iterdir()) == [tmp_path / "label.pickle"]


@pytest.mark.parametrize(
    "content",
    [
        # Attribute of an allowed name.
        b"\x80\x04X\x07\x00\x00\x00_codecsX\x0f\x00\x00\x00encode.__self__\x93.",
        b"(S'touch trace'\nios\nsystem\n.",  # INST opcode
        b"c_codecs\nencode\n(Vabc\nVzlib_codec\ntR.",  # a codec that is not allowed
        b"Pname\n.",  # persistent id
        b"\x80\x02X\x04\x00\x00\x00nameQ.",
        b"\x80\x02\x82\x01.",  # extension code
        # BUILD opcode.
        b"\x80\x02c_codecs\nencode\nN}X\x0c\x00\x00\x00__defaults__X\x06\x00\x00\x00latin1\x85s\x86b.",
    ],
)
def test_other_ways_to_execute_code(content, read, error_of):
    error_of(content)
    # The reader still works.
    assert read(pickle.dumps({"bytes": np.array([0, 1])}, 2)) == {"bytes": (0, 1)}


def array_pickle(dtype_code, shape, raw, *, fields=(None, None, -1, -1, 0)):
    """Pickle an array with arbitrary, possibly inconsistent, dtype, shape and memory."""
    marker = b"dtype goes here"
    before, after = pickle.dumps((1, shape, marker, False, raw), 3)[2:-1].split(
        b"C" + bytes([len(marker)]) + marker
    )
    dtype = b"cnumpy\ndtype\n" + pickle.dumps((dtype_code, False, True), 3)[2:-1] + b"R"
    dtype += pickle.dumps((3, "<", None, *fields), 3)[2:-1] + b"b"
    made = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
    return b"\x80\x03}X\x05\x00\x00\x00video" + made + before + dtype + after + b"bs."


def test_forged_arrays(read, error_of):
    assert read(array_pickle("i8", (2,), struct.pack("<2q", 4, 5))) == {"video": (4, 5)}
    # NumPy would follow these pointers.
    assert "not numeric" in error_of(array_pickle("O", (1,), b"A" * 8))
    fields = (("a",), {"a": 0}, 800, 1, 63)
    assert read(array_pickle("i8", (1,), struct.pack("<q", 1), fields=fields)) == {"video": (1,)}
    for shape, raw in (((3,), bytes(8)), ((1,), bytes(9)), ((2**40,), bytes(8)), ((1,), b"")):
        assert "not a readable label file" in error_of(array_pickle("i8", shape, raw))


def test_large_files_are_not_read(tmp_path):
    path = write_file(tmp_path / "label.pickle")
    os.truncate(path, 1 << 40)
    with pytest.raises(DatasetError, match=f"{MAX_BYTES:,} bytes"):
        read_labels(path)
