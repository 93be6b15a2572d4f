import builtins
import collections
import faulthandler
import functools
import os
import pickle
import re
import resource
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byov.data.label_pickle import MOST_FRAMES, read_labels
from byov.errors import DatasetError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
Write = Callable[[bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: bytes) -> Path:
        path = tmp_path / "label.pickle"
        path.write_bytes(content)
        return path

    return to_file


@contextmanager
def limits(more_bytes: int) -> Iterator[None]:
    """Within, this process may take so much more memory than it has, and a minute."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, before[1]))
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, before)


def message_of(path: Path) -> str:
    with pytest.raises(DatasetError) as error:
        read_labels(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    return str(error.value)


# --- what is read


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "values",
    [
        [0, 0, 1, 2],
        (0, 0, 1, 2),
        [0.0, 0.0, 1.0, 2.0],
        *(np.array([0, 0, 1, 2], dtype) for dtype in ("int64", "int32", "uint8", "<i2", ">i4", "float32", ">f8")),
        np.array([0, 9, 0, 9, 1, 9, 2, 9])[::2],
        np.asfortranarray([0, 0, 1, 2]),
        [np.int64(0), np.int32(0), np.uint8(1), np.float64(2)],
        list(np.array([0, 0, 1, 2])),
    ],
    ids=lambda values: f"{type(values).__name__}-{getattr(values, 'dtype', type(values[0]).__name__)}",
)
def test_row_of_phases_in_every_protocol(values: Any, protocol: int, write: Write) -> None:
    labels = read_labels(write(pickle.dumps({"video": values, "other": values}, protocol)))
    assert labels == {"video": (0, 0, 1, 2), "other": (0, 0, 1, 2)}
    assert {type(phase) for phase in labels["video"]} == {int}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bools_and_empty_rows(protocol: int, write: Write) -> None:
    content = {"bools": np.array([False, True]), "list": [], "array": np.array([], np.int64), "true": [True, False]}
    labels = read_labels(write(pickle.dumps(content, protocol)))
    assert labels == {"bools": (0, 1), "list": (), "array": (), "true": (1, 0)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_array_that_two_stems_share(protocol: int, write: Write) -> None:
    shared = np.arange(3)
    labels = read_labels(write(pickle.dumps({"a": shared, "b": shared}, protocol)))
    assert labels == {"a": (0, 1, 2), "b": (0, 1, 2)}


def test_array_as_numpy_1_spells_it(write: Write) -> None:
    content = {"array": np.arange(3), "scalars": [np.int64(1), np.int64(2)]}
    for protocol in (0, 1, 2):  # names end with a line break there, so their length is free
        spelt = pickle.dumps(content, protocol)
        assert b"numpy._core.multiarray" in spelt
        old = spelt.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        assert read_labels(write(old)) == {"array": (0, 1, 2), "scalars": (1, 2)}


def test_array_as_python_2_spells_it(write: Write) -> None:
    """Bytes are then text of protocol 2: SHORT_BINSTRING."""
    raw = struct.pack("<3q", 0, 1, 200)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x03\x85cnumpy\ndtype\nU\x02i8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U" + bytes([len(raw)]) + raw + b"tb"
    )
    assert read_labels(write(b"\x80\x02}U\x05videoq\x00" + array + b"s.")) == {"video": (0, 1, 200)}


def test_ordinary_dict_may_be_empty(write: Write) -> None:
    assert read_labels(write(pickle.dumps({}))) == {}


# --- what is refused because of what it says


@pytest.mark.parametrize(
    "values",
    [
        [[0, 1], [1, 2]],
        np.zeros((2, 3), int),
        np.zeros((2, 3), int, order="F"),
        np.array(3),
        np.int64(3),
        [0, -1],
        np.array([0, -1]),
        [0.5, 1.0],
        [0.0, float("nan")],
        [0.0, float("inf")],
        np.array([0.0, -np.inf]),
        ["0", "1"],
        "011",
        b"011",
        None,
        5,
        {"phases": [0]},
        [0.5, 10**400],
        ["0" * 1000] * 1000,
        [None, 1],
        [[0], [1, 2]],
        [2**80],
        [np.arange(2), np.arange(3)],
        [np.arange(2), np.arange(2)],
    ],
    ids=repr,
)
def test_values_that_are_not_a_row_of_phases(values: Any, write: Write) -> None:
    path = write(pickle.dumps({"fine": [0, 1], "video": values}))
    assert message_of(path) == f"{path}: the labels of 'video' are not a row of phase indices"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "array",
    [
        np.array([1, 2], object),
        np.array([np.arange(2), np.arange(3)], object),
        np.array(["a", "b"]),
        np.array([b"a"]),
        np.array([(1, 2)], dtype=[("a", "i4"), ("b", "O")]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.array([1j]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_that_are_not_of_numbers(array: Any, protocol: int, write: Write) -> None:
    assert "not numbers" in message_of(write(pickle.dumps({"video": array}, protocol)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("values", [{0, 1}, frozenset({0, 1}), set()], ids=repr)
def test_sets_are_refused(values: Any, protocol: int, write: Write) -> None:
    message = message_of(write(pickle.dumps({"video": values}, protocol)))
    assert re.search(r"refused, it names (__builtin__|builtins)\.(frozen)?set, ", message)


@pytest.mark.parametrize("content", [[0, 1], None, 7, "text", {3: [0]}, {("a", 1): [0]}, {b"a": [0]}, np.arange(3)])
def test_not_a_dict_of_stems(content: Any, write: Write) -> None:
    assert "expected a dict from file stem to phases" in message_of(write(pickle.dumps(content)))


def test_every_truncation_of_a_pickle(write: Write) -> None:
    for protocol in PROTOCOLS:
        content = pickle.dumps({"video": np.arange(3), "list": [0, 1]}, protocol)
        path = write(content)
        for size in reversed(range(len(content))):
            os.truncate(path, size)
            assert "not a readable label file" in message_of(path)


@pytest.mark.parametrize("content", [b"", b"video,0\n", b"\x80\xff.", b"\0" * 100, b"PK\x03\x04", b"."])
def test_not_a_pickle(content: bytes, write: Write) -> None:
    assert "not a readable label file" in message_of(write(content))


def test_missing_file(tmp_path: Path) -> None:
    assert "not there" in message_of(tmp_path / "label.pickle")


# --- what is refused because of what it would do


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def test_custom_class_is_refused_by_its_name(write: Write) -> None:
    content = b"\x80\x02}X\x05\x00\x00\x00videocmy_labels\nPhases\n)\x81s."
    assert "it names my_labels.Phases," in message_of(write(content))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_calls_are_refused_by_name_and_not_made(protocol: int, write: Write, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    calls = {
        f"{os.system.__module__}.system": Call(os.system, f"touch {trace}"),
        "eval": Call(eval, f"open({str(trace)!r}, 'w')"),
        "exec": Call(exec, f"open({str(trace)!r}, 'w')"),
        ".open": Call(builtins.open, str(trace), "w"),
        "getattr": Call(getattr, [], "append"),
        "__import__": Call(builtins.__import__, "antigravity"),
        ".Popen": Call(subprocess.Popen, ["touch", str(trace)]),
        "functools.partial": Call(functools.partial, os.mkdir, str(trace)),
        "numpy.save": Call(np.save, str(trace), 1),
        "numpy.load": Call(np.load, str(trace)),
        "OrderedDict": collections.OrderedDict(a=[0]),
        "pathlib.": trace,
    }
    for name, call in calls.items():
        for content in ({"video": call}, {"video": [0], "x": [[call]]}, call):
            message = message_of(write(pickle.dumps(content, protocol)))
            assert name in message
            assert "refused" in message
            assert list(tmp_path.iterdir()) == [tmp_path / "label.pickle"]


def test_names_put_together_on_the_stack_are_refused(write: Write, tmp_path: Path) -> None:
    """STACK_GLOBAL takes its names from strings, which may come from the memo and be spelt in any way."""
    trace = str(tmp_path / "trace").encode()
    content = (
        b"\x80\x04X\x06\x00\x00\x00system\x940X\x02\x00\x00\x00os\x940h\x01h\x00\x93"
        b"X" + struct.pack("<I", len(trace) + 6) + b"touch " + trace + b"\x85R."
    )
    with pytest.raises(DatasetError, match=r"refused, it names os\.system,"):
        read_labels(write(content))
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy", "ndarray.tofile"),
        ("numpy._core.multiarray", "fromfile"),
        ("numpy._core.multiarray", "_reconstruct.__self__"),
        ("builtins", "set.__class__"),
        ("byov.data.label_pickle", "os"),
        ("_codecs", "decode"),
        ("_codecs", "encode.__self__"),
        ("copyreg", "_reconstructor"),
        ("operator", "attrgetter"),
        ("", ""),
    ],
)
def test_neighbors_of_admitted_names_are_refused(module: str, name: str, write: Write) -> None:
    texts = b"".join(b"X" + struct.pack("<I", len(text)) + text.encode() for text in (module, name))
    assert f"it names {module}.{name}," in message_of(write(b"\x80\x04" + texts + b"\x93."))


def test_old_instance_opcode_is_refused(write: Write, tmp_path: Path) -> None:
    content = f"(S'touch {tmp_path / 'trace'}'\nios\nsystem\n.".encode()
    assert "it names os.system," in message_of(write(content))
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("codec", ["rot13", "zlib_codec", "utf-16", "LATIN1", "idna"])
def test_other_codecs_are_refused(codec: str, write: Write) -> None:
    content = b"c_codecs\nencode\n(Vabc\nV" + codec.encode() + b"\ntR."
    assert f"it names _codecs.encode with {codec!r}," in message_of(write(content))


@pytest.mark.parametrize("content", [b"Pname\n.", b"\x80\x02X\x04\x00\x00\x00nameQ."])
def test_persistent_id_is_refused(content: bytes, write: Write) -> None:
    assert "persistent id" in message_of(write(content)).replace("persistent_load", "persistent id")


@pytest.mark.parametrize("content", [b"\x82\x01.", b"\x83\x01\x01.", b"\x84\x01\x01\x01\x01."])
def test_extension_codes_are_refused(content: bytes, write: Write) -> None:
    assert "extension code" in message_of(write(b"\x80\x02" + content))


def array_pickle(dtype_code: str, dtype_state: tuple[Any, ...], shape: tuple[int, ...], raw: bytes) -> bytes:
    """An array whose dtype and memory are as given, whether they fit or not."""
    marker = b"dtype goes here"
    state = pickle.dumps((1, shape, marker, False, raw), 3)[2:-1]
    dtype = b"cnumpy\ndtype\n" + pickle.dumps((dtype_code, False, True), 3)[2:-1] + b"R"
    dtype += pickle.dumps(dtype_state, 3)[2:-1] + b"b"
    before, after = state.split(b"C" + bytes([len(marker)]) + marker)
    made = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
    return b"\x80\x03}X\x05\x00\x00\x00video" + made + before + dtype + after + b"bs."


def test_handmade_array_is_read(write: Write) -> None:
    content = array_pickle("i8", (3, "<", None, None, None, -1, -1, 0), (2,), struct.pack("<2q", 4, 5))
    assert read_labels(write(content)) == {"video": (4, 5)}


def test_array_of_forged_pointers_is_refused(write: Write) -> None:
    """numpy's own unpickling takes these bytes for the address of an object and crashes."""
    content = array_pickle("O", (3, "|", None, None, None, -1, -1, 0), (1,), b"A" * 8)
    assert "not numbers" in message_of(write(content))


def test_forged_fields_of_a_number_type_are_ignored(write: Write) -> None:
    content = array_pickle("i8", (3, "<", None, ("a",), {"a": 0}, 800, 1, 63), (1,), struct.pack("<q", 1))
    assert read_labels(write(content)) == {"video": (1,)}


@pytest.mark.parametrize(("shape", "raw"), [((3,), bytes(8)), ((1,), bytes(9)), ((2**40,), bytes(8)), ((1,), b"")])
def test_array_whose_bytes_do_not_fit_its_shape(shape: tuple[int, ...], raw: bytes, write: Write) -> None:
    content = array_pickle("i8", (3, "<", None, None, None, -1, -1, 0), shape, raw)
    assert "not a readable label file" in message_of(write(content))


# --- what is refused because of what it would become


LAUGHS = b")" + b"2\x86" * 200  # () in a tuple with itself, 200 times: as many as there are numbers of 200 bits
DTYPE = b"cnumpy\ndtype\n"


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04}" + LAUGHS + b"K\x00s.",  # dicts of it, which hash it
        b"\x80\x04}(" + LAUGHS + b"K\x00u.",
        b"\x80\x04(" + LAUGHS + b"K\x00d.",
        b"\x80\x04\x8f(" + LAUGHS + b"\x90.",  # sets of it
        b"\x80\x04(" + LAUGHS + b"\x91.",
        b"\x80\x04cbuiltins\nset\n(" + LAUGHS + b"\x85\x85R.",
        b"\x80\x04cbuiltins\nfrozenset\n" + LAUGHS + b"\x85\x81.",
        DTYPE + LAUGHS + b"\x85R.",  # printed
        DTYPE + b"X\x02\x00\x00\x00i8\x85RK\x03" + LAUGHS + b"\x86b.",
        b"c_codecs\nencode\nX\x01\x00\x00\x00a" + LAUGHS + b"\x86R.",
        b"cbuiltins\nbytes\n" + LAUGHS + b"\x85R.",
        b"cbuiltins\nbytes\nX\x01\x00\x00\x00a" + LAUGHS + b"\x86R.",
        b"cbuiltins\nbytearray\nI2147483647\n\x85R.",  # zeros, 2 GiB of them
        b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
        b"\x80\x04Nr\xff\xff\xff\xff0N.",  # a memo with room for 4 billion
        b"\x80\x04X" + b"\xff" * 4 + b".",
        b"cbuiltins\nbytes\n" + b"X\xff\xff\x00\x00" + b"a" * 0xFFFF + b"X\x08\x00\x00\x00punycode\x86R.",
        b"c" + b"m" * 1_000_000 + b"\nname\n.",  # a long name, not a long line
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_few_bytes_take_neither_memory_nor_time(content: bytes, write: Write) -> None:
    path = write(content)
    with limits(256 << 20):
        assert len(message_of(path)) < 1000


@pytest.mark.parametrize("kind", ["list", "array"])
def test_labels_of_more_frames_than_a_file_can_have_are_refused(kind: str, write: Write) -> None:
    """A few bytes for each video, which all share one row."""
    row = [0] * 100_000 if kind == "list" else np.zeros(1_000_000, np.uint8)
    content = pickle.dumps({f"video {index}": row for index in range(100)})
    with limits(512 << 20):
        message = message_of(write(content))
    assert f"labels of more than {MOST_FRAMES:,} frames, in {len(content):,} bytes" in message


def test_what_was_read_cannot_change_the_reader(write: Write) -> None:
    """BUILD sets attributes of whatever is there."""
    content = b"\x80\x02c_codecs\nencode\nN}X\x0c\x00\x00\x00__defaults__X\x06\x00\x00\x00latin1\x85s\x86b."
    assert "a state for a function" in message_of(write(content))


def test_lists_that_hold_each_other_many_times_are_no_labels(tmp_path):
    laughs = [0] * 10
    for _ in range(12):
        laughs = [laughs] * 10
    (tmp_path / "label.pickle").write_bytes(pickle.dumps({"a": laughs}))
    with pytest.raises(DatasetError, match="the labels of 'a' are not a row of phase indices"):
        read_labels(tmp_path / "label.pickle")


def test_a_label_file_beyond_all_measure_is_not_read(tmp_path):
    with (tmp_path / "label.pickle").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DatasetError, match="1,099,511,627,776 bytes, labels have at most"):
        read_labels(tmp_path / "label.pickle")
