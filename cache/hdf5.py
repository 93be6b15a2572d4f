"""Reading back what RowWriter has written: arrays of one row per frame, and attributes; hostile files included.

Whatever is read is compared with its digest: an array with that of its bytes, the attributes with that of all of them.
"""

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from byov.cache.atomic import PartialFile, creation
from byov.cache.digests import header_digest
from byov.cache.layout import ratio_key
from byov.errors import CacheError

CHUNK_ROWS = 64  # unit of storage: what a short video wastes at most, what a read of one frame costs
BLOCK_ROWS = 4 * CHUNK_ROWS  # unit of writing: each call into HDF5 costs, whatever it writes
# HDF5's own structures: a fixed part for headers, attributes and trees, and a small share of the data.
METADATA_BYTES, METADATA_SHARE = 1 << 20, 0.02


class RowWriter:
    """Appends rows to the named columns; the file appears under its name only after `finish`.

    columns: name → (shape of one row, dtype). Used as a context manager; leaving it without `finish` leaves nothing.
    """

    def __init__(self, path: Path, columns: Mapping[str, tuple[tuple[int, ...], DTypeLike]]) -> None:
        self.path = path
        self.rows = 0  # appended so far
        self._buffered = 0  # of these, not yet in the file
        self._reserved_bytes = 0
        self._columns = {
            name: _Column(name, row_shape, np.dtype(dtype)) for name, (row_shape, dtype) in columns.items()
        }
        with creation:
            self._partial = PartialFile(path)
            try:
                self._reserve(METADATA_BYTES)
                # The partial file carries our own lock (see atomic); HDF5's would collide with it.
                self._file = h5py.File(self._partial.path, "w", locking=False, rdcc_nbytes=0)
                self._reserve(0)  # opening has emptied the file
            except BaseException:
                self._partial.discard()
                raise

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Add rows: one array (n, *row shape) for each column, n the same for all."""
        if rows.keys() != self._columns.keys():
            raise ValueError(f"columns {', '.join(rows)}; expected {', '.join(self._columns)}")
        counts = {name: len(values) for name, values in rows.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(f"columns of different length: {counts}")
        for name, column in self._columns.items():
            column.check(rows[name])
        first, end = 0, next(iter(counts.values()))
        while first < end:
            count = min(end - first, BLOCK_ROWS - self._buffered)
            for name, column in self._columns.items():
                column.block[self._buffered : self._buffered + count] = rows[name][first : first + count]
            first += count
            self.rows += count
            self._buffered += count
            if self._buffered == BLOCK_ROWS:
                self._write_block()

    def finish(self, attrs: Mapping[str, str | int | float | bool]) -> None:
        """Write what is left and the attributes, close the file, and give it its name."""
        if self._buffered or not self.rows:
            self._write_block()
        for name, column in self._columns.items():
            # Its name too: a damaged link could give one column the name of another.
            for key, value in (("column", name), ("sha256", column.digest.hexdigest())):
                self._file[name].attrs[key] = _storable(value)
        header = dict(attrs) | {"columns": " ".join(sorted(self._columns))}
        header["header_sha256"] = header_digest(header)
        for key in sorted(header):
            self._file.attrs[key] = _storable(header[key])
        self._file.flush()
        size = self._file.id.get_filesize()
        self._file.close()
        os.truncate(self._partial.path, size)  # give back what was reserved and not needed
        self._partial.commit()

    def close(self) -> None:
        """Drop the file, unless it is finished."""
        if self._file:
            self._file.close()
        self._partial.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_block(self) -> None:
        count, written = self._buffered, self.rows - self._buffered
        self._reserve(stored_rows(count) * sum(column.row_bytes for column in self._columns.values()))
        for name, column in self._columns.items():
            if column.dataset is None:
                column.dataset = self._file.create_dataset(
                    name,
                    shape=(0, *column.row_shape),
                    maxshape=(None, *column.row_shape),
                    chunks=(CHUNK_ROWS, *column.row_shape),
                    dtype=column.block.dtype,
                    fletcher32=True,  # a rotten block raises on read instead of giving wrong numbers
                )
            column.digest.update(column.block[:count].data)
            column.dataset.resize(self.rows, axis=0)
            column.dataset[written:] = column.block[:count]
        self._buffered = 0

    def _reserve(self, data_bytes: int) -> None:
        """Claim disk space before HDF5 needs it: HDF5 crashes the process when a write of its own finds none."""
        self._reserved_bytes += int(data_bytes * (1 + METADATA_SHARE))
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


def stored_rows(rows: int) -> int:
    """For how many there is room on disk: chunks are whole.

    >>> stored_rows(1)
    64
    """
    return -(-rows // CHUNK_ROWS) * CHUNK_ROWS


def _storable(value: str | int | float | bool) -> NDArray[Any] | int | float | bool:
    """Text as bytes of fixed length: of variable length, one damaged byte can hang or crash HDF5's reading of it."""
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "surrogateescape")
    return np.array(text, dtype=h5py.string_dtype("utf-8", max(len(text), 1)))


class _Column:
    """One dataset: the rows on their way to it and the digest of all its rows so far."""

    def __init__(self, name: str, row_shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.name, self.row_shape = name, row_shape
        self.block = np.empty((BLOCK_ROWS, *row_shape), dtype)
        self.dataset: h5py.Dataset | None = None  # made with the first block
        self.digest = hashlib.sha256()
        self.row_bytes = self.block.nbytes // BLOCK_ROWS

    def check(self, rows: NDArray[Any]) -> None:
        if rows.shape[1:] != self.row_shape:
            raise ValueError(f"{self.name}: rows of shape {rows.shape[1:]}, expected {self.row_shape}")


STORED_DTYPE = "float16"
DTYPES = {"order": "uint16", "pts_seconds": "float64", "embedding": "float32"}  # all other columns: STORED_DTYPE
EXTRACT_AGAIN = "delete it and run byov-extract again"
# Of feature and embedding files alike. Those of 1, up to byov 0.2, have digests of their arrays only.
SCHEMA_VERSION, SCHEMAS = 2, (1, 2)


@contextmanager
def open_file(path: Path, remedy: str = EXTRACT_AGAIN) -> Iterator[h5py.File]:
    """Open a file for reading; what cannot be opened, or read once open, is named, and `remedy` says what to do."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except MemoryError as error:
        raise CacheError(f"{path}: not enough memory to read it; close other programs, or raise the limit") from error
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:  # h5py's, of damaged files
        if isinstance(error, FileNotFoundError):
            raise CacheError(f"{path}: no such file") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CacheError(f"{path}: not a readable cache file ({reason}); {remedy}") from error


def read_columns(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name → (shape, dtype) of every array; raises CacheError unless all are as byov writes them."""
    with open_file(path) as file:
        datasets = {name: _open_checked(file, name) for name in _names(file)}
        columns = {name: (dataset.shape, str(dataset.dtype)) for name, dataset in datasets.items()}
        for name, (shape, _) in columns.items():
            _check_rows(file, name, shape[0])
        return columns


def read_array(path: Path, name: str, *, remedy: str = EXTRACT_AGAIN) -> NDArray[Any]:
    """One column as an array: "merged/0.3", "cls", "order", "pts_seconds" or "embedding"."""
    with open_file(path, remedy) as file:
        _refuse_absent(file, path, name)
        return read_checked(file, name)


def read_digest(path: Path, name: str) -> str:
    """The SHA-256 that the writer has left beside a column."""
    with open_file(path) as file:
        _refuse_absent(file, path, name)
        return stored_digest(file, name)


def read_complete_attributes(file: h5py.File, path: Path, remedy: str) -> dict[str, Any]:
    """The attributes of a file of a schema that this byov reads, if it was finished and they are as they were written.

    "columns" among them: the names of its arrays.
    """
    attrs = read_attributes(file)
    schema = attrs.get("schema_version")
    if type(schema) is not int or schema not in SCHEMAS:
        raise CacheError(
            f"{path}: cache schema {schema!r}, this byov reads {' and '.join(map(str, SCHEMAS))}; {remedy}"
        )
    if attrs.get("complete") is not True:
        raise CacheError(f"{path}: not marked complete; {remedy}")
    written = attrs.pop("header_sha256", None)
    if schema > 1 and written != header_digest(attrs):
        raise CacheError(f"{path}: its attributes do not match their digest; {remedy}")
    columns = _names(file)
    if schema > 1 and attrs.get("columns") != " ".join(columns):
        raise CacheError(f"{path}: holds {' '.join(columns)}, written were {attrs.get('columns')}; {remedy}")
    return attrs | {"columns": columns}


def _refuse_absent(file: h5py.File, path: Path, name: str) -> None:
    there = _names(file)
    if name not in there:
        raise CacheError(f"{path}: no {name}; it holds {', '.join(there)}")


# From here on h5py's low-level interface: a run over a large cache reads a header per video, and the high-level one
# takes several times as long.


def read_attributes(item: h5py.File | h5py.h5d.DatasetID) -> dict[str, Any]:
    """Attributes as Python's own values; of the kinds that byov writes, since HDF5 is not safe to read all others."""
    values: dict[str, Any] = {}
    where = item.id if isinstance(item, h5py.File) else item
    for index in range(h5py.h5a.get_num_attrs(where)):
        stored = h5py.h5a.open(where, index=index)
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
    there = _links(file.id)
    plain = [name for name in there if name != "merged"]
    return sorted(plain + [f"merged/{ratio}" for ratio in _ratios(file)]) if "merged" in there else sorted(plain)


def _ratios(file: h5py.File) -> list[str]:
    group = h5py.h5o.open(file.id, b"merged")
    if not isinstance(group, h5py.h5g.GroupID):
        raise ValueError("'merged' is not a group")
    ratios = _links(group)
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
    if dtype != DTYPES.get(name, STORED_DTYPE) or len(shape) != (1 if name == "pts_seconds" else 2):
        raise ValueError(f"{name!r} is {dtype} of shape {shape}")
    size_bytes = prod(shape) * dtype.itemsize
    if size_bytes > file.id.get_filesize():
        raise ValueError(f"{name!r} claims {size_bytes} bytes, more than the file has")
    if settings.get_chunk() != (CHUNK_ROWS, *shape[1:]) or _filters(settings) != [h5py.h5z.FILTER_FLETCHER32]:
        raise ValueError(f"{name!r} is stored in another way than byov's")  # which may take any memory or time to read
    if dataset.get_num_chunks() != -(-shape[0] // CHUNK_ROWS):  # HDF5 would read the missing ones as zeros
        raise ValueError(f"{name!r} lacks blocks")
    return dataset


def _filters(settings: h5py.h5p.PropDCID) -> list[int]:
    return [settings.get_filter(index)[0] for index in range(settings.get_nfilters())]


def _check_rows(file: h5py.File, name: str, rows: int) -> None:
    frames = _open_checked(file, "pts_seconds").shape[0]
    if rows != frames:
        raise ValueError(f"{name!r} has {rows} rows, pts_seconds {frames}")


def read_checked(file: h5py.File, name: str) -> NDArray[Any]:
    """A column, if it is as it was written."""
    dataset = _open_checked(file, name)
    _check_rows(file, name, dataset.shape[0])
    values: NDArray[Any] = np.empty(dataset.shape, dataset.dtype)
    if values.size:
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    if hashlib.sha256(values.data).hexdigest() != stored_digest(file, name):
        raise ValueError(f"{name} does not match its digest")
    return values


def stored_digest(file: h5py.File, name: str) -> str:
    """The SHA-256 beside a column, which says too of which column it is."""
    attrs = read_attributes(h5py.h5o.open(file.id, name.encode()))
    column = attrs.get("column")
    if column is None and _schema(file) == 1:  # which did not say
        column = name
    if column != name:
        raise ValueError(f"{name!r} was written as {column!r}")
    return str(typed_attribute(attrs, "sha256", str))


def _schema(file: h5py.File) -> int:
    """As far as it says; where it matters, read_complete_attributes has refused what it must."""
    try:
        found = h5py.h5a.open(file.id, b"schema_version")
    except KeyError:
        return SCHEMA_VERSION
    value = np.zeros((), np.int64)
    if found.shape == () and found.dtype.kind in "iu":
        found.read(value)
    return int(value)


def typed_attribute(attrs: dict[str, Any], name: str, kind: Any) -> Any:
    value = attrs[name]
    if type(value) is not kind:
        raise ValueError(f"{name} is not of type {kind.__name__}")
    return value
