"""HDF5 files with named columns, one row per frame, and SHA-256 digests.

The root attributes include `columns` (JSON that maps column names to digests of their bytes),
`frames` (the number of rows) and `header_sha256` (digest of all other attributes). Reading verifies
these digests, and rejects files that were crafted to read other files or exhaust memory.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from byov.cache.atomic import PartialFile, creation
from byov.cache.digests import array_sha256, check_schema, json_sha256
from byov.cache.layout import extract_command, ratio_key
from byov.errors import CacheError, StaleError
from byov.files import check_regular, parse_json
from byov.records import problem

STORED_DTYPE = "float16"
# Other columns use STORED_DTYPE.
DTYPES = {"order": "uint16", "pts_seconds": "float64", "embedding": "float32"}
EXTRACT_AGAIN = "delete it and run byov-extract again"

CHUNK_ROWS = 64  # rows per chunk; a short video wastes less than one chunk
BLOCK_ROWS = 4 * CHUNK_ROWS  # rows per write; every HDF5 call has a fixed cost
MAX_ATTRIBUTES = 64
MAX_ATTRIBUTE_BYTES = 1 << 16


class RowWriter:
    """Append-only writer.

    The first `append` defines the columns; the file appears only after `finish`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._written_rows = 0
        self._reserved_bytes = 0
        self._pending: dict[str, NDArray[Any]] = {}
        self._digests: dict[str, Any] = {}
        with creation:
            self._partial = PartialFile(path)
            try:
                self._reserve(1 << 20)  # for HDF5's own structures
                # PartialFile holds its own lock, which conflicts with HDF5's on some file systems.
                self._file = h5py.File(self._partial.path, "w", locking=False, rdcc_nbytes=0)
                self._reserve(0)  # reserve the space again, since opening the file truncated it
            except BaseException:
                self._partial.discard()
                raise

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Append n rows to every column, as arrays of shape `(n, *row_shape)`."""
        if not self._pending:
            self._pending = {
                name: np.empty((0, *values.shape[1:]), DTYPES.get(name, values.dtype))
                for name, values in rows.items()
            }
            self._digests = {name: hashlib.sha256() for name in rows}
        lengths = {len(values) for values in rows.values()}
        if rows.keys() != self._pending.keys() or len(lengths) > 1:
            given = ", ".join(f"{name} ({len(values)} rows)" for name, values in rows.items())
            raise ValueError(
                f"columns {given}; expected {', '.join(self._pending)} of the same length"
            )
        for name, pending in self._pending.items():
            self._pending[name] = np.concatenate((pending, rows[name].astype(pending.dtype)))
        self.rows += lengths.pop()
        while self.rows - self._written_rows >= BLOCK_ROWS:
            self._write(BLOCK_ROWS)

    def finish(self, attributes: Mapping[str, str | int | float | bool]) -> None:
        """Write the remaining rows and the attributes, then move the file to its final name."""
        if self.rows > self._written_rows or not self.rows:
            self._write(self.rows - self._written_rows)
        digests = {name: self._digests[name].hexdigest() for name in sorted(self._digests)}
        header = {**attributes, "frames": self.rows, "columns": json.dumps(digests)}
        header["header_sha256"] = json_sha256(header)
        for name in sorted(header):
            self._file.attrs[name] = stored_attribute(header[name])
        self._file.flush()
        size = self._file.id.get_filesize()
        self._file.close()
        os.truncate(self._partial.path, size)  # release unused reserved space
        self._partial.commit()

    def close(self) -> None:
        """Close the file, and discard it if it is unfinished."""
        if self._file:
            self._file.close()
        self._partial.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, count: int) -> None:
        row_bytes = sum(rows.itemsize * prod(rows.shape[1:]) for rows in self._pending.values())
        # HDF5 allocates whole chunks.
        self._reserve(-(-count // CHUNK_ROWS) * CHUNK_ROWS * row_bytes)
        for name, pending in self._pending.items():
            block = pending[:count]
            self._pending[name] = pending[count:]
            self._digests[name].update(np.ascontiguousarray(block).data)
            if name not in self._file:
                self._file.create_dataset(
                    name,
                    shape=(0, *block.shape[1:]),
                    maxshape=(None, *block.shape[1:]),
                    chunks=(CHUNK_ROWS, *block.shape[1:]),
                    dtype=block.dtype,
                )
            dataset = self._file[name]
            dataset.resize(self._written_rows + count, axis=0)
            dataset[self._written_rows :] = block
        self._written_rows += count

    def _reserve(self, size_bytes: int) -> None:
        """Allocate disk space in advance, because HDF5 crashes the process when one of its own
        writes fails.
        """
        self._reserved_bytes += int(size_bytes * 1.02)  # 2% for HDF5's own structures
        if not hasattr(os, "posix_fallocate"):
            return
        descriptor = os.open(self._partial.path, os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, 0, self._reserved_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from None
        finally:
            os.close(descriptor)


def stored_attribute(value: str | int | float | bool) -> NDArray[Any] | int | float | bool:
    """Convert an attribute for storage: strings get a fixed length.

    A single damaged byte in a variable-length string can hang or crash HDF5.
    """
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "surrogateescape")
    return np.array(text, dtype=h5py.string_dtype("utf-8", max(len(text), 1)))


@contextmanager
def open_file(path: Path, remedy: str = EXTRACT_AGAIN) -> Iterator[h5py.File]:
    """Open a file for reading.

    Errors in the block become a CacheError with the file name and the remedy.
    """
    try:
        check_regular(path)
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except FileNotFoundError:
        raise CacheError(f"{path}: no such file") from None
    except MemoryError as error:
        raise CacheError(f"{path}: not enough memory to read it") from error
    except ValidationError as error:
        raise CacheError(f"{path}: incomplete header ({problem(error)}); {remedy}") from None
    # Damaged file.
    except (OSError, KeyError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CacheError(f"{path}: not a readable cache file ({reason}); {remedy}") from error


def read_header_attributes(file: h5py.File) -> dict[str, Any]:
    """Return the root attributes of a finished file, with `columns` as a dict mapping names to
    digests.
    """
    attributes = read_attributes(file)
    check_schema(attributes.get("schema_version"), file.filename)
    if attributes.get("complete") is not True:
        raise ValueError("not marked complete")
    if attributes.pop("header_sha256", None) != json_sha256(attributes):
        raise ValueError("its attributes do not match their digest")
    columns = parse_json(attributes["columns"])
    if sorted(columns) != _column_names(file):
        raise ValueError(
            f"it contains {' '.join(_column_names(file))}, but its header lists {' '.join(columns)}"
        )
    return attributes | {"columns": columns}


def read_columns(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return a dict that maps column names to (shape, dtype), without reading the values."""
    with open_file(path) as file:
        datasets = {name: _open_dataset(file, name) for name in _column_names(file)}
        return {name: (dataset.shape, str(dataset.dtype)) for name, dataset in datasets.items()}


def read_array(
    path: Path, name: str, *, remedy: str = EXTRACT_AGAIN, sha256: str | None = None
) -> NDArray[Any]:
    """Read a column and verify its digest; raise StaleError if it differs from `sha256` (the file
    was replaced).
    """
    with open_file(path, remedy) as file:
        digest = column_digest(file, path, name)
        if sha256 not in (None, digest):
            raise StaleError(f"{path}: replaced while it was in use; run the command again")
        if name not in _column_names(file):
            raise ValueError(f"it has no column {name}")
        dataset = _open_dataset(file, name)
        values: NDArray[Any] = np.empty(dataset.shape, dataset.dtype)
        if values.size:
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
        if array_sha256(values) != digest:
            raise ValueError(f"{name} does not match its digest")
        return values


def read_digest(path: Path, name: str) -> str:
    """Return the recorded SHA-256 of a column."""
    with open_file(path) as file:
        return column_digest(file, path, name)


def column_digest(file: h5py.File, path: Path, name: str) -> str:
    """Return the recorded SHA-256 of a column in an open file."""
    digests: dict[str, str] = parse_json(_read_attribute(h5py.h5a.open(file.id, b"columns")))
    if name not in digests:
        advice = ""
        if name.startswith("merged/"):
            encoder = _read_attribute(h5py.h5a.open(file.id, b"encoder"))
            command = extract_command(path.parents[2].name, encoder, name.removeprefix("merged/"))
            advice = f"; run {command}"
        raise CacheError(f"{path}: no {name}; it contains {', '.join(sorted(digests))}{advice}")
    return digests[name]


# The functions below use h5py's low-level API, since the high-level one follows links and is
# several times slower.


def read_attributes(file: h5py.File) -> dict[str, Any]:
    """Return the root attributes as Python values."""
    count = h5py.h5a.get_num_attrs(file.id)
    if count > MAX_ATTRIBUTES:
        raise ValueError(f"{count} attributes, at most {MAX_ATTRIBUTES} are allowed")
    stored = [h5py.h5a.open(file.id, index=index) for index in range(count)]
    return {item.name.decode("utf-8", "surrogateescape"): _read_attribute(item) for item in stored}


def read_attribute(file: h5py.File, name: str) -> Any:
    """Return a root attribute of an open file as a Python value."""
    return _read_attribute(h5py.h5a.open(file.id, name.encode()))


def _read_attribute(stored: h5py.h5a.AttrID) -> Any:
    """Read a number or fixed-length string; other attribute types are unsafe to read from a damaged
    file.
    """
    kind = stored.get_type()
    is_text = isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str()
    dtype = np.dtype(f"S{kind.get_size()}") if is_text else stored.dtype
    if stored.shape != () or dtype.kind not in "biufS" or dtype.itemsize > MAX_ATTRIBUTE_BYTES:
        raise ValueError(
            f"attribute {stored.name!r} is neither a number nor a short fixed-length string"
        )
    value = np.empty((), dtype)
    stored.read(value, mtype=kind if is_text else None)
    return value.item().decode("utf-8", "surrogateescape") if is_text else value.item()


def _column_names(file: h5py.File) -> list[str]:
    """Return the names of all datasets in the root group and in the merged/ group."""
    names = _link_names(file.id)
    if "merged" not in names:
        return sorted(names)
    group = h5py.h5o.open(file.id, b"merged")
    if not isinstance(group, h5py.h5g.GroupID):
        raise ValueError("'merged' is not a group")
    ratios = _link_names(group)
    for ratio in ratios:
        if ratio != ratio_key(float(ratio)):
            raise ValueError(f"{ratio!r} is not a ratio")
    return sorted(
        [name for name in names if name != "merged"] + [f"merged/{ratio}" for ratio in ratios]
    )


def _link_names(group: h5py.h5g.GroupID) -> list[str]:
    """Return the names of hard links; soft and external links could point to other files."""
    return [
        name.decode() for name in group if group.links.get_info(name).type == h5py.h5l.TYPE_HARD
    ]


def _open_dataset(file: h5py.File, name: str) -> h5py.h5d.DatasetID:
    """Open a dataset after checking that it has the storage layout of RowWriter.

    Other layouts could refer to other files, or take unbounded time and memory to read.
    """
    dataset = h5py.h5o.open(file.id, name.encode())
    if not isinstance(dataset, h5py.h5d.DatasetID):
        raise ValueError(f"{name!r} is not an array")
    settings = dataset.get_create_plist()
    shape = dataset.shape
    dtype = dataset.dtype
    if dtype != DTYPES.get(name, STORED_DTYPE) or len(shape or ()) != (
        1 if name == "pts_seconds" else 2
    ):
        raise ValueError(f"{name!r} has unexpected dtype {dtype} or shape {shape}")
    if prod(shape) * dtype.itemsize > file.id.get_filesize():
        raise ValueError(f"{name!r} of shape {shape} is larger than the file")
    if (
        settings.get_layout() != h5py.h5d.CHUNKED
        or settings.get_chunk() != (CHUNK_ROWS, *shape[1:])
        or settings.get_nfilters()
    ):
        raise ValueError(f"{name!r} has a storage layout that byov does not write")
    # HDF5 would return zeros for missing chunks.
    if dataset.get_num_chunks() != -(-shape[0] // CHUNK_ROWS):
        raise ValueError(f"{name!r} has missing chunks")
    return dataset
