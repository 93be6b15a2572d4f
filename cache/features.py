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
    frames: int
    fps: float
    truncated: bool  # the source broke off, and its user chose to keep the frames before the break
    ratios: tuple[str, ...]
    columns: dict[str, tuple[tuple[int, ...], str]]  # name → shape, dtype
    pts_seconds: NDArray[np.float64]


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
        datasets = {name: _own_dataset(file, name) for name in _datasets(file)}
        columns = {name: (dataset.shape, str(dataset.dtype)) for name, dataset in datasets.items()}
        pts_seconds = datasets["pts_seconds"][:] if "pts_seconds" in datasets else np.empty(0)
    try:
        return Header(
            path=path,
            provenance=Provenance(
                **{field.name: _attribute(attrs, field.name, field.type) for field in fields(Provenance)}
            ),
            frames=_frames(columns),
            fps=_finite(_attribute(attrs, "fps", float)),
            truncated=_attribute(attrs, "truncated", bool),
            ratios=tuple(_ratio(name) for name in columns if name.startswith("merged/")),
            columns=columns,
            pts_seconds=pts_seconds,
        )
    except (KeyError, ValueError) as error:
        raise CacheError(f"{path}: incomplete header ({error}); delete it and run byov-extract again") from error


def read_array(path: Path, name: str) -> NDArray[Any]:
    """One column as an array: "merged/0.3", "cls", "order" or "pts_seconds"."""
    with open_file(path) as file:
        there = _datasets(file)
        if name not in there:
            raise CacheError(f"{path}: no {name}; it holds {', '.join(there)}")
        values: NDArray[Any] = _own_dataset(file, name)[:]
        return values


def read_attributes(item: h5py.File | h5py.Dataset) -> dict[str, Any]:
    """Attributes as Python's own values; of the kinds that byov writes, since HDF5 is not safe to read all others."""
    values: dict[str, Any] = {}
    for name in item.attrs:
        stored = item.attrs.get_id(name)
        if stored.shape != () or stored.dtype.kind not in "biufS":
            raise ValueError(f"attribute {name!r} is neither a number nor text of fixed length")
        value = item.attrs[name].item()
        values[name] = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    return values


def _datasets(file: h5py.File) -> list[str]:
    """The names of the arrays in the file itself; those behind soft and external links are not visited."""
    names: list[str] = []

    def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            if not isinstance(name, str):
                raise ValueError(f"{name!r} is not a name in UTF-8")
            names.append(name)

    file.visititems(visit)
    return names


def _own_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset of numbers whose bytes lie in the file: others could draw in other files, or more than memory holds."""
    dataset = file[name]
    if dataset.id.get_create_plist().get_layout() != h5py.h5d.CHUNKED or dataset.dtype.kind not in "fiu":
        raise ValueError(f"{name!r} is not an array that byov writes")
    if dataset.nbytes > file.id.get_filesize():
        raise ValueError(f"{name!r} claims {dataset.nbytes} bytes, more than the file has")
    chunks = prod(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    if dataset.id.get_num_chunks() != chunks:  # HDF5 would read the missing ones as zeros
        raise ValueError(f"{name!r} lacks blocks")
    return dataset


def _attribute(attrs: dict[str, Any], name: str, kind: Any) -> Any:
    value = attrs[name]
    if type(value) is not kind:
        raise ValueError(f"{name} is not of type {kind.__name__}")
    return value


def _finite(value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"{value} is not a number of frames per second")
    return value


def _frames(columns: dict[str, tuple[tuple[int, ...], str]]) -> int:
    """The number of rows that all columns share, once each has the type and rank that byov writes."""
    frames = columns["pts_seconds"][0][0]
    for name, (shape, dtype) in columns.items():
        if dtype != _DTYPES.get(name, STORED_DTYPE) or len(shape) != (1 if name == "pts_seconds" else 2):
            raise ValueError(f"{name!r} is {dtype} of shape {shape}")
        if shape[0] != frames:
            raise ValueError(f"{name!r} has {shape[0]} rows, pts_seconds {frames}")
    return frames


def _ratio(name: str) -> str:
    ratio = name.removeprefix("merged/")
    if ratio != ratio_key(float(ratio)):
        raise ValueError(f"{ratio!r} is not a ratio")
    return ratio
