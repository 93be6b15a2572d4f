"""Reads label.pickle without running what a pickle can run.

A pickle is a program that may call anything importable. This reader admits containers, numbers, strings and numpy
arrays; a pickle that names anything else is refused by that name before it is looked up. Nor does numpy unpickle its
arrays, as it believes what a pickle says of its memory: they are put together here from their bytes.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.errors import DatasetError

_BUILTINS = {"set": set, "frozenset": frozenset, "bytearray": bytearray, "bytes": bytes}


class ForbiddenName(pickle.UnpicklingError):
    """The pickle names something that is not plain data."""


class _DType:
    """Stands in for a numpy.dtype of numbers."""

    def __init__(self, code: str, *_: bool) -> None:
        self.numpy = np.dtype(str(code))
        if self.numpy.kind not in "biuf":
            raise pickle.UnpicklingError(f"an array of {code!r}, which are not numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.numpy = self.numpy.newbyteorder(state[1])


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


class _PlainDataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _NUMPY:
            return _NUMPY[module, name]
        if module in ("builtins", "__builtin__") and name in _BUILTINS:
            return _BUILTINS[name]
        if (module, name) == ("_codecs", "encode"):
            return _latin1_bytes
        raise ForbiddenName(f"{module}.{name}")


def _latin1_bytes(text: str, encoding: str) -> bytes:
    """How protocol 2 spells the bytes of an array: text of one character per byte."""
    if encoding != "latin1":
        raise ForbiddenName(f"_codecs.encode with {encoding!r}")
    return text.encode("latin1")


def read_labels(path: Path) -> dict[str, tuple[int, ...]]:
    """File stem → phase index of each frame."""
    return {stem: _phase_indices(path, stem, values) for stem, values in _unpickle(path).items()}


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            labels = _PlainDataUnpickler(file, encoding="latin1").load()
    except FileNotFoundError:
        raise DatasetError(f"{path}: not there; it is part of the dataset's download") from None
    except ForbiddenName as error:
        raise DatasetError(
            f"{path}: refused, it names {error}, which is not plain data; nothing of it was run"
        ) from None
    except OSError:
        raise
    except (Exception, MemoryError) as error:  # a broken pickle can raise anything
        reason = " ".join(str(error).split())  # some have several lines
        raise DatasetError(f"{path}: not a readable label file ({type(error).__name__}: {reason})") from error
    if not isinstance(labels, dict) or not all(isinstance(stem, str) for stem in labels):
        raise DatasetError(f"{path}: expected a dict from file stem to phases, found {type(labels).__name__}")
    return labels


def _phase_indices(path: Path, stem: str, values: Any) -> tuple[int, ...]:
    try:
        array = values.numpy if isinstance(values, _Array) else np.asarray(values)
    except ValueError:
        array = np.empty(())
    whole = array.dtype.kind in "iub" or (
        array.dtype.kind == "f" and bool(np.all(np.isfinite(array) & (array == np.floor(array))))
    )
    if array.ndim != 1 or not whole or (array.size and array.min() < 0):
        raise DatasetError(f"{path}: the labels of {stem!r} are not a row of phase indices")
    return tuple(int(value) for value in array)
