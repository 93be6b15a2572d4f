"""One video's features: what its file holds, how it is written, and how it is read back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from math import isfinite, prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from byov.cache.errors import CacheError
from byov.cache.layout import ratio_key
from byov.cache.rows import RowWriter

SCHEMA_VERSION = 1
STORED_DTYPE = "float16"
_DTYPES = {"order": "uint16", "pts_seconds": "float64"}  # the columns that are no features


@dataclass(frozen=True)
class Provenance:
    """Where a file's numbers come from. Two files may stand in one cache only if their recipes agree."""

    encoder: str
    encoder_revision: str
    encoder_sha256: str
    preprocessing: str
    compute_dtype: str
    decoder: str
    source_name: str
    source_bytes: int
    source_sha256: str  # of the whole file
    source_fingerprint: str  # of a sample of it, quick enough to look at on every run
    stored_dtype: str = STORED_DTYPE
    schema_version: int = SCHEMA_VERSION
    byov_version: str = version("byov")

    def recipe(self) -> dict[str, str]:
        """What must be the same in all files of one encoder's folder."""
        return {
            "encoder": self.encoder,
            "revision": self.encoder_revision,
            "weights": self.encoder_sha256,
            "preprocessing": self.preprocessing,
        }


@dataclass(frozen=True)
class Header:
    """What a file says of itself, and the times of its frames; without the large arrays."""

    path: Path
    provenance: Provenance
    fps: float
    truncated: bool  # the source broke off, and its user chose to keep the frames before the break
    ratios: tuple[str, ...]
    pts_seconds: NDArray[np.float64]

    @property
    def frames(self) -> int:
        return len(self.pts_seconds)


class FeatureWriter:
    """Writes one video's file; see RowWriter for how it stays whole."""

    def __init__(self, path: Path, ratios: Sequence[float], tokens: int, width: int, *, has_cls: bool) -> None:
        columns: dict[str, tuple[tuple[int, ...], str]] = {
            f"merged/{ratio_key(ratio)}": ((width,), STORED_DTYPE) for ratio in ratios
        }
        if has_cls:
            columns["cls"] = ((width,), STORED_DTYPE)
        columns["order"] = ((tokens,), _DTYPES["order"])
        columns["pts_seconds"] = ((), _DTYPES["pts_seconds"])
        self._rows = RowWriter(path, columns)

    @property
    def frames(self) -> int:
        return self._rows.rows

    def append(
        self,
        merged: dict[float, NDArray[Any]],
        order: NDArray[Any],
        cls: NDArray[Any] | None,
        pts_seconds: NDArray[np.float64],
    ) -> None:
        rows = {f"merged/{ratio_key(ratio)}": values for ratio, values in merged.items()}
        rows |= {"order": order, "pts_seconds": pts_seconds}
        if cls is not None:
            rows["cls"] = cls
        self._rows.append(rows)

    def finish(self, provenance: Provenance, *, fps: float, truncated: bool) -> None:
        self._rows.finish(asdict(provenance) | {"fps": float(fps), "truncated": truncated, "complete": True})

    def close(self) -> None:
        self._rows.close()


@contextmanager
def open_file(path: Path) -> Iterator[h5py.File]:
    """Open a cache file for reading; what cannot be opened, or read once open, is named."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, KeyError, RuntimeError, TypeError, ValueError, MemoryError) as error:  # h5py's, of damaged files
        if isinstance(error, FileNotFoundError):
            raise CacheError(f"{path}: no such file") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CacheError(
            f"{path}: not a readable cache file ({reason}); delete it and run byov-extract again"
        ) from error


def read_header(path: Path) -> Header:
    """What a file says of itself; raises CacheError if it is not a whole file of this schema."""
    with open_file(path) as file:
        attrs = read_attributes(file)
        schema = attrs.get("schema_version")
        if type(schema) is not int or schema != SCHEMA_VERSION:
            raise CacheError(
                f"{path}: cache schema {schema!r}, this byov reads {SCHEMA_VERSION}; run byov-extract --overwrite"
            )
        if attrs.get("complete") is not True:
            raise CacheError(f"{path}: not marked complete; delete it and run byov-extract again")
        ratios = _ratios(file)
        pts_seconds = _read_checked(file, "pts_seconds")
    try:
        return Header(
            path=path,
            provenance=Provenance(
                **{field.name: _attribute(attrs, field.name, field.type) for field in fields(Provenance)}
            ),
            fps=_finite(_attribute(attrs, "fps", float)),
            truncated=_attribute(attrs, "truncated", bool),
            ratios=ratios,
            pts_seconds=pts_seconds,
        )
    except (KeyError, ValueError) as error:
        raise CacheError(f"{path}: incomplete header ({error}); delete it and run byov-extract again") from error


def read_columns(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name → (shape, dtype) of every array; raises CacheError unless all are as byov writes them."""
    with open_file(path) as file:
        datasets = {name: _open_checked(file, name) for name in _names(file)}
        columns = {name: (dataset.shape, str(dataset.dtype)) for name, dataset in datasets.items()}
        for name, (shape, _) in columns.items():
            _check_rows(file, name, shape[0])
        return columns


def read_array(path: Path, name: str) -> NDArray[Any]:
    """One column as an array: "merged/0.3", "cls", "order" or "pts_seconds"."""
    with open_file(path) as file:
        there = _names(file)
        if name not in there:
            raise CacheError(f"{path}: no {name}; it holds {', '.join(there)}")
        values = _read_checked(file, name)
        _check_rows(file, name, len(values))
        return values


# From here on h5py's low-level interface: a run over a large cache reads a header per video, and the high-level one
# takes several times as long.


def read_attributes(item: h5py.File | h5py.Dataset) -> dict[str, Any]:
    """Attributes as Python's own values; of the kinds that byov writes, since HDF5 is not safe to read all others."""
    values: dict[str, Any] = {}
    for index in range(h5py.h5a.get_num_attrs(item.id)):
        stored = h5py.h5a.open(item.id, index=index)
        name, kind = stored.name.decode("utf-8", "surrogateescape"), stored.get_type()
        is_text = isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str()
        dtype = np.dtype(f"S{kind.get_size()}") if is_text else stored.dtype
        if stored.shape != () or dtype.kind not in "biufS":
            raise ValueError(f"attribute {name!r} is neither a number nor text of fixed length")
        array = np.empty((), dtype)
        stored.read(array, mtype=kind if is_text else None)
        value = array.item()
        values[name] = value.decode("utf-8", "surrogateescape") if is_text else value
    return values


def _names(file: h5py.File) -> list[str]:
    """The names in the file itself, one level below merged/; what lies behind soft and external links is left out."""
    plain = [name for name in _links(file.id) if name != "merged"]
    return sorted(plain + [f"merged/{ratio}" for ratio in _ratios(file)])


def _ratios(file: h5py.File) -> tuple[str, ...]:
    if "merged" not in _links(file.id):
        return ()
    group = h5py.h5o.open(file.id, b"merged")
    if not isinstance(group, h5py.h5g.GroupID):
        raise ValueError("'merged' is not a group")
    ratios = tuple(_links(group))
    for ratio in ratios:
        if ratio != ratio_key(float(ratio)):
            raise ValueError(f"{ratio!r} is not a ratio")
    return ratios


def _links(group: h5py.h5g.GroupID) -> list[str]:
    """Hard links only: others could lead to other files. A name that is not UTF-8 raises a ValueError."""
    return [raw.decode() for raw in group if group.links.get_info(raw).type == h5py.h5l.TYPE_HARD]


def _open_checked(file: h5py.File, name: str) -> h5py.h5d.DatasetID:
    """A dataset of numbers whose bytes lie in the file: others could draw in other files, or more than memory holds."""
    dataset = h5py.h5o.open(file.id, name.encode())
    if not isinstance(dataset, h5py.h5d.DatasetID):
        raise ValueError(f"{name!r} is not an array")
    settings, shape, dtype = dataset.get_create_plist(), dataset.shape, dataset.dtype
    if settings.get_layout() != h5py.h5d.CHUNKED:
        raise ValueError(f"{name!r} is not an array that byov writes")
    if dtype != _DTYPES.get(name, STORED_DTYPE) or len(shape) != (1 if name == "pts_seconds" else 2):
        raise ValueError(f"{name!r} is {dtype} of shape {shape}")
    size_bytes = prod(shape) * dtype.itemsize
    if size_bytes > file.id.get_filesize():
        raise ValueError(f"{name!r} claims {size_bytes} bytes, more than the file has")
    chunks = prod(-(-size // chunk) for size, chunk in zip(shape, settings.get_chunk(), strict=True))
    if dataset.get_num_chunks() != chunks:  # HDF5 would read the missing ones as zeros
        raise ValueError(f"{name!r} lacks blocks")
    return dataset


def _check_rows(file: h5py.File, name: str, rows: int) -> None:
    frames = _open_checked(file, "pts_seconds").shape[0]
    if rows != frames:
        raise ValueError(f"{name!r} has {rows} rows, pts_seconds {frames}")


def _read_checked(file: h5py.File, name: str) -> NDArray[Any]:
    dataset = _open_checked(file, name)
    values: NDArray[Any] = np.empty(dataset.shape, dataset.dtype)
    if values.size:
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def _attribute(attrs: dict[str, Any], name: str, kind: Any) -> Any:
    value = attrs[name]
    if type(value) is not kind:
        raise ValueError(f"{name} is not of type {kind.__name__}")
    return value


def _finite(value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"{value} is not a number of frames per second")
    return value
