"""Reads label.pickle without running what a pickle can run.

A pickle is a program that may call anything importable. This reader admits lists, tuples, dicts by text, numbers,
strings and numpy arrays; a pickle that names anything else is refused by that name before it is looked up. Nor does
numpy unpickle its arrays, as it believes what a pickle says of its memory: they are put together here from their bytes.

A pickle may also say in a few bytes what takes all memory or forever: a tuple that holds another twice, which holds
another twice, and so on, is small until somebody looks into it. So what may be nested is never hashed, printed or made
an array.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from byov.errors import DatasetError

LARGEST_BYTES = 8 << 20  # of a label file; those of the published datasets have less than one
MOST_FRAMES = LARGEST_BYTES  # in one label file: a frame takes a byte or more, unless videos share their labels
_SHOWN_CHARACTERS = 100  # of a name that a pickle has


class ForbiddenName(pickle.UnpicklingError):
    """The pickle names something that is not plain data."""


def _content(content: Any = b"", encoding: str = "latin1") -> bytes:
    """Stands in for bytes and bytearray: of what there is in the file, and not of as many zeros as it likes."""
    if isinstance(content, str):
        return _latin1_bytes(content, encoding.replace("latin-1", "latin1"))
    if isinstance(content, bytes | bytearray):
        return bytes(content)
    raise pickle.UnpicklingError(f"bytes by a {type(content).__name__}, and not by their content")


class _DType:
    """Stands in for a numpy.dtype of numbers."""

    def __init__(self, code: str, *_: bool) -> None:
        self.numpy = np.dtype(_text(code))
        if self.numpy.kind not in "biuf":
            raise pickle.UnpicklingError(f"an array of {code!r}, which are not numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.numpy = self.numpy.newbyteorder(_text(state[1]))  # type: ignore[arg-type]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise pickle.UnpicklingError(f"a {type(value).__name__} in the place of a text")
    return value


class _Array:
    """Stands in for a numpy.ndarray, which gets its content after it is made."""

    def __init__(self, *_: Any) -> None:
        self.numpy: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, _, content = state[-4:]
        self.numpy = _from_bytes(content, dtype, shape)


def _from_bytes(content: Any, dtype: _DType, shape: tuple[int, ...], *_: Any) -> NDArray[Any]:
    if isinstance(content, str):  # as Python 2 spells bytes
        content = content.encode("latin1")
    return np.frombuffer(content, dtype.numpy).reshape(shape)


def _scalar(dtype: _DType, content: Any) -> Any:
    return _from_bytes(content, dtype, (1,))[0]


# How numpy 1 and 2 spell an array, a dtype and a scalar in a pickle.
_NUMPY: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _Array),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_bytes),
        )
    },
}


class _Content(io.BytesIO):
    """A file that says so where it ends too early."""

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        if size is not None and len(found) < size:
            raise EOFError("it breaks off")
        return found

    def readline(self, size: int | None = -1) -> bytes:
        found = super().readline(size)
        if not found.endswith(b"\n"):
            raise EOFError("it breaks off")
        return found


class _PlainDataUnpickler(pickle._Unpickler):  # in Python: in C, a single number in a pickle takes gigabytes of memo
    stack: list[Any]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _NUMPY:
            return _NUMPY[module, name]
        if module in ("builtins", "__builtin__") and name in ("bytes", "bytearray"):
            return _content
        if (module, name) == ("_codecs", "encode"):
            return _latin1_bytes
        raise ForbiddenName(f"{module}.{name}"[:_SHOWN_CHARACTERS])

    def _refuse_set(self) -> NoReturn:
        raise ForbiddenName("builtins.set")

    def _load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._put(items)

    def _load_setitem(self) -> None:
        items, self.stack[-2:] = self.stack[-2:], []
        self._put(items)

    def _load_setitems(self) -> None:
        self._put(self.pop_mark())

    def _put(self, items: list[Any]) -> None:
        """Keys and values in turn, into the dict on the stack. Keys are text: a tuple takes its time to be hashed."""
        filled = self.stack[-1]
        if not isinstance(filled, dict) or not all(isinstance(key, str) for key in items[::2]):
            raise pickle.UnpicklingError("expected a dict from file stem to phases")
        filled.update(zip(items[::2], items[1::2], strict=True))

    def _load_bytearray(self) -> None:
        """Only those that are there, however many it says."""
        self.append(self.read(int.from_bytes(self.read(8), "little")))

    def _load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _DType):
            raise pickle.UnpicklingError(f"a state for a {type(self.stack[-1]).__name__}")
        self.stack[-1].__setstate__(state)

    dispatch = dict[int, Any](pickle._Unpickler.dispatch) | {
        pickle.EMPTY_SET[0]: _refuse_set,
        pickle.FROZENSET[0]: _refuse_set,
        pickle.ADDITEMS[0]: _refuse_set,
        pickle.BYTEARRAY8[0]: _load_bytearray,
        pickle.DICT[0]: _load_dict,
        pickle.SETITEM[0]: _load_setitem,
        pickle.SETITEMS[0]: _load_setitems,
        pickle.BUILD[0]: _load_build,
    }


def _latin1_bytes(text: str, encoding: str) -> bytes:
    """How protocol 2 spells the bytes of an array: text of one character per byte."""
    if _text(encoding) != "latin1":
        raise ForbiddenName(f"_codecs.encode with {encoding[:_SHOWN_CHARACTERS]!r}")
    return text.encode("latin1")


def read_labels(path: Path) -> dict[str, tuple[int, ...]]:
    """File stem → phase index of each frame."""
    labels: dict[str, tuple[int, ...]] = {}
    frames = 0
    for stem, values in _unpickle(path).items():
        row = _row(path, stem, values)
        frames += len(row)
        if frames > MOST_FRAMES:
            raise DatasetError(f"{path}: labels of more than {MOST_FRAMES:,} frames, in {path.stat().st_size:,} bytes")
        labels[stem] = tuple(row.tolist())
    return labels


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise DatasetError(f"{path}: {path.stat().st_size:,} bytes, labels have at most {LARGEST_BYTES:,}")
        labels = _PlainDataUnpickler(_Content(path.read_bytes()), encoding="latin1").load()
    except FileNotFoundError:
        raise DatasetError(f"{path}: not there; it is part of the dataset's download") from None
    except ForbiddenName as error:
        raise DatasetError(
            f"{path}: refused, it names {error}, which is not plain data; nothing of it was run"
        ) from None
    except (OSError, DatasetError):
        raise
    except (Exception, MemoryError) as error:  # a broken pickle can raise anything
        reason = " ".join(str(error).split())  # some have several lines
        raise DatasetError(f"{path}: not a readable label file ({type(error).__name__}: {reason})") from error
    if not isinstance(labels, dict) or not all(isinstance(stem, str) for stem in labels):
        raise DatasetError(f"{path}: expected a dict from file stem to phases, found {type(labels).__name__}")
    return labels


def _row(path: Path, stem: str, values: Any) -> NDArray[np.int64]:
    """The phase of each frame; raises unless it is a row of whole numbers."""
    try:
        array = _array(values)
        with np.errstate(invalid="ignore"):  # of NaN and infinity, which are not what they become
            phases: NDArray[np.int64] = array.astype(np.int64)
    except (ValueError, OverflowError):
        array = phases = np.empty((), np.int64)
    if array.ndim != 1 or array.dtype.kind not in "biuf" or (phases != array).any() or (phases < 0).any():
        raise DatasetError(f"{path}: the labels of {stem[:_SHOWN_CHARACTERS]!r} are not a row of phase indices")
    return phases


def _array(values: Any) -> NDArray[Any]:
    """Of an array or of a list of numbers; lists of others could hold each other many times over, beyond any memory."""
    if isinstance(values, _Array | np.ndarray):
        return values.numpy if isinstance(values, _Array) else values
    is_row = isinstance(values, list | tuple) and all(isinstance(value, int | float | np.generic) for value in values)
    return np.asarray(values) if is_row else np.empty(())
