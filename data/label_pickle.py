"""Safe reader for label.pickle.

A pickle can call any importable function. This reader follows the restricted-Unpickler pattern in
the Python documentation: it resolves only the names in `_ALLOWED`, and replaces NumPy's
reconstruction functions with its own, because NumPy trusts the memory layout that a pickle
declares.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.errors import DatasetError

MAX_BYTES = 8 << 20  # the published label files are smaller than 1 MB


class _DType:
    def __init__(self, code: str, *_: Any) -> None:
        if not isinstance(code, str) or np.dtype(code).kind not in "biuf":
            raise pickle.UnpicklingError("it contains an array that is not numeric")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: list[Any]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    def __init__(self, *_: Any) -> None:
        self.values: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: list[Any]) -> None:
        shape, dtype, _, content = state[-4:]
        self.values = _from_buffer(content, dtype, shape)


def _from_buffer(content: bytes, dtype: _DType, shape: Any, *_: Any) -> NDArray[Any]:
    return np.frombuffer(content, dtype.dtype).reshape(shape)


def _encode(text: str = "", encoding: str = "latin1") -> bytes:
    """Restore bytes, which pickle protocols 0 to 2 store as text with one character per byte."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("it contains bytes in an encoding other than latin1")
    return text.encode("latin1")


_ALLOWED: dict[str, Any] = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _DType,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy.core.multiarray.scalar": lambda dtype, content: _from_buffer(content, dtype, (1,))[0],
    "numpy.core.numeric._frombuffer": _from_buffer,
    "_codecs.encode": _encode,
    "builtins.bytes": _encode,
    "__builtin__.bytes": _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # NumPy 2 renamed the module to numpy._core.
        full_name = f"{module}.{name}".replace("numpy._core.", "numpy.core.")
        if full_name not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it refers to {module}.{name}"[:120] + ", which is not plain data"
            )
        return _ALLOWED[full_name]


def read_labels(path: Path) -> dict[str, tuple[int, ...]]:
    """Return a dict that maps file stems to the phase index of each frame."""
    if not path.is_file():
        raise DatasetError(f"{path}: missing or a folder. Download it again with the dataset.")
    if path.stat().st_size > MAX_BYTES:
        raise DatasetError(
            f"{path}: larger than {MAX_BYTES:,} bytes, which is too large for a label file"
        )
    try:
        with path.open("rb") as file:
            loaded = _Unpickler(file).load()
    except Exception as error:  # a malformed pickle can raise any exception
        reason = " ".join(str(error).split())[:200]
        raise DatasetError(
            f"{path}: not a readable label file ({reason}). Download it again."
        ) from error
    if not isinstance(loaded, dict) or not all(isinstance(stem, str) for stem in loaded):
        raise DatasetError(f"{path}: expected a dictionary that maps file stems to phase indices")
    labels: dict[str, tuple[int, ...]] = {}
    for stem, values in loaded.items():
        phases = _phases(values)
        if phases is None:
            raise DatasetError(
                f"{path}: the labels of {stem[:100]!r} are not a list of phase indices"
            )
        labels[stem] = tuple(phases.tolist())
    return labels


def _phases(values: Any) -> NDArray[np.int64] | None:
    """Convert labels to an integer array `(T,)`; return None if they are not nonnegative
    integers.
    """
    values = values.values if isinstance(values, _Array) else values
    if isinstance(values, list | tuple) and not all(
        isinstance(value, int | float | np.generic) for value in values
    ):
        return None
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        return None
    with np.errstate(invalid="ignore"):  # the comparison below rejects NaN and infinity
        phases = array.astype(np.int64)
    return None if (phases != array).any() or (phases < 0).any() else phases
